//! What the compiler does not find by itself in plain loops: the instructions that convert float16.
//!
//! This module must not know what the numbers are for.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Elements of float16 that are converted at a time.
pub(crate) const HALVES: usize = 16;

/// Converts float16. All implementations give the same bits: a NaN keeps its sign and the upper part
/// of its payload and becomes quiet, and numbers are rounded to nearest even.
pub trait Processor: Copy {
    /// The bits of float16 as float32, without a change of value.
    fn widen(self, halves: [u16; HALVES]) -> [f32; HALVES];
    /// float32 rounded to the bits of float16.
    fn narrow(self, floats: [f32; HALVES]) -> [u16; HALVES];
}

/// Any processor of this architecture; `half` asks it what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Baseline;

impl Processor for Baseline {
    fn widen(self, halves: [u16; HALVES]) -> [f32; HALVES] {
        let mut floats = [0.0; HALVES];
        halves.map(f16::from_bits).convert_to_f32_slice(&mut floats);
        floats
    }

    fn narrow(self, floats: [f32; HALVES]) -> [u16; HALVES] {
        let mut halves = [f16::ZERO; HALVES];
        halves.convert_from_f32_slice(&floats);
        halves.map(f16::to_bits)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m256i, __m512, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm512_cvtph_ps, _mm512_cvtps_ph,
    };
    use std::mem::transmute;

    use super::{HALVES, Processor};

    /// A processor with AVX2 and F16C: exists only where `detect` has found both.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Avx2(());

    /// A processor with what `Avx2` has and AVX-512 F, BW, DQ and VL: exists only where `detect` has
    /// found them all.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Avx512(());

    impl Avx2 {
        pub(crate) fn detect() -> Option<Self> {
            let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            found.then_some(Self(()))
        }
    }

    impl Avx512 {
        pub(crate) fn detect() -> Option<Self> {
            let found = Avx2::detect().is_some()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            found.then_some(Self(()))
        }
    }

    impl Processor for Avx2 {
        #[inline(always)]
        fn widen(self, halves: [u16; HALVES]) -> [f32; HALVES] {
            // SAFETY: an `Avx2` exists, so the processor has F16C.
            unsafe { widen_f16c(halves) }
        }

        #[inline(always)]
        fn narrow(self, floats: [f32; HALVES]) -> [u16; HALVES] {
            // SAFETY: an `Avx2` exists, so the processor has F16C.
            unsafe { narrow_f16c(floats) }
        }
    }

    impl Processor for Avx512 {
        #[inline(always)]
        fn widen(self, halves: [u16; HALVES]) -> [f32; HALVES] {
            // SAFETY: an `Avx512` exists, so the processor has AVX-512 F.
            unsafe { widen_avx512(halves) }
        }

        #[inline(always)]
        fn narrow(self, floats: [f32; HALVES]) -> [u16; HALVES] {
            // SAFETY: an `Avx512` exists, so the processor has AVX-512 F.
            unsafe { narrow_avx512(floats) }
        }
    }

    #[target_feature(enable = "avx,f16c")]
    #[inline]
    fn widen_f16c(halves: [u16; HALVES]) -> [f32; HALVES] {
        // SAFETY: both types are 32 bytes of plain bits.
        let [low, high] = unsafe { transmute::<[u16; HALVES], [_; 2]>(halves) };
        let floats: [__m256; 2] = [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)];
        // SAFETY: both types are 64 bytes of plain bits.
        unsafe { transmute::<[__m256; 2], [f32; HALVES]>(floats) }
    }

    #[target_feature(enable = "avx,f16c")]
    #[inline]
    fn narrow_f16c(floats: [f32; HALVES]) -> [u16; HALVES] {
        // SAFETY: both types are 64 bytes of plain bits.
        let [low, high] = unsafe { transmute::<[f32; HALVES], [__m256; 2]>(floats) };
        let halves = [
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high),
        ];
        // SAFETY: both types are 32 bytes of plain bits.
        unsafe { transmute::<[_; 2], [u16; HALVES]>(halves) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn widen_avx512(halves: [u16; HALVES]) -> [f32; HALVES] {
        // SAFETY: both types are 32 bytes of plain bits.
        let halves = unsafe { transmute::<[u16; HALVES], __m256i>(halves) };
        let floats = _mm512_cvtph_ps(halves);
        // SAFETY: both types are 64 bytes of plain bits.
        unsafe { transmute::<__m512, [f32; HALVES]>(floats) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn narrow_avx512(floats: [f32; HALVES]) -> [u16; HALVES] {
        // SAFETY: both types are 64 bytes of plain bits.
        let floats = unsafe { transmute::<[f32; HALVES], __m512>(floats) };
        let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(floats);
        // SAFETY: both types are 32 bytes of plain bits.
        unsafe { transmute::<__m256i, [u16; HALVES]>(halves) }
    }
}

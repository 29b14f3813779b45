//! The sum of two bfloat16 with the instruction that rounds to them, where the processor has it.
//!
//! The loops of `kernel` round with integers, which takes as long as half the sum itself; the instruction
//! does it at once, but takes what is too small for a normal number for 0, and nothing is known of the NaN
//! that an addition picks. Where either occurs, the loop of `kernel` combines the next few kilobytes, so
//! that the bits are the same. Must not know anything but sums of bfloat16.

use half::bf16;

use crate::kernel::{Input, run};
use crate::level::Level;
use crate::number::{Add, Terms};

/// As `run::<bf16, bf16, Add>`, and gives the same bits.
pub fn run_bfloat16_sum(level: Level, terms: &Terms, out: &mut [u8], inputs: &[Input<'_>]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(processor) = x86::Avx512Bfloat16::of(level) {
        let plain = |out: &mut [u8], pair: [Input<'_>; 2]| {
            run::<bf16, bf16, Add>(level, terms, out, &pair);
        };
        match *inputs {
            [Input::Bytes(left), Input::Bytes(right)] => {
                return x86::sum(processor, out, Some(left), right, |out, left, right| {
                    let left = left.map_or(Input::Output, Input::Bytes);
                    plain(out, [left, Input::Bytes(right)]);
                });
            }
            // Sums are the same both ways but for which NaN they pick, which is `plain`'s matter.
            [Input::Output, Input::Bytes(other)] => {
                return x86::sum(processor, out, None, other, |out, _, other| {
                    plain(out, [Input::Output, Input::Bytes(other)]);
                });
            }
            [Input::Bytes(other), Input::Output] => {
                return x86::sum(processor, out, None, other, |out, _, other| {
                    plain(out, [Input::Bytes(other), Input::Output]);
                });
            }
            _ => {}
        }
    }
    run::<bf16, bf16, Add>(level, terms, out, inputs);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps,
        _mm512_cvtne2ps_pbh, _mm512_fpclass_ps_mask, _mm512_loadu_si512, _mm512_permutexvar_epi16,
        _mm512_set1_epi32, _mm512_slli_epi32, _mm512_storeu_si512,
    };
    use std::mem::transmute;

    use crate::level::{Instructions, Level};

    /// Bytes that are combined at once.
    const GROUP: usize = 64;
    /// Bytes that are combined in the plain way where a group needs it.
    const BLOCK: usize = 4096;
    /// A NaN, quiet or not, or a number that is not normal.
    const NOT_PLAIN: i32 = 0x01 | 0x80 | 0x20;
    /// Lower halves and upper halves in turn.
    const IN_TURN: [u16; 32] = {
        let mut order = [0; 32];
        let mut word = 0;
        while word < 16 {
            order[2 * word] = word as u16;
            order[2 * word + 1] = 16 + word as u16;
            word += 1;
        }
        order
    };

    /// A processor with AVX-512 F, BW, DQ and BF16: exists only where `of` has found them.
    #[derive(Clone, Copy)]
    pub(super) struct Avx512Bfloat16(());

    impl Avx512Bfloat16 {
        /// Where `level` allows it.
        pub(super) fn of(level: Level) -> Option<Self> {
            let allowed = matches!(level.0, Instructions::Avx512(_));
            (allowed && is_x86_feature_detected!("avx512bf16")).then_some(Self(()))
        }
    }

    /// Sums `left`, or what stands in `out`, and `right`; all are as long, and of whole elements.
    /// `plain` does the same with parts of them.
    pub(super) fn sum(
        processor: Avx512Bfloat16,
        out: &mut [u8],
        left: Option<&[u8]>,
        right: &[u8],
        plain: impl Fn(&mut [u8], Option<&[u8]>, &[u8]),
    ) {
        let bytes = out.len();
        let mut at = 0;
        while at < bytes {
            let rest = (&mut out[at..], left.map(|left| &left[at..]), &right[at..]);
            // SAFETY: an `Avx512Bfloat16` exists, so the processor has all that is used.
            at += unsafe { groups(processor, rest.0, rest.1, rest.2) };
            // A part of a group, or one that is not plain.
            let end = bytes.min(at + BLOCK);
            if at < end {
                let left = left.map(|left| &left[at..end]);
                plain(&mut out[at..end], left, &right[at..end]);
            }
            at = end;
        }
    }

    /// Sums group after group, up to the first that is not plain; returns how many bytes that were.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    fn groups(_: Avx512Bfloat16, out: &mut [u8], left: Option<&[u8]>, right: &[u8]) -> usize {
        let whole = out.len() / GROUP * GROUP;
        assert!(right.len() >= whole && left.is_none_or(|left| left.len() >= whole));
        let out = out.as_mut_ptr();
        let left = left.map_or(out.cast_const(), <[u8]>::as_ptr);
        let right = right.as_ptr();
        // SAFETY: both types are 64 bytes of plain bits.
        let in_turn = unsafe { transmute::<[u16; 32], __m512i>(IN_TURN) };
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        for at in (0..whole).step_by(GROUP) {
            // SAFETY: a group lies within the first `whole` bytes of each.
            let (one, other) = unsafe {
                (
                    _mm512_loadu_si512(left.add(at).cast()),
                    _mm512_loadu_si512(right.add(at).cast()),
                )
            };
            // A bfloat16 is the upper half of the float32 of the same value.
            let low = |word| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(word));
            let high = |word| _mm512_castsi512_ps(_mm512_and_si512(word, upper));
            let lows = _mm512_add_ps(low(one), low(other));
            let highs = _mm512_add_ps(high(one), high(other));
            let odd = _mm512_fpclass_ps_mask::<NOT_PLAIN>(lows)
                | _mm512_fpclass_ps_mask::<NOT_PLAIN>(highs);
            if odd != 0 {
                return at;
            }
            // SAFETY: both types are 64 bytes of plain bits.
            let sums = unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(highs, lows)) };
            let sums = _mm512_permutexvar_epi16(in_turn, sums);
            // SAFETY: as above; `out` is this call's alone.
            unsafe { _mm512_storeu_si512(out.add(at).cast(), sums) }
        }
        whole
    }
}

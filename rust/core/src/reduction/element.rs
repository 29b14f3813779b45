//! Bytes to accumulators and back.
//!
//! This module must not know how accumulators are combined.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::kernel::BLOCK;
use super::number::{Complex, Number};

/// How an element is stored, and in what type it is combined.
pub(super) trait Element {
    /// Bytes of one element.
    const SIZE: usize;
    type Accumulator: Copy;
    const ZERO: Self::Accumulator;

    /// Reads the elements in `bytes`, passing `each` the accumulator of the same place. At most
    /// `BLOCK` elements; `into` has one accumulator per element.
    fn load(
        bytes: &[u8],
        into: &mut [Self::Accumulator],
        each: impl Fn(&mut Self::Accumulator, Self::Accumulator),
    );

    /// Writes one element per accumulator to `bytes`, at most `BLOCK`.
    fn store(from: &[Self::Accumulator], bytes: &mut [u8]);
}

/// A truth value: one byte.
pub(super) struct Truth;

impl Element for Truth {
    const SIZE: usize = 1;
    type Accumulator = u8;
    const ZERO: u8 = 0;

    fn load(bytes: &[u8], into: &mut [u8], each: impl Fn(&mut u8, u8)) {
        for (place, byte) in into.iter_mut().zip(bytes) {
            each(place, u8::from(*byte != 0));
        }
    }

    fn store(from: &[u8], bytes: &mut [u8]) {
        bytes.copy_from_slice(from);
    }
}

macro_rules! own_accumulator {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const SIZE: usize = size_of::<$type>();
            type Accumulator = $type;
            const ZERO: $type = <$type as Number>::ZERO;

            fn load(bytes: &[u8], into: &mut [$type], each: impl Fn(&mut $type, $type)) {
                for (place, chunk) in into.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
                    let mut bytes = [0; size_of::<$type>()];
                    bytes.copy_from_slice(chunk);
                    each(place, <$type>::from_ne_bytes(bytes));
                }
            }

            fn store(from: &[$type], bytes: &mut [u8]) {
                for (value, chunk) in from.iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
                    chunk.copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
    )*};
}
own_accumulator!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

// Converted a block at a time: `half` uses the processor's instructions for whole slices.
impl Element for f16 {
    const SIZE: usize = 2;
    type Accumulator = f32;
    const ZERO: f32 = 0.0;

    fn load(bytes: &[u8], into: &mut [f32], each: impl Fn(&mut f32, f32)) {
        let mut stored = [f16::ZERO; BLOCK];
        let stored = &mut stored[..into.len()];
        for (place, chunk) in stored.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
            *place = f16::from_ne_bytes([chunk[0], chunk[1]]);
        }
        let mut values = [0.0; BLOCK];
        let values = &mut values[..into.len()];
        stored.convert_to_f32_slice(values);
        for (place, value) in into.iter_mut().zip(values) {
            each(place, *value);
        }
    }

    fn store(from: &[f32], bytes: &mut [u8]) {
        let mut stored = [f16::ZERO; BLOCK];
        let stored = &mut stored[..from.len()];
        stored.convert_from_f32_slice(from);
        for (value, chunk) in stored.iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
            chunk.copy_from_slice(&value.to_ne_bytes());
        }
    }
}

impl Element for bf16 {
    const SIZE: usize = 2;
    type Accumulator = f32;
    const ZERO: f32 = 0.0;

    // A bfloat16 is the upper half of the binary32 of the same value; a plain shift, unlike
    // `bf16::to_f32`, is done for many elements at once.
    fn load(bytes: &[u8], into: &mut [f32], each: impl Fn(&mut f32, f32)) {
        for (place, chunk) in into.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
            let upper = u16::from_ne_bytes([chunk[0], chunk[1]]);
            each(place, f32::from_bits(u32::from(upper) << 16));
        }
    }

    fn store(from: &[f32], bytes: &mut [u8]) {
        for (value, chunk) in from.iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
            chunk.copy_from_slice(&bf16::from_f32(*value).to_ne_bytes());
        }
    }
}

macro_rules! complex {
    ($($part:ty),*) => {$(
        impl Element for [$part; 2] {
            const SIZE: usize = 2 * size_of::<$part>();
            type Accumulator = Complex<$part>;
            const ZERO: Self::Accumulator = <Self::Accumulator as Number>::ZERO;

            fn load(
                bytes: &[u8],
                into: &mut [Self::Accumulator],
                each: impl Fn(&mut Self::Accumulator, Self::Accumulator),
            ) {
                for (place, chunk) in into.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
                    let (mut re, mut im) = ([0; size_of::<$part>()], [0; size_of::<$part>()]);
                    re.copy_from_slice(&chunk[..size_of::<$part>()]);
                    im.copy_from_slice(&chunk[size_of::<$part>()..]);
                    let value =
                        Complex { re: <$part>::from_ne_bytes(re), im: <$part>::from_ne_bytes(im) };
                    each(place, value);
                }
            }

            fn store(from: &[Self::Accumulator], bytes: &mut [u8]) {
                for (value, chunk) in from.iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
                    let (re, im) = chunk.split_at_mut(size_of::<$part>());
                    re.copy_from_slice(&value.re.to_ne_bytes());
                    im.copy_from_slice(&value.im.to_ne_bytes());
                }
            }
        }
    )*};
}
complex!(f32, f64);

impl Element for [f16; 2] {
    const SIZE: usize = 4;
    type Accumulator = Complex<f32>;
    const ZERO: Self::Accumulator = <Self::Accumulator as Number>::ZERO;

    fn load(
        bytes: &[u8],
        into: &mut [Self::Accumulator],
        each: impl Fn(&mut Self::Accumulator, Self::Accumulator),
    ) {
        for (place, chunk) in into.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
            let value = Complex {
                re: f16::from_ne_bytes([chunk[0], chunk[1]]).to_f32(),
                im: f16::from_ne_bytes([chunk[2], chunk[3]]).to_f32(),
            };
            each(place, value);
        }
    }

    fn store(from: &[Self::Accumulator], bytes: &mut [u8]) {
        for (value, chunk) in from.iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
            let (re, im) = chunk.split_at_mut(2);
            re.copy_from_slice(&f16::from_f32(value.re).to_ne_bytes());
            im.copy_from_slice(&f16::from_f32(value.im).to_ne_bytes());
        }
    }
}

//! Bytes to accumulators and back.
//!
//! This module must not know how accumulators are combined.

use std::marker::PhantomData;

use half::{bf16, f16};

use crate::number::{Complex, Number};
use crate::processor::{HALVES, Processor};

/// Bytes of accumulators in a block: few enough to stay in the first-level cache beside the inputs.
const BLOCK: usize = 2048;

/// Some accumulators side by side.
pub trait Group<A>: Copy {
    /// Each accumulator, changed by `change`.
    #[must_use]
    fn map(self, change: impl Fn(A) -> A) -> Self;
    /// Each accumulator, combined with the one of the same place in `other`.
    #[must_use]
    fn zip(self, other: Self, combine: impl Fn(A, A) -> A) -> Self;
}

impl<A: Copy, const N: usize> Group<A> for [A; N] {
    #[inline(always)]
    fn map(mut self, change: impl Fn(A) -> A) -> Self {
        for place in &mut self {
            *place = change(*place);
        }
        self
    }

    #[inline(always)]
    fn zip(mut self, other: Self, combine: impl Fn(A, A) -> A) -> Self {
        for (place, value) in self.iter_mut().zip(other) {
            *place = combine(*place, value);
        }
        self
    }
}

/// How an element is stored, and in what type it is combined.
pub trait Element {
    /// What elements are combined in.
    type Accumulator: Copy;
    /// The elements that are read or written at once: one, where the compiler turns a loop over
    /// single elements into instructions for many.
    type Group: Group<Self::Accumulator>;
    /// The same element, read and written in the way that is best where accumulators lie in memory.
    type InMemory: Element<Accumulator = Self::Accumulator>;
    /// Accumulators in memory.
    type Block: AsMut<[Self::Group]>;
    /// Bytes of one element.
    const SIZE: usize;
    /// Elements of a group.
    const COUNT: usize;
    /// A block to begin with.
    const ZERO: Self::Block;

    /// Reads a group; `bytes` are as many as it has.
    fn load<P: Processor>(processor: P, bytes: &[u8]) -> Self::Group;
    /// Writes a group; `bytes` are as many as it has.
    fn store<P: Processor>(processor: P, group: Self::Group, bytes: &mut [u8]);
}

/// What inputs of this kind can be combined into: `O` has the same accumulators, grouped alike.
pub trait Becomes<O: Element>:
    Element<
        Accumulator = O::Accumulator,
        Group = O::Group,
        InMemory: Element<Group = <O::InMemory as Element>::Group>,
    >
{
}

impl<I, O: Element> Becomes<O> for I where
    I: Element<
            Accumulator = O::Accumulator,
            Group = O::Group,
            InMemory: Element<Group = <O::InMemory as Element>::Group>,
        >
{
}

/// A truth value: one byte.
#[derive(Debug)]
pub struct Truth;

impl Element for Truth {
    type Accumulator = u8;
    type Group = [u8; 1];
    type InMemory = Self;
    type Block = [[u8; 1]; BLOCK];
    const SIZE: usize = 1;
    const COUNT: usize = 1;
    const ZERO: Self::Block = [[0]; BLOCK];

    #[inline(always)]
    fn load<P: Processor>(_: P, bytes: &[u8]) -> [u8; 1] {
        [u8::from(bytes[0] != 0)]
    }

    #[inline(always)]
    fn store<P: Processor>(_: P, group: [u8; 1], bytes: &mut [u8]) {
        bytes[0] = group[0];
    }
}

/// The first bytes of `bytes`, which has at least `N`.
#[inline(always)]
fn read<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

macro_rules! own_accumulator {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Accumulator = $type;
            type Group = [$type; 1];
            type InMemory = Self;
            type Block = [[$type; 1]; BLOCK / size_of::<$type>()];
            const SIZE: usize = size_of::<$type>();
            const COUNT: usize = 1;
            const ZERO: Self::Block = [[<$type as Number>::ZERO]; BLOCK / size_of::<$type>()];

            #[inline(always)]
            fn load<P: Processor>(_: P, bytes: &[u8]) -> [$type; 1] {
                [<$type>::from_ne_bytes(read(bytes))]
            }

            #[inline(always)]
            fn store<P: Processor>(_: P, group: [$type; 1], bytes: &mut [u8]) {
                bytes.copy_from_slice(&group[0].to_ne_bytes());
            }
        }
    )*};
}
own_accumulator!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// float32 rounded to bfloat16, in the upper half; the lower half is to be dropped.
///
/// `bf16::from_f32` without branches: half of the lowest bit that stays, less one where that bit is
/// 0, carries into it exactly where the number is to be rounded up.
#[inline(always)]
fn upper_half(value: f32) -> u32 {
    let exact = value.to_bits();
    let rounded = exact.wrapping_add(0x7fff + (exact >> 16 & 1));
    let quiet = exact | 0x0040_0000;
    if value.is_nan() { quiet } else { rounded }
}

// A bfloat16 is the upper half of the float32 of the same value. Two of them, read as one word,
// become two float32 without moving between the lanes of a vector. Which of the two comes first is
// of no concern, as long as reading and writing agree.
impl Element for bf16 {
    type Accumulator = f32;
    type Group = [f32; 2];
    type InMemory = OneBfloat16;
    type Block = [[f32; 2]; BLOCK / 8];
    const SIZE: usize = 2;
    const COUNT: usize = 2;
    const ZERO: Self::Block = [[0.0; 2]; BLOCK / 8];

    #[inline(always)]
    fn load<P: Processor>(_: P, bytes: &[u8]) -> [f32; 2] {
        let word = u32::from_ne_bytes(read(bytes));
        [
            f32::from_bits(word << 16),
            f32::from_bits(word & 0xffff_0000),
        ]
    }

    #[inline(always)]
    fn store<P: Processor>(_: P, [low, high]: [f32; 2], bytes: &mut [u8]) {
        let word = upper_half(low) >> 16 | upper_half(high) & 0xffff_0000;
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}

/// bfloat16 one by one: two by two, accumulators in memory would have to be sorted.
#[derive(Debug)]
pub struct OneBfloat16;

impl Element for OneBfloat16 {
    type Accumulator = f32;
    type Group = [f32; 1];
    type InMemory = Self;
    type Block = [[f32; 1]; BLOCK / 4];
    const SIZE: usize = 2;
    const COUNT: usize = 1;
    const ZERO: Self::Block = [[0.0]; BLOCK / 4];

    #[inline(always)]
    fn load<P: Processor>(_: P, bytes: &[u8]) -> [f32; 1] {
        [f32::from_bits(
            u32::from(u16::from_ne_bytes(read(bytes))) << 16,
        )]
    }

    #[inline(always)]
    fn store<P: Processor>(_: P, [value]: [f32; 1], bytes: &mut [u8]) {
        bytes.copy_from_slice(&((upper_half(value) >> 16) as u16).to_ne_bytes());
    }
}

#[inline(always)]
fn load_halves<P: Processor>(processor: P, bytes: &[u8]) -> [f32; HALVES] {
    let mut halves = [0; HALVES];
    for (half, chunk) in halves.iter_mut().zip(bytes.chunks_exact(2)) {
        *half = u16::from_ne_bytes(read(chunk));
    }
    processor.widen(halves)
}

#[inline(always)]
fn store_halves<P: Processor>(processor: P, floats: [f32; HALVES], bytes: &mut [u8]) {
    let halves = processor.narrow(floats);
    for (half, chunk) in halves.iter().zip(bytes.chunks_exact_mut(2)) {
        chunk.copy_from_slice(&half.to_ne_bytes());
    }
}

impl Element for f16 {
    type Accumulator = f32;
    type Group = [f32; HALVES];
    type InMemory = Self;
    type Block = [[f32; HALVES]; BLOCK / 4 / HALVES];
    const SIZE: usize = 2;
    const COUNT: usize = HALVES;
    const ZERO: Self::Block = [[0.0; HALVES]; BLOCK / 4 / HALVES];

    #[inline(always)]
    fn load<P: Processor>(processor: P, bytes: &[u8]) -> [f32; HALVES] {
        load_halves(processor, bytes)
    }

    #[inline(always)]
    fn store<P: Processor>(processor: P, group: [f32; HALVES], bytes: &mut [u8]) {
        store_halves(processor, group, bytes);
    }
}

/// Elements of complex32 that are converted at a time.
const PAIRS: usize = HALVES / 2;

impl Element for [f16; 2] {
    type Accumulator = Complex<f32>;
    type Group = [Complex<f32>; PAIRS];
    type InMemory = Self;
    type Block = [[Complex<f32>; PAIRS]; BLOCK / 8 / PAIRS];
    const SIZE: usize = 4;
    const COUNT: usize = PAIRS;
    const ZERO: Self::Block = [[Complex::ZERO; PAIRS]; BLOCK / 8 / PAIRS];

    #[inline(always)]
    fn load<P: Processor>(processor: P, bytes: &[u8]) -> Self::Group {
        let parts = load_halves(processor, bytes);
        let mut group = [Complex::ZERO; PAIRS];
        for (number, parts) in group.iter_mut().zip(parts.chunks_exact(2)) {
            *number = Complex {
                re: parts[0],
                im: parts[1],
            };
        }
        group
    }

    #[inline(always)]
    fn store<P: Processor>(processor: P, group: Self::Group, bytes: &mut [u8]) {
        let mut parts = [0.0; HALVES];
        for (number, parts) in group.iter().zip(parts.chunks_exact_mut(2)) {
            parts[0] = number.re;
            parts[1] = number.im;
        }
        store_halves(processor, parts, bytes);
    }
}

macro_rules! complex {
    ($($part:ty),*) => {$(
        impl Element for [$part; 2] {
            type Accumulator = Complex<$part>;
            type Group = [Complex<$part>; 1];
            type InMemory = Self;
            type Block = [[Complex<$part>; 1]; BLOCK / (2 * size_of::<$part>())];
            const SIZE: usize = 2 * size_of::<$part>();
            const COUNT: usize = 1;
            const ZERO: Self::Block = [[Complex::ZERO; 1]; BLOCK / (2 * size_of::<$part>())];

            #[inline(always)]
            fn load<P: Processor>(_: P, bytes: &[u8]) -> Self::Group {
                let (re, im) = bytes.split_at(size_of::<$part>());
                [Complex {
                    re: <$part>::from_ne_bytes(read(re)),
                    im: <$part>::from_ne_bytes(read(im)),
                }]
            }

            #[inline(always)]
            fn store<P: Processor>(_: P, group: Self::Group, bytes: &mut [u8]) {
                let (re, im) = bytes.split_at_mut(size_of::<$part>());
                re.copy_from_slice(&group[0].re.to_ne_bytes());
                im.copy_from_slice(&group[0].im.to_ne_bytes());
            }
        }
    )*};
}
complex!(f32, f64);

/// The accumulator of an `E`, not rounded to it: what some of the inputs come to. Grouped as `E` is.
#[derive(Debug)]
pub struct Partial<E>(PhantomData<E>);

macro_rules! partial {
    ($($narrow:ty as $wide:ty),*) => {$(
        impl Element for Partial<$narrow> {
            type Accumulator = <$narrow as Element>::Accumulator;
            type Group = <$narrow as Element>::Group;
            type InMemory = Self;
            type Block = <$narrow as Element>::Block;
            const SIZE: usize = <$wide as Element>::SIZE;
            const COUNT: usize = <$narrow as Element>::COUNT;
            const ZERO: Self::Block = <$narrow as Element>::ZERO;

            #[inline(always)]
            fn load<P: Processor>(processor: P, bytes: &[u8]) -> Self::Group {
                let mut group = [<Self::Accumulator as Number>::ZERO; Self::COUNT];
                for (place, bytes) in group.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
                    [*place] = <$wide>::load(processor, bytes);
                }
                group
            }

            #[inline(always)]
            fn store<P: Processor>(processor: P, group: Self::Group, bytes: &mut [u8]) {
                for (value, bytes) in group.into_iter().zip(bytes.chunks_exact_mut(Self::SIZE)) {
                    <$wide>::store(processor, [value], bytes);
                }
            }
        }
    )*};
}
partial!(f16 as f32, OneBfloat16 as f32, [f16; 2] as [f32; 2]);

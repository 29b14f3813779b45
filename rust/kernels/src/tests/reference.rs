//! One element at a time, as plainly as it can be said, with `half`'s own conversions.
//!
//! Must share nothing with the kernels but `Terms`: what it says is what they are held to.

use half::{bf16, f16};

use crate::{Terms, Truth};

/// The result of whole inputs.
pub(super) type Reference = fn(&Terms, &[&[u8]]) -> Vec<u8>;

/// Bytes of an element.
pub(super) fn size<E: Stored>() -> usize {
    E::SIZE
}

/// The reference for one kind of element and one way.
pub(super) fn of<E: Stored, W: Way<E::Number>>(terms: &Terms, inputs: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0; inputs[0].len()];
    for (at, place) in out.chunks_mut(E::SIZE).enumerate() {
        let element = at * E::SIZE..(at + 1) * E::SIZE;
        let mut result = W::prepare(E::read(&inputs[0][element.clone()]), terms);
        for input in &inputs[1..] {
            let right = W::prepare(E::read(&input[element.clone()]), terms);
            result = W::combine(result, right);
        }
        E::write(W::finish(result, terms), place);
    }
    out
}

/// 16-bit floats as binary32.
pub(super) fn widened<H: Stored<Number = f32>>(bytes: &[u8]) -> Vec<u8> {
    let floats = bytes.chunks(2).map(|half| H::read(half));
    floats.flat_map(f32::to_ne_bytes).collect()
}

/// binary32 as 16-bit floats.
pub(super) fn narrowed<H: Stored<Number = f32>>(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; bytes.len() / 2];
    for (float, half) in bytes.chunks(4).zip(out.chunks_mut(2)) {
        H::write(f32::read(float), half);
    }
    out
}

pub(super) trait Stored {
    const SIZE: usize;
    type Number: Copy;
    fn read(bytes: &[u8]) -> Self::Number;
    fn write(number: Self::Number, bytes: &mut [u8]);
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Stored for $type {
            const SIZE: usize = size_of::<$type>();
            type Number = $type;
            fn read(bytes: &[u8]) -> $type {
                <$type>::from_ne_bytes(bytes.try_into().unwrap())
            }
            fn write(number: $type, bytes: &mut [u8]) {
                bytes.copy_from_slice(&number.to_ne_bytes());
            }
        }
    )*};
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Stored for f16 {
    const SIZE: usize = 2;
    type Number = f32;
    fn read(bytes: &[u8]) -> f32 {
        f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32()
    }
    fn write(number: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&f16::from_f32(number).to_ne_bytes());
    }
}

impl Stored for bf16 {
    const SIZE: usize = 2;
    type Number = f32;
    // Not `to_f32`, which makes NaN quiet; writing does, in the end.
    fn read(bytes: &[u8]) -> f32 {
        let upper = u16::from_ne_bytes(bytes.try_into().unwrap());
        f32::from_bits(u32::from(upper) << 16)
    }
    fn write(number: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bf16::from_f32(number).to_ne_bytes());
    }
}

impl Stored for Truth {
    const SIZE: usize = 1;
    type Number = u8;
    fn read(bytes: &[u8]) -> u8 {
        u8::from(bytes[0] != 0)
    }
    fn write(number: u8, bytes: &mut [u8]) {
        bytes[0] = number;
    }
}

impl<T: Stored> Stored for [T; 2] {
    const SIZE: usize = 2 * T::SIZE;
    type Number = [T::Number; 2];
    fn read(bytes: &[u8]) -> Self::Number {
        let (re, im) = bytes.split_at(T::SIZE);
        [T::read(re), T::read(im)]
    }
    fn write([re, im]: Self::Number, bytes: &mut [u8]) {
        let (first, second) = bytes.split_at_mut(T::SIZE);
        T::write(re, first);
        T::write(im, second);
    }
}

pub(super) trait Way<N> {
    fn prepare(number: N, _terms: &Terms) -> N {
        number
    }
    fn combine(left: N, right: N) -> N;
    fn finish(number: N, _terms: &Terms) -> N {
        number
    }
}

macro_rules! ways {
    ($($way:ident),*) => {$(pub(super) struct $way;)*};
}
ways!(
    Add, Mean, Multiply, Smaller, Larger, And, Or, Xor, ScaledAdd
);

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Way<$type> for Add {
            fn combine(left: $type, right: $type) -> $type { left.wrapping_add(right) }
        }
        impl Way<$type> for Mean {
            fn combine(left: $type, right: $type) -> $type { left.wrapping_add(right) }
            fn finish(sum: $type, terms: &Terms) -> $type {
                (i128::from(sum) / terms.group_size as i128) as $type
            }
        }
        impl Way<$type> for Multiply {
            fn combine(left: $type, right: $type) -> $type { left.wrapping_mul(right) }
        }
        impl Way<$type> for Smaller {
            fn combine(left: $type, right: $type) -> $type { left.min(right) }
        }
        impl Way<$type> for Larger {
            fn combine(left: $type, right: $type) -> $type { left.max(right) }
        }
        impl Way<$type> for And {
            fn combine(left: $type, right: $type) -> $type { left & right }
        }
        impl Way<$type> for Or {
            fn combine(left: $type, right: $type) -> $type { left | right }
        }
        impl Way<$type> for Xor {
            fn combine(left: $type, right: $type) -> $type { left ^ right }
        }
    )*};
}
integer!(u8, i8, u16, i16, u32, i32, u64, i64);

/// Arithmetic in which the first of two NaN goes on, made quiet.
macro_rules! first_nan {
    ($type:ident, $quiet:literal) => {
        mod $type {
            fn first(left: $type, other: $type) -> $type {
                if left.is_nan() {
                    <$type>::from_bits(left.to_bits() | $quiet)
                } else {
                    other
                }
            }
            pub(super) fn sum(left: $type, right: $type) -> $type {
                first(left, left + right)
            }
            pub(super) fn difference(left: $type, right: $type) -> $type {
                first(left, left - right)
            }
            pub(super) fn product(left: $type, right: $type) -> $type {
                first(left, left * right)
            }
        }
    };
}
first_nan!(f32, 0x0040_0000);
first_nan!(f64, 0x0008_0000_0000_0000);

macro_rules! float {
    ($($type:ident),*) => {$(
        impl Way<$type> for Add {
            fn combine(left: $type, right: $type) -> $type { $type::sum(left, right) }
        }
        impl Way<$type> for Mean {
            fn combine(left: $type, right: $type) -> $type { $type::sum(left, right) }
            fn finish(sum: $type, terms: &Terms) -> $type { sum / terms.group_size as $type }
        }
        impl Way<$type> for Multiply {
            fn combine(left: $type, right: $type) -> $type { $type::product(left, right) }
        }
        impl Way<$type> for Smaller {
            fn combine(left: $type, right: $type) -> $type {
                if right < left || right.is_nan() { right } else { left }
            }
        }
        impl Way<$type> for Larger {
            fn combine(left: $type, right: $type) -> $type {
                if right > left || right.is_nan() { right } else { left }
            }
        }
        impl Way<$type> for ScaledAdd {
            fn prepare(number: $type, terms: &Terms) -> $type {
                $type::product(number, terms.factor as $type)
            }
            fn combine(left: $type, right: $type) -> $type { $type::sum(left, right) }
        }
        impl Way<[$type; 2]> for Multiply {
            fn combine(left: [$type; 2], right: [$type; 2]) -> [$type; 2] {
                let ([a, b], [c, d]) = (left, right);
                let product = $type::product;
                [
                    $type::difference(product(a, c), product(b, d)),
                    $type::sum(product(a, d), product(b, c)),
                ]
            }
        }
    )*};
}
float!(f32, f64);

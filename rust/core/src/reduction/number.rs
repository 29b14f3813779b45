//! Arithmetic on accumulators, one type per way of combining.
//!
//! This module must not know how elements are stored.

use std::ops::{BitAnd, BitOr, BitXor, Sub};

/// What a reduction knows besides the numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// ranks in the group; at least 1
    pub(super) group_size: usize,
    /// what `ScaledAdd` multiplies with
    pub(super) factor: f64,
}

/// A way of combining accumulators of type `A`.
pub(super) trait Combine<A> {
    /// Applied to every input first.
    fn prepare(value: A, _terms: &Terms) -> A {
        value
    }
    /// `left` holds the lower ranks.
    fn combine(left: A, right: A) -> A;
    /// Applied once, when all inputs are combined.
    fn finish(value: A, _terms: &Terms) -> A {
        value
    }
}

/// What every accumulator can do.
pub(super) trait Number: Copy {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
}

/// Numbers with an order, that can be divided by a count.
pub(super) trait Real: Number {
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn divide(self, count: usize) -> Self;
}

/// Wraps around; has bits.
pub(super) trait Integer:
    Real + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
}

/// Rounds; may be NaN.
pub(super) trait Float: Real + Sub<Output = Self> {
    fn scale(self, factor: f64) -> Self;
}

/// A complex number.
#[derive(Clone, Copy)]
pub(super) struct Complex<T> {
    pub(super) re: T,
    pub(super) im: T,
}

pub(super) struct Add;
pub(super) struct Mean;
pub(super) struct Multiply;
pub(super) struct Smaller;
pub(super) struct Larger;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;
pub(super) struct ScaledAdd;

impl<A: Number> Combine<A> for Add {
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
}

impl<A: Real> Combine<A> for Mean {
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
    fn finish(value: A, terms: &Terms) -> A {
        value.divide(terms.group_size)
    }
}

impl<A: Number> Combine<A> for Multiply {
    fn combine(left: A, right: A) -> A {
        left.multiply(right)
    }
}

impl<A: Real> Combine<A> for Smaller {
    fn combine(left: A, right: A) -> A {
        left.smaller(right)
    }
}

impl<A: Real> Combine<A> for Larger {
    fn combine(left: A, right: A) -> A {
        left.larger(right)
    }
}

impl<A: BitAnd<Output = A>> Combine<A> for And {
    fn combine(left: A, right: A) -> A {
        left & right
    }
}

impl<A: BitOr<Output = A>> Combine<A> for Or {
    fn combine(left: A, right: A) -> A {
        left | right
    }
}

impl<A: BitXor<Output = A>> Combine<A> for Xor {
    fn combine(left: A, right: A) -> A {
        left ^ right
    }
}

impl<A: Float> Combine<A> for ScaledAdd {
    fn prepare(value: A, terms: &Terms) -> A {
        value.scale(terms.factor)
    }
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
}

macro_rules! integer {
    ($($type:ty as $wide:ty),*) => {$(
        impl Number for $type {
            const ZERO: Self = 0;
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
        impl Real for $type {
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            // In 64 bits, because a group may have more ranks than the type has values; the
            // quotient fits again.
            fn divide(self, count: usize) -> Self {
                (<$wide>::from(self) / count as $wide) as $type
            }
        }
        impl Integer for $type {}
    )*};
}
integer!(
    u8 as u64, u16 as u64, u32 as u64, u64 as u64, i8 as i64, i16 as i64, i32 as i64, i64 as i64
);

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Number for $type {
            const ZERO: Self = 0.0;
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
        }
        impl Real for $type {
            // Not `f32::min`, which prefers the number to the NaN. Equal values keep the left one.
            fn smaller(self, other: Self) -> Self {
                if other < self || other.is_nan() { other } else { self }
            }
            fn larger(self, other: Self) -> Self {
                if other > self || other.is_nan() { other } else { self }
            }
            fn divide(self, count: usize) -> Self {
                self / count as $type
            }
        }
        impl Float for $type {
            fn scale(self, factor: f64) -> Self {
                self * factor as $type
            }
        }
    )*};
}
float!(f32, f64);

impl<T: Float> Number for Complex<T> {
    const ZERO: Self = Self {
        re: T::ZERO,
        im: T::ZERO,
    };
    fn add(self, other: Self) -> Self {
        Self {
            re: self.re.add(other.re),
            im: self.im.add(other.im),
        }
    }
    fn multiply(self, other: Self) -> Self {
        Self {
            re: self.re.multiply(other.re) - self.im.multiply(other.im),
            im: self.re.multiply(other.im).add(self.im.multiply(other.re)),
        }
    }
}

//! Arithmetic on accumulators, one type per way of combining.
//!
//! This module must not know how elements are stored.

use std::ops::{BitAnd, BitOr, BitXor, Sub};

/// What a reduction knows besides the numbers.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// ranks in the group; at least 1
    pub group_size: usize,
    /// what `ScaledAdd` multiplies with
    pub factor: f64,
}

/// A way of combining accumulators of type `A`.
pub trait Combine<A> {
    /// Applied to every input first.
    #[inline(always)]
    fn prepare(value: A, _terms: &Terms) -> A {
        value
    }
    /// `left` holds the lower ranks.
    fn combine(left: A, right: A) -> A;
    /// Applied once, when all inputs are combined.
    #[inline(always)]
    fn finish(value: A, _terms: &Terms) -> A {
        value
    }
}

/// What every accumulator can do.
pub trait Number: Copy {
    /// 0
    const ZERO: Self;
    /// The sum.
    fn add(self, other: Self) -> Self;
    /// The product.
    fn multiply(self, other: Self) -> Self;
}

/// Numbers with an order, that can be divided by a count.
pub trait Real: Number {
    /// The smaller; NaN wins, and of equal ones `self`.
    fn smaller(self, other: Self) -> Self;
    /// The larger; NaN wins, and of equal ones `self`.
    fn larger(self, other: Self) -> Self;
    /// The quotient; integers are truncated toward zero.
    fn divide(self, count: usize) -> Self;
}

/// Wraps around; has bits.
pub trait Integer:
    Real + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
}

/// Rounds; may be NaN.
pub trait Float: Real + Sub<Output = Self> {
    /// What to add to `self`, or to multiply it with, in place of `other`: `self` where that is NaN.
    /// Processors keep the payload of the first operand of two NaN, and the compiler is free to swap
    /// operands; this keeps the left one's at every level.
    fn against(self, other: Self) -> Self;
    /// The product with `factor`, which is rounded to this type first.
    fn scale(self, factor: f64) -> Self;
}

/// A complex number.
#[derive(Clone, Copy, Debug)]
pub struct Complex<T> {
    /// real part
    pub re: T,
    /// imaginary part
    pub im: T,
}

/// The sum.
#[derive(Debug)]
pub struct Add;
/// The sum, divided by the number of ranks.
#[derive(Debug)]
pub struct Mean;
/// The product.
#[derive(Debug)]
pub struct Multiply;
/// The smallest; NaN wins.
#[derive(Debug)]
pub struct Smaller;
/// The largest; NaN wins.
#[derive(Debug)]
pub struct Larger;
/// Bitwise and.
#[derive(Debug)]
pub struct And;
/// Bitwise or.
#[derive(Debug)]
pub struct Or;
/// Bitwise exclusive or.
#[derive(Debug)]
pub struct Xor;
/// The sum of the inputs times the factor.
#[derive(Debug)]
pub struct ScaledAdd;

impl<A: Number> Combine<A> for Add {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
}

impl<A: Real> Combine<A> for Mean {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
    #[inline(always)]
    fn finish(value: A, terms: &Terms) -> A {
        value.divide(terms.group_size)
    }
}

impl<A: Number> Combine<A> for Multiply {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.multiply(right)
    }
}

impl<A: Real> Combine<A> for Smaller {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.smaller(right)
    }
}

impl<A: Real> Combine<A> for Larger {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.larger(right)
    }
}

impl<A: BitAnd<Output = A>> Combine<A> for And {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left & right
    }
}

impl<A: BitOr<Output = A>> Combine<A> for Or {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left | right
    }
}

impl<A: BitXor<Output = A>> Combine<A> for Xor {
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left ^ right
    }
}

impl<A: Float> Combine<A> for ScaledAdd {
    #[inline(always)]
    fn prepare(value: A, terms: &Terms) -> A {
        value.scale(terms.factor)
    }
    #[inline(always)]
    fn combine(left: A, right: A) -> A {
        left.add(right)
    }
}

macro_rules! integer {
    ($($type:ty: $divide:ident as $wide:ident),*) => {$(
        impl Number for $type {
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
        impl Real for $type {
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn divide(self, count: usize) -> Self {
                $divide!(self, count, $wide)
            }
        }
        impl Integer for $type {}
    )*};
}

macro_rules! in_integers {
    ($value:expr, $count:expr, $wide:ident) => {
        $value / $count as $wide
    };
}

/// Processors divide many floats at a time, but no integers. The truncated quotient is the same where
/// the float has more bits than dividend and divisor together: a quotient that is not whole lies at
/// least 1/count from the next whole number, and is rounded by less.
macro_rules! in_floats {
    ($value:expr, $count:expr, $float:ident) => {{
        // A count greater than all values gives 0, as this one does.
        let most = 1 << (Self::BITS + 1);
        let count = ($count as u64).clamp(1, most) as $float;
        let quotient = $value as $float / count;
        // SAFETY: finite, and between 0 and the value, which is of this type.
        unsafe { quotient.to_int_unchecked::<Self>() }
    }};
}

integer!(
    u8: in_floats as f32, i8: in_floats as f32,
    u16: in_floats as f64, i16: in_floats as f64,
    u32: in_floats as f64, i32: in_floats as f64,
    u64: in_integers as u64, i64: in_integers as i64
);

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Number for $type {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + Float::against(self, other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * Float::against(self, other)
            }
        }
        impl Real for $type {
            // Not `f32::min`, which prefers the number to the NaN. Equal values keep the left one.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if other < self || other.is_nan() { other } else { self }
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if other > self || other.is_nan() { other } else { self }
            }
            #[inline(always)]
            fn divide(self, count: usize) -> Self {
                self / count as $type
            }
        }
        impl Float for $type {
            #[inline(always)]
            fn against(self, other: Self) -> Self {
                if self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                self.multiply(factor as $type)
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
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self {
            re: self.re.add(other.re),
            im: self.im.add(other.im),
        }
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        Self {
            re: self.re.multiply(other.re) - self.im.multiply(other.im),
            im: self.re.multiply(other.im).add(self.im.multiply(other.re)),
        }
    }
}

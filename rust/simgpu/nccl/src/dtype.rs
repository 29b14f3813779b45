//! Data types and reductions, on the CPU, in rank order. Types narrower than 32 bits round after
//! every step, as NCCL's kernels do.

use std::ffi::c_int;

use half::{bf16, f16};

use crate::failure::{Failure, Outcome};
use crate::fp8::{E4M3, E5M2};

/// A data type of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum DataType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

impl DataType {
    /// The type of a number of the API.
    pub fn from_number(number: c_int) -> Outcome<DataType> {
        use DataType::*;
        let all = [
            Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16,
            Float8e4m3, Float8e5m2,
        ];
        usize::try_from(number)
            .ok()
            .and_then(|index| all.get(index).copied())
            .ok_or_else(|| Failure::argument(format!("invalid datatype {number}")))
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        use DataType::*;
        match self {
            Int8 | Uint8 | Float8e4m3 | Float8e5m2 => 1,
            Float16 | Bfloat16 => 2,
            Int32 | Uint32 | Float32 => 4,
            Int64 | Uint64 | Float64 => 8,
        }
    }
}

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Combine {
    Sum,
    Prod,
    Max,
    Min,
}

/// What is done before, between and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    /// One of the four.
    Plain(Combine),
    /// The sum, divided.
    Average,
    /// Each rank's elements are multiplied by its own scalar, whose bytes are of the element's
    /// type, and then added.
    PreMulSum(Scalar),
}

/// Where a scalar is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Its bytes.
    Bytes([u8; 8]),
    /// The device memory it is read from when the operation runs.
    At(usize),
}

impl Reduction {
    /// A number that is the same on every rank that means the same reduction.
    pub fn fingerprint(&self) -> u64 {
        match self {
            Reduction::Plain(combine) => *combine as u64,
            Reduction::Average => 4,
            Reduction::PreMulSum(_) => 5,
        }
    }
}

/// An element that can be reduced.
trait Element: Copy {
    fn combine(self, other: Self, how: Combine) -> Self;
    fn times(self, factor: Self) -> Self;
    /// Divides a finished sum; for types that average by integer division.
    fn over(self, count: u32) -> Self;
    /// What each element is multiplied with before an average; none for integers.
    fn part_of(count: u32) -> Option<Self>;
}

macro_rules! integer {
    ($($type:ty)*) => {$(
        impl Element for $type {
            fn combine(self, other: Self, how: Combine) -> Self {
                match how {
                    Combine::Sum => self.wrapping_add(other),
                    Combine::Prod => self.wrapping_mul(other),
                    Combine::Max => self.max(other),
                    Combine::Min => self.min(other),
                }
            }
            fn times(self, factor: Self) -> Self {
                self.wrapping_mul(factor)
            }
            fn over(self, count: u32) -> Self {
                // Wider than any element, so that the count fits beside it.
                (i128::from(self) / i128::from(count)) as $type
            }
            fn part_of(_count: u32) -> Option<Self> {
                None
            }
        }
    )*};
}
integer!(i8 u8 i32 u32 i64 u64);

macro_rules! float {
    ($($type:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $type {
            fn combine(self, other: Self, how: Combine) -> Self {
                let (one, other): ($wide, $wide) = ($widen(self), $widen(other));
                $narrow(match how {
                    Combine::Sum => one + other,
                    Combine::Prod => one * other,
                    Combine::Max => one.max(other),
                    Combine::Min => one.min(other),
                })
            }
            fn times(self, factor: Self) -> Self {
                $narrow($widen(self) * $widen(factor))
            }
            fn over(self, _count: u32) -> Self {
                self
            }
            fn part_of(count: u32) -> Option<Self> {
                Some($narrow(1.0 / count as $wide))
            }
        }
    )*};
}
float! {
    f32, f32, |value| value, |value| value;
    f64, f64, |value| value, |value| value;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    E4M3, f32, E4M3::to_f32, E4M3::from_f32;
    E5M2, f32, E5M2::to_f32, E5M2::from_f32;
}

/// Runs a generic function for the Rust type of a data type.
macro_rules! with_type {
    ($dtype:expr, $function:ident($($arg:expr),*)) => {
        match $dtype {
            DataType::Int8 => $function::<i8>($($arg),*),
            DataType::Uint8 => $function::<u8>($($arg),*),
            DataType::Int32 => $function::<i32>($($arg),*),
            DataType::Uint32 => $function::<u32>($($arg),*),
            DataType::Int64 => $function::<i64>($($arg),*),
            DataType::Uint64 => $function::<u64>($($arg),*),
            DataType::Float16 => $function::<f16>($($arg),*),
            DataType::Float32 => $function::<f32>($($arg),*),
            DataType::Float64 => $function::<f64>($($arg),*),
            DataType::Bfloat16 => $function::<bf16>($($arg),*),
            DataType::Float8e4m3 => $function::<E4M3>($($arg),*),
            DataType::Float8e5m2 => $function::<E5M2>($($arg),*),
        }
    };
}

fn load<T: Element>(bytes: &[u8], index: usize) -> T {
    let piece = &bytes[index * size_of::<T>()..][..size_of::<T>()];
    // SAFETY: the slice has the size of the element, every pattern of which is a value.
    unsafe { piece.as_ptr().cast::<T>().read_unaligned() }
}

fn store<T: Element>(bytes: &mut [u8], index: usize, value: T) {
    let piece = &mut bytes[index * size_of::<T>()..][..size_of::<T>()];
    // SAFETY: the slice has the size of the element.
    unsafe { piece.as_mut_ptr().cast::<T>().write_unaligned(value) };
}

fn change<T: Element>(bytes: &mut [u8], change: impl Fn(T) -> T) {
    for index in 0..bytes.len() / size_of::<T>() {
        let value = load::<T>(bytes, index);
        store(bytes, index, change(value));
    }
}

fn prepare_as<T: Element>(bytes: &mut [u8], reduction: &Reduction, ranks: u32) {
    match reduction {
        Reduction::Plain(_) => {}
        Reduction::Average => {
            if let Some(part) = T::part_of(ranks) {
                change::<T>(bytes, |value| value.times(part));
            }
        }
        Reduction::PreMulSum(scalar) => {
            let factor: T = match scalar {
                Scalar::Bytes(raw) => load(raw, 0),
                // SAFETY: the caller of ncclRedOpCreatePreMulSum keeps the scalar in memory that
                // the device reaches, until the operation is complete.
                Scalar::At(address) => unsafe { (*address as *const T).read_unaligned() },
            };
            change::<T>(bytes, |value| value.times(factor));
        }
    }
}

/// What a rank does to its own elements before they meet others.
pub fn prepare(dtype: DataType, bytes: &mut [u8], reduction: &Reduction, ranks: u32) {
    with_type!(dtype, prepare_as(bytes, reduction, ranks));
}

fn combine_as<T: Element>(into: &mut [u8], from: &[u8], reduction: &Reduction) {
    let how = match reduction {
        Reduction::Plain(how) => *how,
        Reduction::Average | Reduction::PreMulSum(_) => Combine::Sum,
    };
    for index in 0..into.len() / size_of::<T>() {
        let value = load::<T>(into, index).combine(load::<T>(from, index), how);
        store(into, index, value);
    }
}

/// Takes another rank's elements in.
pub fn combine(dtype: DataType, into: &mut [u8], from: &[u8], reduction: &Reduction) {
    with_type!(dtype, combine_as(into, from, reduction));
}

fn finish_as<T: Element>(bytes: &mut [u8], reduction: &Reduction, ranks: u32) {
    if *reduction == Reduction::Average {
        change::<T>(bytes, |value| value.over(ranks));
    }
}

/// What is left to do when every rank's elements are in.
pub fn finish(dtype: DataType, bytes: &mut [u8], reduction: &Reduction, ranks: u32) {
    with_type!(dtype, finish_as(bytes, reduction, ranks));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce(dtype: DataType, reduction: Reduction, ranks: &[&[u8]]) -> Vec<u8> {
        let count = ranks.len() as u32;
        let mut parts: Vec<Vec<u8>> = ranks.iter().map(|part| part.to_vec()).collect();
        for part in &mut parts {
            prepare(dtype, part, &reduction, count);
        }
        let mut result = parts[0].clone();
        for part in &parts[1..] {
            combine(dtype, &mut result, part, &reduction);
        }
        finish(dtype, &mut result, &reduction, count);
        result
    }

    fn of_f32(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn every_reduction_of_floats() {
        let (one, other) = (of_f32(&[1.5, -2.0]), of_f32(&[4.0, 3.0]));
        let cases = [
            (Reduction::Plain(Combine::Sum), [5.5, 1.0]),
            (Reduction::Plain(Combine::Prod), [6.0, -6.0]),
            (Reduction::Plain(Combine::Max), [4.0, 3.0]),
            (Reduction::Plain(Combine::Min), [1.5, -2.0]),
            (Reduction::Average, [2.75, 0.5]),
        ];
        for (reduction, expected) in cases {
            let result = reduce(DataType::Float32, reduction, &[&one, &other]);
            assert_eq!(result, of_f32(&expected), "{reduction:?}");
        }
    }

    #[test]
    fn integers_wrap_and_average_by_whole_division() {
        let sum = reduce(
            DataType::Int8,
            Reduction::Plain(Combine::Sum),
            &[&[100], &[100]],
        );
        assert_eq!(sum, [200]);
        let average = reduce(DataType::Uint8, Reduction::Average, &[&[3], &[4]]);
        assert_eq!(average, [3]);
    }

    #[test]
    fn a_scalar_multiplies_before_the_sum() {
        let scalar = |value: f32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&value.to_le_bytes());
            Reduction::PreMulSum(Scalar::Bytes(bytes))
        };
        let one = of_f32(&[3.0]);
        let result = reduce(DataType::Float32, scalar(0.5), &[&one, &one]);
        assert_eq!(result, of_f32(&[3.0]));
        let kept: f32 = 2.0;
        let there = Reduction::PreMulSum(Scalar::At(&raw const kept as usize));
        assert_eq!(
            reduce(DataType::Float32, there, &[&one, &one]),
            of_f32(&[12.0])
        );
    }

    #[test]
    fn narrow_floats_round_after_each_step() {
        let bytes = |value: f32| bf16::from_f32(value).to_le_bytes().to_vec();
        let sum = Reduction::Plain(Combine::Sum);
        let (large, small) = (bytes(256.0), bytes(1.0));
        // 256 + 1 is halfway between neighbours and goes to the even one, twice.
        let result = reduce(DataType::Bfloat16, sum, &[&large, &small, &small]);
        assert_eq!(result, large);
    }

    #[test]
    fn every_type_has_its_size_and_no_other_number_is_one() {
        let sizes: Vec<_> = (0..12)
            .map(|number| DataType::from_number(number).unwrap().size())
            .collect();
        assert_eq!(sizes, [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]);
        assert!(DataType::from_number(12).is_err());
        assert!(DataType::from_number(-1).is_err());
    }
}

//! Element types: their codes at the C ABI, their sizes and their names.
//!
//! This module must not know how elements are combined; `reduction` does.

use std::fmt;

/// Element type of a buffer. The codes are those of `FC_DTYPE_*` and are sent to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// one opaque byte; moves, cannot be reduced
    Byte = 0,
    /// unsigned, 8 bit
    Uint8 = 1,
    /// signed, 8 bit
    Int8 = 2,
    /// unsigned, 16 bit
    Uint16 = 3,
    /// signed, 16 bit
    Int16 = 4,
    /// unsigned, 32 bit
    Uint32 = 5,
    /// signed, 32 bit
    Int32 = 6,
    /// unsigned, 64 bit
    Uint64 = 7,
    /// signed, 64 bit
    Int64 = 8,
    /// IEEE binary16
    Float16 = 9,
    /// the upper half of a binary32
    Bfloat16 = 10,
    /// IEEE binary32
    Float32 = 11,
    /// IEEE binary64
    Float64 = 12,
    /// one byte, 0 or 1
    Bool = 13,
    /// two binary16: real, imaginary
    Complex32 = 14,
    /// two binary32: real, imaginary
    Complex64 = 15,
    /// two binary64: real, imaginary
    Complex128 = 16,
    /// 8-bit float, 4-bit exponent, finite
    Float8E4m3fn = 17,
    /// 8-bit float, 5-bit exponent
    Float8E5m2 = 18,
    /// 8-bit float, 4-bit exponent, no negative zero
    Float8E4m3fnuz = 19,
    /// 8-bit float, 5-bit exponent, no negative zero
    Float8E5m2fnuz = 20,
    /// 8-bit power of two
    Float8E8m0fnu = 21,
}

impl Dtype {
    /// Every dtype; the one with code `c` stands at index `c`.
    pub const ALL: [Self; 22] = [
        Self::Byte,
        Self::Uint8,
        Self::Int8,
        Self::Uint16,
        Self::Int16,
        Self::Uint32,
        Self::Int32,
        Self::Uint64,
        Self::Int64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
        Self::Bool,
        Self::Complex32,
        Self::Complex64,
        Self::Complex128,
        Self::Float8E4m3fn,
        Self::Float8E5m2,
        Self::Float8E4m3fnuz,
        Self::Float8E5m2fnuz,
        Self::Float8E8m0fnu,
    ];

    /// The dtype with this code, `None` for a number that is not a code.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// Its code.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Byte
            | Self::Uint8
            | Self::Int8
            | Self::Bool
            | Self::Float8E4m3fn
            | Self::Float8E5m2
            | Self::Float8E4m3fnuz
            | Self::Float8E5m2fnuz
            | Self::Float8E8m0fnu => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 | Self::Complex32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// Whether `bytes` bytes are whole elements. Sizes are powers of two: a division would take longer
    /// than all else that is asked of a short operation.
    #[inline]
    pub const fn divides(self, bytes: usize) -> bool {
        bytes & (self.size() - 1) == 0
    }

    /// How many elements `bytes` bytes hold.
    #[inline]
    pub const fn elements(self, bytes: usize) -> usize {
        bytes >> self.size().trailing_zeros()
    }

    /// Its name, as torch writes it without the `torch.`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Byte => "byte",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Uint32 => "uint32",
            Self::Int32 => "int32",
            Self::Uint64 => "uint64",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Bool => "bool",
            Self::Complex32 => "complex32",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::Float8E4m3fn => "float8_e4m3fn",
            Self::Float8E5m2 => "float8_e5m2",
            Self::Float8E4m3fnuz => "float8_e4m3fnuz",
            Self::Float8E5m2fnuz => "float8_e5m2fnuz",
            Self::Float8E8m0fnu => "float8_e8m0fnu",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_to_their_dtype() {
        for (index, dtype) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(dtype.code() as usize, index);
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(Dtype::from_code(22), None);
        assert_eq!(Dtype::from_code(u32::MAX), None);
    }

    #[test]
    fn sizes_are_powers_of_two() {
        for dtype in Dtype::ALL {
            assert!(dtype.size().is_power_of_two());
            assert_eq!(dtype.elements(3 * dtype.size()), 3);
            assert!(dtype.divides(48));
            assert_eq!(dtype.divides(47), dtype.size() == 1);
        }
    }

    #[test]
    fn names_are_distinct() {
        for (index, dtype) in Dtype::ALL.into_iter().enumerate() {
            assert!(
                Dtype::ALL[..index]
                    .iter()
                    .all(|other| other.name() != dtype.name())
            );
        }
    }
}

//! How elements are combined, by name; what each op does to each dtype is `reduction`'s matter.
//! Must not know elements.

use std::fmt;

/// A reduce op. The codes are those of `FC_REDUCE_*` and are sent to peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// a + b
    Sum,
    /// the sum, divided by the size of the group
    Average,
    /// a * b
    Product,
    /// the smaller
    Min,
    /// the larger
    Max,
    /// bitwise and
    BitAnd,
    /// bitwise or
    BitOr,
    /// bitwise exclusive or
    BitXor,
    /// Sum of the inputs, each multiplied by this factor; the same factor on every rank.
    PremulSum(f64),
    /// As `PremulSum`, with a factor that the operation reads when it runs: one element of its dtype,
    /// real for a complex one, at this address in the memory of the engine's device.
    PremulSumAt(usize),
}

impl ReduceOp {
    /// The op with this code, `None` for a number that is not a code. `premul_factor` counts for
    /// `PremulSum` alone.
    pub const fn from_code(code: u32, premul_factor: f64) -> Option<Self> {
        Some(match code {
            0 => Self::Sum,
            1 => Self::Average,
            2 => Self::Product,
            3 => Self::Min,
            4 => Self::Max,
            5 => Self::BitAnd,
            6 => Self::BitOr,
            7 => Self::BitXor,
            8 => Self::PremulSum(premul_factor),
            _ => return None,
        })
    }

    /// Its code.
    pub const fn code(self) -> u32 {
        match self {
            Self::Sum => 0,
            Self::Average => 1,
            Self::Product => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::BitAnd => 5,
            Self::BitOr => 6,
            Self::BitXor => 7,
            Self::PremulSum(_) | Self::PremulSumAt(_) => 8,
        }
    }

    /// Its name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "SUM",
            Self::Average => "AVG",
            Self::Product => "PRODUCT",
            Self::Min => "MIN",
            Self::Max => "MAX",
            Self::BitAnd => "BAND",
            Self::BitOr => "BOR",
            Self::BitXor => "BXOR",
            Self::PremulSum(_) | Self::PremulSumAt(_) => "PREMUL_SUM",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_to_their_op() {
        for code in 0..9 {
            let op = ReduceOp::from_code(code, 0.5);
            assert_eq!(op.map(ReduceOp::code), Some(code));
        }
        assert_eq!(ReduceOp::from_code(8, 0.5), Some(ReduceOp::PremulSum(0.5)));
        assert_eq!(ReduceOp::from_code(9, 0.5), None);
    }
}

//! The fingerprint of a collective as it lies in shared memory: three words, compared as they are.
//! Must not know where they lie.

use ferrocomm_core::call::Operation;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;

use crate::frame::Fingerprint;

const NO_OP: u64 = 255;
const PREMUL_SUM: u64 = 8;
const NO_BYTES: u64 = u64::MAX;
const HAS_ROOT: u64 = 1 << 24;

/// A fingerprint in words; equal when the fingerprints are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Print {
    /// operation, dtype, op and root
    pub(crate) what: u64,
    /// bytes on which ranks must agree
    pub(crate) bytes: u64,
    /// bits of the op's factor
    pub(crate) factor: u64,
}

impl From<Fingerprint> for Print {
    #[inline(always)]
    fn from(from: Fingerprint) -> Self {
        let (op, factor) = from
            .op
            .map_or((NO_OP, 0), |(code, factor)| (u64::from(code), factor));
        let root = from
            .root
            .map_or(0, |root| HAS_ROOT | u64::from(root.get()) << 32);
        Self {
            what: from.operation as u64 | (from.dtype as u64) << 8 | op << 16 | root,
            bytes: from.bytes.unwrap_or(NO_BYTES),
            factor,
        }
    }
}

impl Print {
    /// Whether the op in the word `what` has a factor; if not, that is 0.
    pub(crate) fn has_factor(what: u64) -> bool {
        what >> 16 & 0xff == PREMUL_SUM
    }

    /// The fingerprint, to show it; `None` when the words are none.
    pub(crate) fn fingerprint(self) -> Option<Fingerprint> {
        let byte = |shift: u32| (self.what >> shift & 0xff) as u8;
        Some(Fingerprint {
            operation: Operation::from_code(byte(0))?,
            dtype: Dtype::from_code(u32::from(byte(8)))?,
            op: (u64::from(byte(16)) != NO_OP).then_some((byte(16), self.factor)),
            root: (self.what & HAS_ROOT != 0).then(|| GroupRank::new((self.what >> 32) as u32)),
            bytes: (self.bytes != NO_BYTES).then_some(self.bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_survives_the_journey() {
        for op in [None, Some((3, 0)), Some((8, 0.5f64.to_bits()))] {
            for root in [None, Some(GroupRank::new(0)), Some(GroupRank::new(70_000))] {
                for bytes in [None, Some(0), Some(1 << 40)] {
                    let fingerprint = Fingerprint {
                        operation: Operation::Reduce,
                        dtype: Dtype::Bfloat16,
                        op,
                        root,
                        bytes,
                    };
                    let print = Print::from(fingerprint);
                    assert_eq!(print.fingerprint(), Some(fingerprint));
                }
            }
        }
        assert_eq!(Print::default().fingerprint(), None);
    }
}

//! What travels on a link: a header of 64 bytes, little-endian, and a payload.
//!
//! Small messages carry their payload at once. Larger ones announce themselves, are granted when a
//! receive is there for them, and then follow in chunks, so that no receiver ever buffers more
//! than small messages and no large message keeps others of the link waiting. Must not know
//! sockets or matching.

use ferrocomm_core::call::{Operation, Source};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::reduce_op::ReduceOp;

/// Bytes of a header.
pub(crate) const HEADER: usize = 64;
/// Largest payload that travels with its message.
pub(crate) const EAGER: usize = 64 * 1024;
/// Largest payload of a chunk.
pub(crate) const CHUNK: usize = 256 * 1024;
const MAGIC: u16 = 0xFC02;
/// Where a message says that it is certain.
const CERTAIN: usize = 60;
/// Where the sender's transfer stands.
const TRANSFER: std::ops::Range<usize> = 48..56;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// a message with its payload
    Message = 1,
    /// a message whose payload waits to be granted
    Announce = 2,
    /// the receiver is ready: `transfer` of the sender, `other` of the receiver
    Grant = 3,
    /// bytes of the receiver's `transfer`, from `sequence` on
    Data = 4,
    /// a communicator has failed; the payload says why
    Failure = 5,
    /// whether the receiver has issued collective `sequence` and found that it fits
    Query = 6,
    /// it has, or is still at an earlier one; the payload names ranks whose messages it waits for
    Verdict = 7,
    /// `other`, which the receiver's `transfer` was granted, will not come
    Withdrawn = 8,
    /// the sender's message `transfer` is as if it had never been sent
    TakenBack = 9,
    /// the payload belongs into window `sequence` of the receiver, from byte `transfer` on
    Put = 10,
    /// a signal for window `sequence`
    Signal = 11,
    /// the sender's `transfer` awaits `length` bytes of window `sequence`, from `fingerprint.bytes` on
    Get = 12,
    /// between presences, of a group to come
    Letter = 13,
}

/// What all ranks of a collective must agree on, and both ends of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) operation: Operation,
    pub(crate) dtype: Dtype,
    pub(crate) op: Option<(u8, u64)>,
    pub(crate) root: Option<GroupRank>,
    pub(crate) bytes: Option<u64>,
}

impl Fingerprint {
    /// The op as it is compared: its code and the bits of its factor.
    #[inline(always)]
    pub(crate) fn op(op: &ReduceOp) -> (u8, u64) {
        let factor = if let ReduceOp::PremulSum(factor) = op {
            factor.to_bits()
        } else {
            0
        };
        (u8::try_from(op.code()).unwrap_or(u8::MAX), factor)
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}(dtype {}", self.operation.name(), self.dtype)?;
        if let Some(bytes) = self.bytes {
            write!(f, ", count {}", bytes / self.dtype.size().max(1) as u64)?;
        }
        if let Some((code, factor)) = self.op {
            match ReduceOp::from_code(u32::from(code), f64::from_bits(factor)) {
                // What arrives of a factor tells two apart, and is no number to show.
                Some(ReduceOp::PremulSum(_)) => {
                    write!(f, ", op premul_sum, factor code {factor:04x}")?
                }
                Some(op) => write!(f, ", op {}", op.name())?,
                None => write!(f, ", op {code}")?,
            }
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) comm: CommId,
    pub(crate) fingerprint: Fingerprint,
    /// of the collective; 0 for point-to-point
    pub(crate) sequence: u64,
    /// part of the collective, or the tag
    pub(crate) part: u32,
    /// bytes of the whole message
    pub(crate) length: u64,
    pub(crate) transfer: u64,
    /// bytes behind this header
    pub(crate) payload: u32,
    /// the message is in the stream whole, and so can never be taken back
    pub(crate) certain: bool,
}

const REPORTS: &str = " reports: ";
const NO_OP: u8 = 255;
const NO_BYTES: u64 = u64::MAX;

impl Header {
    /// A header that concerns no message of its own.
    pub(crate) fn control(kind: Kind, comm: CommId) -> Self {
        Self {
            kind,
            comm,
            fingerprint: Fingerprint {
                operation: Operation::Barrier,
                dtype: Dtype::Byte,
                op: None,
                root: None,
                bytes: None,
            },
            sequence: 0,
            part: 0,
            length: 0,
            transfer: 0,
            payload: 0,
            certain: false,
        }
    }

    /// For a grant: the receiver's transfer; for what is withdrawn: the sender's. It shares the field of the sequence number.
    pub(crate) fn other(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let (op, factor) = self.fingerprint.op.unwrap_or((NO_OP, 0));
        let root = self.fingerprint.root.map_or(u32::MAX, GroupRank::get);
        // The factor is compared, not computed with: 16 bits tell two factors apart well enough,
        // and the length that follows is the one that protects memory.
        let what = u64::from(MAGIC)
            | u64::from(self.kind as u8) << 16
            | u64::from(self.fingerprint.operation as u8) << 24
            | u64::from(self.fingerprint.dtype as u8) << 32
            | u64::from(op) << 40
            | u64::from(fold(factor)) << 48;
        let words = [
            what,
            self.comm.0,
            self.sequence,
            u64::from(self.part) | u64::from(root) << 32,
            self.fingerprint.bytes.unwrap_or(NO_BYTES),
            self.length,
            self.transfer,
            u64::from(self.payload) | u64::from(self.certain) << 32,
        ];
        let mut out = [0; HEADER];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads a header; everything in it is bounded before it is believed.
    ///
    /// # Errors
    /// `Transport`, when the bytes are not a header of this version.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self> {
        let garbage = || {
            Error::new(
                ErrorKind::Transport,
                "a connection carried something else than frames",
            )
        };
        if u16::from_le_bytes(field(bytes, 0)) != MAGIC {
            return Err(garbage());
        }
        let kind = match bytes[2] {
            1 => Kind::Message,
            2 => Kind::Announce,
            3 => Kind::Grant,
            4 => Kind::Data,
            5 => Kind::Failure,
            6 => Kind::Query,
            7 => Kind::Verdict,
            8 => Kind::Withdrawn,
            9 => Kind::TakenBack,
            10 => Kind::Put,
            11 => Kind::Signal,
            12 => Kind::Get,
            13 => Kind::Letter,
            _ => return Err(garbage()),
        };
        let payload = u32::from_le_bytes(field(bytes, 56));
        if payload as usize > CHUNK {
            return Err(garbage().got(format_args!("{payload} bytes in one frame")));
        }
        let root = u32::from_le_bytes(field(bytes, 28));
        let common = u64::from_le_bytes(field(bytes, 32));
        let factor = u64::from(u16::from_le_bytes(field(bytes, 6)));
        Ok(Self {
            kind,
            comm: CommId(u64::from_le_bytes(field(bytes, 8))),
            fingerprint: Fingerprint {
                operation: Operation::from_code(bytes[3]).ok_or_else(garbage)?,
                dtype: Dtype::from_code(u32::from(bytes[4])).ok_or_else(garbage)?,
                op: (bytes[5] != NO_OP).then_some((bytes[5], factor)),
                root: (root != u32::MAX).then(|| GroupRank::new(root)),
                bytes: (common != NO_BYTES).then_some(common),
            },
            sequence: u64::from_le_bytes(field(bytes, 16)),
            part: u32::from_le_bytes(field(bytes, 24)),
            length: u64::from_le_bytes(field(bytes, 40)),
            transfer: u64::from_le_bytes(field(bytes, 48)),
            payload,
            certain: bytes[CERTAIN] == 1,
        })
    }
}

/// Whether two headers that were encoded are the same but for the sender's transfer.
pub(crate) fn same_but_transfer(one: &[u8; HEADER], other: &[u8; HEADER]) -> bool {
    one[..TRANSFER.start] == other[..TRANSFER.start] && one[TRANSFER.end..] == other[TRANSFER.end..]
}

/// The fingerprint as it looks after a journey, to compare with one that made it.
pub(crate) fn as_received(fingerprint: Fingerprint) -> Fingerprint {
    let op = fingerprint
        .op
        .map(|(code, factor)| (code, u64::from(fold(factor))));
    Fingerprint { op, ..fingerprint }
}

#[allow(clippy::cast_possible_truncation, reason = "folds 64 bits into 16")]
fn fold(bits: u64) -> u16 {
    (bits ^ bits >> 16 ^ bits >> 32 ^ bits >> 48) as u16
}

fn field<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// A failure as the payload of a frame: kind, texts and ranks, each text with its length.
pub(crate) fn encode_failure(error: &Error, rank: GroupRank) -> Vec<u8> {
    let mut out = vec![error.kind() as u8];
    out.extend(rank.get().to_le_bytes());
    let peers: Vec<u8> = error
        .peer_ranks()
        .iter()
        .take(64)
        .flat_map(|peer| peer.get().to_le_bytes())
        .collect();
    // Passed on by a rank between, it says what the rank that saw it first said, and no more.
    let text = match relayed(error.what()) {
        Some(_) => error.what().to_owned(),
        None => error.to_string(),
    };
    for part in [peers.as_slice(), text.as_bytes()] {
        let part = &part[..part.len().min(8192)];
        out.extend(u32::try_from(part.len()).unwrap_or(0).to_le_bytes());
        out.extend(part);
    }
    out
}

/// Reads what `encode_failure` wrote. What does not fit is read as far as it does.
pub(crate) fn decode_failure(mut bytes: &[u8]) -> Error {
    let mut take = |count: usize| {
        let (head, tail) = bytes.split_at(count.min(bytes.len()));
        bytes = tail;
        head.to_vec()
    };
    let number = |bytes: Vec<u8>| bytes.try_into().map_or(0, u32::from_le_bytes);
    let kind = take(1)
        .first()
        .map_or(ErrorKind::Transport, |code| kind_of(*code));
    let from = GroupRank::new(number(take(4)));
    let length = number(take(4)) as usize;
    let peers: Vec<GroupRank> = take(length)
        .chunks_exact(4)
        .filter_map(|four| {
            four.try_into()
                .ok()
                .map(u32::from_le_bytes)
                .map(GroupRank::new)
        })
        .collect();
    let length = number(take(4)) as usize;
    let text = String::from_utf8_lossy(&take(length)).into_owned();
    let (origin, report) = relayed(&text).unwrap_or((from.get(), &text));
    let error = Error::new(kind, format!("rank {origin}{REPORTS}{report}"));
    if peers.is_empty() {
        error.peers([from])
    } else {
        error.peers(peers)
    }
}

/// The rank that saw a failure first, and what it says, where another passes it on.
fn relayed(text: &str) -> Option<(u32, &str)> {
    let (rank, report) = text.strip_prefix("rank ")?.split_once(REPORTS)?;
    Some((rank.parse().ok()?, report))
}

fn kind_of(code: u8) -> ErrorKind {
    [
        ErrorKind::Timeout,
        ErrorKind::PeerLost,
        ErrorKind::Mismatch,
        ErrorKind::Aborted,
        ErrorKind::Resources,
        ErrorKind::Panic,
        ErrorKind::Interrupted,
    ]
    .into_iter()
    .find(|kind| *kind as u8 == code)
    .unwrap_or(ErrorKind::Transport)
}

/// Whether a receive that listens to `source` takes from `rank`.
pub(crate) fn listens(source: Source, rank: GroupRank) -> bool {
    match source {
        Source::Rank(wanted) => wanted == rank,
        Source::Any => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_is_passed_on_says_everything_once() {
        let name = std::sync::Arc::from("global");
        let rank = GroupRank::new;
        let mut error = Error::new(ErrorKind::Timeout, "ranks did not take part in time")
            .peers([rank(3)])
            .remedy("look at rank 3")
            .communicator(&name)
            .rank(rank(1));
        let report = format!("rank 1 reports: {error}");
        for relay in [1, 2, 0] {
            error = decode_failure(&encode_failure(&error, rank(relay)));
            assert_eq!(error.what(), report);
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert_eq!(error.peer_ranks(), [rank(3)]);
            error = error.communicator(&name).rank(rank(relay + 1));
        }
    }
}

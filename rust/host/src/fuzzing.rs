//! What a fuzzer calls: each function gives arbitrary bytes to one reader of what strangers send,
//! and panics when a promise of that reader is broken. `fuzz/` runs them with a fuzzer, the tests
//! below over the inputs found so far. No part of the crate's interface. Must not know the fuzzer.

use ferrocomm_core::call::Operation;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::ErrorKind;
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::reduce_op::ReduceOp;

pub use crate::bootstrap::fuzzing::{machine, wire};
pub use crate::endpoint::fuzz_greeting as greeting;
use crate::frame::{self, Fingerprint, HEADER, Header, Kind};

/// Bytes that a fuzzer gave, taken off the front; zeros when they are used up.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.take(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// The header of a frame and the payload of a failure.
pub fn frame(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 3 {
        0 => arbitrary_header(&input.array()),
        1 => header_there_and_back(&mut input),
        _ => arbitrary_failure(input.0),
    }
}

fn arbitrary_header(bytes: &[u8; HEADER]) {
    match Header::decode(bytes) {
        Ok(header) => {
            assert!(header.payload as usize <= frame::CHUNK, "{header:?}");
            same(&header, &header);
            assert!(header.fingerprint.to_string().len() < 500);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Transport);
            assert!(!error.what().is_empty());
        }
    }
}

/// Asserts that `sent` arrives as `expected`.
fn same(sent: &Header, expected: &Header) {
    let Ok(got) = Header::decode(&sent.encode()) else {
        panic!("a header is not read back: {sent:?}");
    };
    assert_eq!(format!("{got:?}"), format!("{expected:?}"));
}

fn header_there_and_back(input: &mut Input<'_>) {
    const KINDS: [Kind; 13] = [
        Kind::Message,
        Kind::Announce,
        Kind::Grant,
        Kind::Data,
        Kind::Failure,
        Kind::Query,
        Kind::Verdict,
        Kind::Withdrawn,
        Kind::TakenBack,
        Kind::Put,
        Kind::Signal,
        Kind::Get,
        Kind::Letter,
    ];
    let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
    let mut header = Header::control(kind, CommId(input.u64()));
    let operation = Operation::ALL[usize::from(input.byte()) % Operation::ALL.len()];
    let dtype = Dtype::ALL[usize::from(input.byte()) % Dtype::ALL.len()];
    let op = ReduceOp::from_code(input.u32() % 16, f64::from_bits(input.u64()));
    // The largest rank and length stand for "none".
    let root = Some(input.u32()).filter(|root| *root != u32::MAX);
    let length = Some(input.u64()).filter(|length| *length != u64::MAX);
    header.fingerprint = Fingerprint {
        operation,
        dtype,
        op: op.as_ref().map(Fingerprint::op),
        root: root.map(GroupRank::new),
        bytes: length,
    };
    header.sequence = input.u64();
    header.part = input.u32();
    header.length = input.u64();
    header.transfer = input.u64();
    header.payload = input.u32() % (frame::CHUNK as u32 + 1);
    header.certain = input.byte() % 2 == 1;
    let mut expected = header;
    expected.fingerprint = frame::as_received(header.fingerprint);
    same(&header, &expected);
}

fn arbitrary_failure(bytes: &[u8]) {
    let error = frame::decode_failure(bytes);
    assert!(error.what().len() <= 3 * bytes.len() + 100, "it grows");
    assert!(!error.what().is_empty() && !error.peer_ranks().is_empty());
    let payload = frame::encode_failure(&error, GroupRank::new(1));
    assert!(payload.len() < frame::EAGER, "{} bytes", payload.len());
    let again = frame::decode_failure(&payload);
    assert_eq!(again.kind(), error.kind());
    let named = error.peer_ranks().len().min(64);
    assert_eq!(again.peer_ranks(), &error.peer_ranks()[..named]);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs `target` over the inputs that are kept for it.
    fn replay(name: &str, target: fn(&[u8])) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let mut inputs = 0;
        for entry in std::fs::read_dir(root.join(name)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            target(&std::fs::read(path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "no inputs for {name}");
    }

    #[test]
    fn inputs_that_were_found_keep_the_promises() {
        replay("frame", super::frame);
        replay("wire", super::wire);
        replay("machine", super::machine);
        replay("greeting", super::greeting);
    }
}

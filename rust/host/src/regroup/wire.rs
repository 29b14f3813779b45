//! How members write what they tell one another. Integers are little-endian; what comes in may be
//! garbage, and is then nothing. Must not know what words mean.

use ferrocomm_core::ids::GroupRank;

use super::handle::PresenceId;
use super::machine::Word;
use crate::frame::{decode_failure, encode_failure};

/// A word with those it concerns.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) to: PresenceId,
    pub(super) from: PresenceId,
    pub(super) uuid: i64,
    pub(super) word: Word,
}

const PROPOSAL: u8 = 1;
const SETTLED: u8 = 2;
const GAVE_UP: u8 = 3;
const FAILED: u8 = 4;

impl Letter {
    /// Its bytes; `rank` is the sender's in the group to come, for the failure it may report.
    pub(super) fn encode(&self, rank: GroupRank) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.to.0.to_le_bytes());
        out.extend(self.from.0.to_le_bytes());
        out.extend(self.uuid.to_le_bytes());
        match &self.word {
            Word::Proposal(ids) => {
                out.push(PROPOSAL);
                ids.iter().for_each(|id| out.extend(id.0.to_le_bytes()));
            }
            Word::Settled => out.push(SETTLED),
            Word::GaveUp => out.push(GAVE_UP),
            Word::Failed(error) => {
                out.push(FAILED);
                out.extend(encode_failure(error, rank));
            }
        }
        out
    }

    /// The letter these bytes are.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (to, rest) = bytes.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (uuid, rest) = rest.split_first_chunk()?;
        let (tag, body) = rest.split_first()?;
        let word = match *tag {
            PROPOSAL => {
                let (ids, []) = body.as_chunks() else {
                    return None;
                };
                let id = |bytes: &[u8; 8]| PresenceId(u64::from_le_bytes(*bytes));
                Word::Proposal(ids.iter().map(id).collect())
            }
            SETTLED if body.is_empty() => Word::Settled,
            GAVE_UP if body.is_empty() => Word::GaveUp,
            FAILED => Word::Failed(decode_failure(body)),
            _ => return None,
        };
        Some(Self {
            to: PresenceId(u64::from_le_bytes(*to)),
            from: PresenceId(u64::from_le_bytes(*from)),
            uuid: i64::from_le_bytes(*uuid),
            word,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrocomm_core::error::{Error, ErrorKind};

    #[test]
    fn a_letter_is_read_as_it_was_written() {
        let failure = Error::new(ErrorKind::Timeout, "late").peers([GroupRank::new(2)]);
        for word in [
            Word::Proposal(vec![PresenceId(3), PresenceId(u64::MAX)]),
            Word::Settled,
            Word::GaveUp,
            Word::Failed(failure),
        ] {
            let letter = Letter {
                to: PresenceId(1),
                from: PresenceId(2),
                uuid: -5,
                word,
            };
            let bytes = letter.encode(GroupRank::new(7));
            let read = Letter::decode(&bytes).unwrap();
            assert_eq!(
                (read.to, read.from, read.uuid),
                (letter.to, letter.from, -5)
            );
            match (read.word, letter.word) {
                (Word::Failed(read), Word::Failed(_)) => {
                    assert_eq!(read.kind(), ErrorKind::Timeout);
                    assert!(read.what().starts_with("rank 7 reports: "), "{read}");
                    assert_eq!(read.peer_ranks(), [GroupRank::new(2)]);
                }
                (read, written) => assert_eq!(format!("{read:?}"), format!("{written:?}")),
            }
            for end in 0..25.min(bytes.len()) {
                let part = Letter::decode(&bytes[..end]);
                assert!(part.is_none(), "{end}");
            }
        }
        assert!(Letter::decode(&[9; 40]).is_none(), "an unknown word");
        assert!(Letter::decode(&[1; 30]).is_none(), "half an id");
    }
}

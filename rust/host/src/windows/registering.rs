//! What ranks tell one another when a window begins and ends: one all_gather each.
//!
//! Must not know how a window is reached or used.

use std::time::Duration;

use ferrocomm_core::call::{Call, Collective, Mode, Region, Regions, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::GroupRank;

use super::handle::Site;
use crate::pulling::Readable;

/// Words of a record as it travels.
const WORDS: usize = 8;

/// What a record is for: bits that nothing else begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Matter {
    Begin = 0x4643_5749_4e42_4547,
    End = 0x4643_5749_4e45_4e44,
}

/// What a rank tells of its part of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) bytes: usize,
    pub(super) address: u64,
    /// where its board lies; 0: where nobody else reaches it
    pub(super) board: u64,
    pub(super) who: Readable,
    /// whether it reaches others directly
    pub(super) reaches: bool,
}

const REACHES: u64 = 1 << 32;

impl Record {
    fn encode(&self, matter: Matter, number: u64) -> [u64; WORDS] {
        let reaches = if self.reaches { REACHES } else { 0 };
        [
            matter as u64,
            number,
            self.bytes as u64,
            self.address,
            self.board,
            u64::from(self.who.pid) | reaches,
            self.who.probe,
            self.who.segments,
        ]
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "the halves are taken apart"
    )]
    fn decode(words: &[u64], matter: Matter, number: u64) -> Option<Self> {
        let fits = words.len() == WORDS && words[0] == matter as u64 && words[1] == number;
        fits.then(|| Self {
            bytes: words[2] as usize,
            address: words[3],
            board: words[4],
            who: Readable {
                pid: words[5] as u32,
                probe: words[6],
                segments: words[7],
            },
            reaches: words[5] & REACHES != 0,
        })
    }
}

/// Tells all ranks `own`, and returns what they told, in rank order. `number`: of the window.
///
/// # Errors
/// As an all_gather fails; `Mismatch` when a rank does something else to a window, or to another.
pub(super) fn exchange(
    at: &Site,
    (matter, number): (Matter, u64),
    own: &Record,
    (sequence, timeout): (u64, Duration),
    issued: &mut dyn FnMut(),
) -> Result<Vec<Record>> {
    let ranks = at.members.len();
    let mut input = own.encode(matter, number);
    let mut output = vec![0_u64; WORDS * ranks];
    let region = |words: &mut [u64]| Region {
        address: words.as_mut_ptr() as usize,
        bytes: size_of_val(words),
    };
    let call = Call {
        task: Task::Collective(Collective::AllGather {
            input: region(&mut input),
            outputs: Regions::Equal {
                whole: region(&mut output),
                each: size_of::<[u64; WORDS]>(),
            },
        }),
        dtype: Dtype::Uint64,
        sequence,
        timeout,
        mode: Mode::Sync,
    };
    let work = at.progress.with(|core| core.issue(at.comm, call));
    issued();
    let work = work?;
    let outcome = at.progress.wait_for(&work, None);
    if !work.is_complete() {
        // Interrupted: the words are about to go.
        let error = Error::new(
            ErrorKind::Aborted,
            "the registration of a window was given up",
        );
        at.progress.with(|core| core.fail_here(at.comm, error));
    }
    outcome?;
    let records =
        output
            .chunks_exact(WORDS)
            .zip(0_u32..)
            .map(|(words, rank)| {
                Record::decode(words, matter, number).ok_or_else(|| {
                    Error::new(ErrorKind::Mismatch, "ranks called different operations")
                .expected("the same registration or deregistration of a window on all ranks")
                .peers([GroupRank::new(rank)])
                .remedy("register and deregister the same windows in the same order on all ranks")
                })
            });
    let records = records.collect::<Result<Vec<_>>>();
    if let Err(error) = &records {
        at.progress.with(|core| core.fail(at.comm, error.clone()));
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_arrives_as_it_was_and_for_its_matter_alone() {
        let record = Record {
            bytes: 12,
            address: 4096,
            board: 8192,
            who: Readable {
                pid: 77,
                probe: 1,
                segments: 2,
            },
            reaches: true,
        };
        let words = record.encode(Matter::Begin, 5);
        assert_eq!(Record::decode(&words, Matter::Begin, 5), Some(record));
        assert_eq!(Record::decode(&words, Matter::Begin, 6), None);
        assert_eq!(Record::decode(&words, Matter::End, 5), None);
    }
}

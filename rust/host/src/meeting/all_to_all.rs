//! All-to-all: everyone puts a part for every rank and takes the parts for itself.
//!
//! Ranks know the lengths of their own parts only. The first payload starts with the longest part of
//! its rank, from which all learn how many rounds there are, and a length per receiver; equal parts
//! need no list, and travel with the flag when they are short. Must not know who waits, or for how
//! long.

use ferrocomm_core::Result;
use ferrocomm_core::call::{Region, Regions};
use ferrocomm_core::error::{Error, ErrorKind};
use ferrocomm_core::ids::GroupRank;

use super::places::{LINE, hand_over, overlap, part, put, rounds, take, worth_pulling};
use super::{Needs, Plan, Round, Scene};
use crate::arena::INLINE;

/// Bytes of the word that says how long parts are.
const WORD: usize = 8;
/// In that word: all parts have the length it gives.
const EQUAL: u64 = 1 << 63;
/// In that word: parts are read where they lie; the slot lists an address and a length for each rank.
const DIRECT: u64 = 1 << 62;
const LENGTH: u64 = DIRECT - 1;

pub(super) struct AllToAll {
    scene: Scene,
    inputs: Regions,
    outputs: Regions,
    /// the inputs, when outputs overlap them
    copy: Vec<u8>,
    longest: usize,
    rounds: u64,
}

impl AllToAll {
    pub(super) fn new(scene: Scene, inputs: Regions, outputs: Regions) -> Self {
        let ranks = || 0..scene.ranks;
        let covered = ranks().any(|to| {
            ranks().any(|from| {
                let (input, output) = (inputs.of(from), outputs.of(to));
                let same = from == to && from == scene.me && input.address == output.address;
                !same && overlap(input, output)
            })
        });
        let longest = ranks().map(|rank| inputs.of(rank).bytes).max().unwrap_or(0);
        let mut this = Self {
            scene,
            inputs,
            outputs,
            copy: Vec::new(),
            longest,
            rounds: 1,
        };
        if covered {
            this.copy_inputs();
        }
        this
    }

    /// Outputs that overlap inputs would overwrite what later rounds put.
    fn copy_inputs(&mut self) {
        self.copy = vec![0; self.inputs.bytes()];
        let mut at = self.copy.as_mut_ptr() as usize;
        let mut list = Vec::with_capacity(self.scene.ranks);
        for rank in 0..self.scene.ranks {
            let input = self.inputs.of(rank);
            let place = Region {
                address: at,
                bytes: input.bytes,
            };
            // SAFETY: the input belongs to this call, and the copy is as long as all inputs.
            unsafe { hand_over(input, place) };
            at += input.bytes;
            list.push(place);
        }
        self.inputs = Regions::List(list);
    }

    fn word(&self) -> u64 {
        let equal = (0..self.scene.ranks).all(|rank| self.inputs.of(rank).bytes == self.longest);
        let direct = worth_pulling(self.scene, self.longest);
        self.longest as u64 | if equal { EQUAL } else { 0 } | if direct { DIRECT } else { 0 }
    }

    fn put_places(&self, round: &Round<'_>) {
        let list = round.mine(self.scene.slot).cast::<u64>();
        for rank in self.scene.others() {
            let input = self.inputs.of(rank);
            // SAFETY: slots are aligned and hold two words for every rank; this rank alone writes
            // its own now.
            unsafe {
                list.add(2 * rank).write(input.address as u64);
                list.add(2 * rank + 1).write(input.bytes as u64);
            }
        }
    }

    fn pull(&self, round: &Round<'_>, rank: usize) -> Result<()> {
        let list = round.of(rank, self.scene.slot).cast::<u64>();
        let me = self.scene.me;
        // SAFETY: as above; `rank` has posted and writes there no more.
        let (address, length) = unsafe { (list.add(2 * me).read(), list.add(2 * me + 1).read()) };
        let output = self.outputs.of(rank);
        if length != output.bytes as u64 {
            return Err(self.wrong_length(rank, length));
        }
        // SAFETY: the output belongs to this call.
        unsafe { round.pull(rank, address, output) }
    }

    fn carried(&self, word: u64, index: u64) -> Carried {
        Carried::new(self.scene, word, index)
    }

    fn wrong_length(&self, rank: usize, got: u64) -> Error {
        let peer = GroupRank::new(u32::try_from(rank).unwrap_or(u32::MAX));
        Error::new(
            ErrorKind::Mismatch,
            "a rank sends another number of bytes than this one receives from it",
        )
        .got(format_args!("{got} bytes from rank {rank}"))
        .expected(format_args!("{} bytes", self.outputs.of(rank).bytes))
        .peers([peer])
        .remedy("give every rank the split sizes that fit those of the others")
    }
}

/// How a payload is laid out, known from its first word.
struct Carried {
    /// before the first part
    head: usize,
    stride: usize,
    /// bytes of the whole
    together: usize,
    /// of every rank's part that this payload carries
    start: usize,
}

impl Carried {
    fn new(scene: Scene, word: u64, index: u64) -> Self {
        let longest = (word & LENGTH) as usize;
        let list = if word & EQUAL == 0 {
            WORD * scene.ranks
        } else {
            0
        };
        if list == 0 && WORD + longest.saturating_mul(scene.ranks) <= INLINE {
            return Self {
                head: WORD,
                stride: longest,
                together: INLINE,
                start: 0,
            };
        }
        // A list of lengths takes the room of a first word of its own and lies in the slot.
        let head = (WORD * scene.ranks).next_multiple_of(LINE);
        let stride = (scene.slot - head) / scene.ranks / LINE * LINE;
        Self {
            head,
            stride,
            together: scene.slot,
            start: index as usize * stride,
        }
    }

    /// How many rounds it takes until the parts of a rank with this word have moved. Of parts that
    /// are read where they lie, the second tells that all have.
    fn rounds(scene: Scene, word: u64) -> u64 {
        if word & DIRECT != 0 {
            return 2;
        }
        let longest = (word & LENGTH) as usize;
        let head = (WORD * scene.ranks).next_multiple_of(LINE);
        rounds(longest, (scene.slot - head) / scene.ranks / LINE * LINE)
    }
}

impl Plan for AllToAll {
    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn needs(&self, _: u64) -> Needs {
        Needs::All
    }

    fn put(&mut self, round: &Round<'_>) {
        let word = self.word();
        let carried = self.carried(word, round.index);
        // SAFETY: inline payloads and slots are aligned to 8, this rank alone writes its own now,
        // and the layout keeps the word, the list and every part inside.
        unsafe {
            round.mine(WORD).cast::<u64>().write(word);
            if word & DIRECT != 0 {
                if round.index == 0 {
                    self.put_places(round);
                }
                return;
            }
            let mine = round.mine(carried.together);
            for rank in self.scene.others() {
                let input = self.inputs.of(rank);
                if word & EQUAL == 0 && round.index == 0 {
                    mine.cast::<u64>().add(rank).write(input.bytes as u64);
                }
                let piece = part(input, carried.start, carried.stride);
                put(round, piece, mine.add(carried.head + rank * carried.stride));
            }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        let me = self.scene.me;
        if round.index == 0 {
            // SAFETY: both belong to this call, and are the same or apart.
            unsafe { hand_over(self.inputs.of(me), self.outputs.of(me)) }
            self.rounds = Carried::rounds(self.scene, self.word());
        }
        for rank in self.scene.others() {
            // SAFETY: `rank` has posted: its word is there, and it writes its payload no more.
            let word = unsafe { round.of(rank, WORD).cast::<u64>().read() };
            if round.index == 0 {
                self.rounds = self.rounds.max(Carried::rounds(self.scene, word));
            }
            if word & DIRECT != 0 {
                if round.index == 0 {
                    self.pull(round, rank)?;
                }
                continue;
            }
            let carried = self.carried(word, round.index);
            let from = round.of(rank, carried.together);
            if round.index == 0 {
                let length = if word & EQUAL == 0 {
                    // SAFETY: as above; the list has a length for every rank.
                    unsafe { from.cast::<u64>().add(me).read() }
                } else {
                    word & LENGTH
                };
                if length != self.outputs.of(rank).bytes as u64 {
                    return Err(self.wrong_length(rank, length));
                }
            }
            let piece = part(self.outputs.of(rank), carried.start, carried.stride);
            // SAFETY: as above.
            unsafe {
                let from = from.add(carried.head + me * carried.stride);
                round.look(from, piece.bytes);
                take(round, from, piece);
            }
        }
        Ok(())
    }
}

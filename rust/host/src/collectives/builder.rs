//! Writes a program step by step: numbers transfers, lays out scratch memory, leaves out what does
//! nothing. Must not know any algorithm.

use std::ops::Range;

use ferrocomm_core::call::Region;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduction::Reduction;

use crate::program::{Operand, Place, Program, Step};

/// Scratch places start at multiples of a cache line: aligned for every dtype, and two places never
/// share a line.
const LINE: usize = 64;

/// `bytes` bytes of `place` from `offset` on.
pub(super) fn slice(place: Place, offset: usize, bytes: usize) -> Place {
    match place {
        Place::Client(region) => Place::Client(region.slice(offset, bytes)),
        Place::Scratch {
            offset: start,
            bytes: whole,
        } => {
            debug_assert!(offset + bytes <= whole);
            Place::Scratch {
                offset: start + offset,
                bytes,
            }
        }
    }
}

/// Length of `place`.
pub(super) fn bytes(place: Place) -> usize {
    match place {
        Place::Client(region) => region.bytes,
        Place::Scratch { bytes, .. } => bytes,
    }
}

fn overlap(a: Region, b: Region) -> bool {
    a.bytes > 0 && b.bytes > 0 && a.address < b.address + b.bytes && b.address < a.address + a.bytes
}

/// A program in the making.
#[derive(Default)]
pub(super) struct Builder {
    program: Program,
    transfers: u32,
    /// by rank: messages to it, and from it, so far
    parts: Vec<[u32; 2]>,
}

impl Builder {
    /// Number of transfers started so far: the number of the next one.
    pub(super) fn mark(&self) -> u32 {
        self.transfers
    }

    /// Starts a send. The messages to one rank are numbered in the order in which they are started,
    /// and that rank expects them in this order.
    pub(super) fn send(&mut self, to: usize, from: Place) {
        let part = self.next_part(to, 0);
        self.program.steps.push(Step::Send {
            to: rank(to),
            part,
            from,
        });
        self.transfers += 1;
    }

    /// Starts to receive the next message of a rank.
    pub(super) fn recv(&mut self, from: usize, into: Place) {
        let part = self.next_part(from, 1);
        self.program.steps.push(Step::Recv {
            from: rank(from),
            part,
            into,
        });
        self.transfers += 1;
    }

    fn next_part(&mut self, peer: usize, direction: usize) -> u32 {
        if self.parts.len() <= peer {
            self.parts.resize(peer + 1, [0; 2]);
        }
        let part = self.parts[peer][direction];
        self.parts[peer][direction] += 1;
        part
    }

    /// Waits for these transfers.
    pub(super) fn wait(&mut self, transfers: Range<u32>) {
        if !transfers.is_empty() {
            self.program.steps.push(Step::Wait(transfers));
        }
    }

    /// Copies, unless there is nothing to copy or it is in place already.
    pub(super) fn copy(&mut self, from: Place, to: Place) {
        if from != to && bytes(to) > 0 {
            self.program.steps.push(Step::Copy { from, to });
        }
    }

    /// Waits for every transfer started so far.
    pub(super) fn wait_all(&mut self) {
        self.wait(0..self.transfers);
    }

    /// Combines `operands`, in rank order, into `output`. An operand that is the output itself is
    /// recognised; others are apart from it.
    pub(super) fn reduce(&mut self, reduction: Reduction, operands: &[Place], output: Place) {
        if bytes(output) == 0 {
            return;
        }
        let operands = operands
            .iter()
            .map(|&place| {
                if place == output {
                    Operand::Output
                } else {
                    Operand::At(place)
                }
            })
            .collect();
        self.program.steps.push(Step::Reduce {
            reduction,
            operands,
            output,
        });
    }

    /// New scratch memory.
    pub(super) fn scratch(&mut self, bytes: usize) -> Place {
        let offset = self.program.scratch;
        self.program.scratch += bytes.next_multiple_of(LINE);
        Place::Scratch { offset, bytes }
    }

    /// A place with the contents of `input` that is apart from `outputs`, or exactly `own`, where
    /// the input's contents belong in the end. Memory the client lends twice is copied aside first,
    /// since an output may be written before the input was sent.
    pub(super) fn apart(
        &mut self,
        input: Region,
        own: Region,
        outputs: impl IntoIterator<Item = Region>,
    ) -> Place {
        let conflict = |output: Region| overlap(input, output) && output != own;
        let shifted = overlap(input, own) && input != own;
        if !shifted && !outputs.into_iter().any(conflict) {
            return Place::Client(input);
        }
        let aside = self.scratch(input.bytes);
        self.copy(Place::Client(input), aside);
        aside
    }

    /// The program: it ends when every transfer has.
    pub(super) fn finish(mut self) -> Program {
        self.wait_all();
        self.program
    }
}

fn rank(index: usize) -> GroupRank {
    // Ranks come from a `GroupRank` and a size that fits one.
    GroupRank::new(index as u32)
}

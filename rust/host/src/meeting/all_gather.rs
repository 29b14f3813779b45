//! All-gather: everyone puts its part and takes those of the others; or reads their memory. Must
//! not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::{Region, Regions};

use super::places::{hand_over, overlap, part, put, rounds, take, worth_pulling};
use super::{Needs, Plan, Round, SETTLED, Scene};

/// Pieces are so long at most, so that they stay in the cache.
const PIECE: usize = 128 << 10;

pub(super) struct AllGather {
    scene: Scene,
    /// where the own part is read from
    input: Region,
    outputs: Regions,
    step: usize,
    longest: usize,
    /// everyone reads where the inputs lie
    direct: bool,
}

impl AllGather {
    pub(super) fn new(scene: Scene, input: Region, outputs: Regions) -> Self {
        let own = outputs.of(scene.me);
        // The own part is in its place at once: whatever else overlaps the input may then be taken.
        // SAFETY: both belong to this call.
        unsafe { hand_over(input, own) };
        let covered = scene.others().any(|rank| overlap(input, outputs.of(rank)));
        let longest = (0..scene.ranks)
            .map(|rank| outputs.of(rank).bytes)
            .max()
            .unwrap_or(0);
        Self {
            scene,
            input: if covered { own } else { input },
            outputs,
            step: if scene.near && longest >= SETTLED {
                scene.slot.min(SETTLED)
            } else {
                scene.slot.min(PIECE)
            },
            longest,
            direct: worth_pulling(scene, longest),
        }
    }
}

impl Plan for AllGather {
    fn rounds(&self) -> u64 {
        if self.direct {
            return 2;
        }
        rounds(self.longest, self.step)
    }

    fn needs(&self, _: u64) -> Needs {
        Needs::All
    }

    fn put(&mut self, round: &Round<'_>) {
        if self.direct {
            if round.index == 0 {
                round.put_addresses([self.input.address as u64].into_iter());
            }
            return;
        }
        let piece = part(self.input, round.index as usize * self.step, self.step);
        // SAFETY: the input belongs to this call; this rank alone writes its payload now.
        unsafe { put(round, piece, round.mine(piece.bytes)) }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        if self.direct {
            // In the second round all have read.
            for rank in self.scene.others().filter(|_| round.index == 0) {
                let address = round.address_of(rank, 0, 1);
                // SAFETY: the outputs belong to this call.
                unsafe { round.pull(rank, address, self.outputs.of(rank))? }
            }
            return Ok(());
        }
        for rank in self.scene.others() {
            let start = round.index as usize * self.step;
            let piece = part(self.outputs.of(rank), start, self.step);
            // SAFETY: as above; `rank` has posted and writes there no more.
            unsafe {
                let from = round.of(rank, piece.bytes);
                round.look(from, piece.bytes);
                take(round, from, piece);
            }
        }
        Ok(())
    }
}

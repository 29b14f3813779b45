//! Gather: everyone puts its part, the root takes them; or the root reads the memory of all. Must
//! not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::{Region, Regions};

use super::places::{hand_over, overlap, part, put, rounds, take, worth_pulling};
use super::{Needs, Plan, Round, Scene};

pub(super) struct Gather {
    scene: Scene,
    input: Region,
    /// on the root alone
    outputs: Option<Regions>,
    /// the own part, moved already because its place is needed for another
    moved: bool,
    root: usize,
    am_root: bool,
    /// the root reads where the inputs lie
    direct: bool,
}

impl Gather {
    pub(super) fn new(scene: Scene, input: Region, outputs: Option<Regions>, root: usize) -> Self {
        let outputs = outputs.filter(|_| scene.me == root);
        let moved = outputs.as_ref().is_some_and(|outputs| {
            let covered = scene.others().any(|rank| overlap(input, outputs.of(rank)));
            if covered {
                // SAFETY: both belong to this call.
                unsafe { hand_over(input, outputs.of(scene.me)) }
            }
            covered
        });
        Self {
            scene,
            input,
            outputs,
            moved,
            root,
            am_root: scene.me == root,
            direct: worth_pulling(scene, input.bytes),
        }
    }
}

impl Plan for Gather {
    fn rounds(&self) -> u64 {
        if self.direct {
            return 2;
        }
        rounds(self.input.bytes, self.scene.slot)
    }

    fn needs(&self, index: u64) -> Needs {
        match (self.direct && index == 1, self.am_root) {
            // Everyone keeps its input until the root has read it.
            (true, false) => Needs::Only(self.root),
            (true, true) | (false, false) => Needs::Nobody,
            (false, true) => Needs::All,
        }
    }

    fn leads(&self, index: u64) -> bool {
        self.am_root && self.direct && index == 1
    }

    fn put(&mut self, round: &Round<'_>) {
        if self.direct {
            if !self.am_root && round.index == 0 {
                round.put_addresses([self.input.address as u64].into_iter());
            }
        } else if !self.am_root {
            let start = round.index as usize * self.scene.slot;
            let piece = part(self.input, start, self.scene.slot);
            // SAFETY: the input belongs to this call; this rank alone writes its payload now.
            unsafe { put(round, piece, round.mine(piece.bytes)) }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        let Some(outputs) = &self.outputs else {
            return Ok(());
        };
        if round.index == 0 && !self.moved {
            // SAFETY: both belong to this call.
            unsafe { hand_over(self.input, outputs.of(self.scene.me)) }
        }
        if self.direct {
            for rank in self.scene.others().filter(|_| round.index == 0) {
                let address = round.address_of(rank, 0, 1);
                // SAFETY: the outputs belong to this call.
                unsafe { round.pull(rank, address, outputs.of(rank))? }
            }
            return Ok(());
        }
        for rank in self.scene.others() {
            let start = round.index as usize * self.scene.slot;
            let piece = part(outputs.of(rank), start, self.scene.slot);
            // SAFETY: as above; `rank` has posted and writes there no more.
            unsafe { take(round, round.of(rank, piece.bytes), piece) }
        }
        Ok(())
    }
}

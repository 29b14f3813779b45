//! Scatter: the root puts a part for everyone, who takes it; or all read the root's memory. Must
//! not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::{Region, Regions};

use super::places::{LINE, hand_over, part, put, rounds, take, worth_pulling};
use super::{Needs, Plan, Round, Scene};
use crate::arena::INLINE;

pub(super) struct Scatter {
    scene: Scene,
    /// on the root alone
    inputs: Option<Regions>,
    output: Region,
    root: usize,
    step: usize,
    /// everyone reads where its part lies
    direct: bool,
}

impl Scatter {
    pub(super) fn new(scene: Scene, inputs: Option<Regions>, output: Region, root: usize) -> Self {
        Self {
            scene,
            inputs: inputs.filter(|_| scene.me == root),
            output,
            root,
            step: stride(scene, output.bytes),
            direct: worth_pulling(scene, output.bytes),
        }
    }

    fn together(&self) -> usize {
        self.step * self.scene.ranks
    }
}

/// Bytes each rank has in a payload that holds a part of up to `longest` bytes for every rank.
pub(super) fn stride(scene: Scene, longest: usize) -> usize {
    if longest * scene.ranks <= INLINE {
        return longest;
    }
    let room = scene.slot / scene.ranks / LINE * LINE;
    room.min(longest.next_multiple_of(LINE))
}

impl Plan for Scatter {
    fn rounds(&self) -> u64 {
        if self.direct {
            return 2;
        }
        rounds(self.output.bytes, self.step)
    }

    fn needs(&self, index: u64) -> Needs {
        match (self.direct && index == 1, self.inputs.is_some()) {
            // The root keeps its buffers until all have read them.
            (true, true) => Needs::All,
            (true, false) | (false, true) => Needs::Nobody,
            (false, false) => Needs::Only(self.root),
        }
    }

    fn leads(&self, index: u64) -> bool {
        self.inputs.is_some() && !(self.direct && index == 1)
    }

    fn put(&mut self, round: &Round<'_>) {
        let Some(inputs) = &self.inputs else { return };
        if self.direct {
            if round.index == 0 {
                let ranks = 0..self.scene.ranks;
                round.put_addresses(ranks.map(|rank| inputs.of(rank).address as u64));
            }
            return;
        }
        let mine = round.mine(self.together());
        for rank in self.scene.others() {
            let piece = part(inputs.of(rank), round.index as usize * self.step, self.step);
            // SAFETY: the inputs belong to this call; the payload has a stride for every rank, and
            // this rank alone writes it now.
            unsafe { put(round, piece, mine.add(rank * self.step)) }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        match &self.inputs {
            Some(inputs) if round.index == 0 => {
                // SAFETY: both belong to this call.
                unsafe { hand_over(inputs.of(self.root), self.output) }
            }
            Some(_) => {}
            None if self.direct => {
                if round.index == 0 {
                    let address = round.address_of(self.root, self.scene.me, self.scene.ranks);
                    // SAFETY: the output belongs to this call.
                    unsafe { round.pull(self.root, address, self.output)? }
                }
            }
            None => {
                let piece = part(self.output, round.index as usize * self.step, self.step);
                let from = round.of(self.root, self.together());
                // SAFETY: the root has posted; its payload has a stride for every rank.
                unsafe { take(round, from.add(self.scene.me * self.step), piece) }
            }
        }
        Ok(())
    }
}

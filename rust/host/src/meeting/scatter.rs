//! Scatter: the root puts a part for everyone, who takes it.

use ferrocomm_core::Result;
use ferrocomm_core::call::{Region, Regions};

use super::places::{LINE, hand_over, part, put, rounds, take};
use super::{Needs, Plan, Round, Scene};
use crate::arena::INLINE;

pub(super) struct Scatter {
    scene: Scene,
    /// on the root alone
    inputs: Option<Regions>,
    output: Region,
    root: usize,
    step: usize,
}

impl Scatter {
    pub(super) fn new(scene: Scene, inputs: Option<Regions>, output: Region, root: usize) -> Self {
        Self {
            scene,
            inputs: inputs.filter(|_| scene.me == root),
            output,
            root,
            step: stride(scene, output.bytes),
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
        rounds(self.output.bytes, self.step)
    }

    fn needs(&self, _: u64) -> Needs {
        if self.inputs.is_some() {
            Needs::Nobody
        } else {
            Needs::Only(self.root)
        }
    }

    fn put(&mut self, round: &Round<'_>) {
        let Some(inputs) = &self.inputs else { return };
        let mine = round.mine(self.together());
        for rank in self.scene.others() {
            let piece = part(inputs.of(rank), round.index as usize * self.step, self.step);
            // SAFETY: the inputs belong to this call; the payload has a stride for every rank, and
            // this rank alone writes it now.
            unsafe { put(piece, mine.add(rank * self.step)) }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        match &self.inputs {
            Some(inputs) if round.index == 0 => {
                // SAFETY: both belong to this call.
                unsafe { hand_over(inputs.of(self.root), self.output) }
            }
            Some(_) => {}
            None => {
                let piece = part(self.output, round.index as usize * self.step, self.step);
                let from = round.of(self.root, self.together());
                // SAFETY: the root has posted; its payload has a stride for every rank.
                unsafe { take(from.add(self.scene.me * self.step), piece) }
            }
        }
        Ok(())
    }
}

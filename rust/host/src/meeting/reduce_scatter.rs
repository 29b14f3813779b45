//! Reduce-scatter: everyone combines its own slice, of what the others put or of their memory. Must
//! not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::{Region, Regions};
use ferrocomm_core::reduction::Reduction;

use super::places::{Target, combine, overlap, part, pull_and_combine, put, rounds, worth_pulling};
use super::scatter::stride;
use super::{Needs, Plan, Round, Scene};

pub(super) struct ReduceScatter {
    scene: Scene,
    inputs: Regions,
    output: Target,
    reduction: Reduction,
    step: usize,
    longest: usize,
    /// everyone reads where the inputs lie
    direct: bool,
}

impl ReduceScatter {
    pub(super) fn new(scene: Scene, inputs: Regions, output: Region, reduction: Reduction) -> Self {
        let own = inputs.of(scene.me);
        let taken = (own.address != output.address && overlap(own, output))
            || scene.others().any(|rank| overlap(inputs.of(rank), output));
        let longest = (0..scene.ranks)
            .map(|rank| inputs.of(rank).bytes)
            .max()
            .unwrap_or(0);
        Self {
            scene,
            output: Target::new(output, taken),
            reduction,
            step: stride(scene, longest),
            longest,
            direct: worth_pulling(scene, longest),
            inputs,
        }
    }

    fn together(&self) -> usize {
        self.step * self.scene.ranks
    }

    fn take_directly(&mut self, round: &Round<'_>) -> Result<()> {
        let Scene { me, ranks, .. } = self.scene;
        if round.index == 0 {
            let (own, output) = (self.inputs.of(me), self.output.region());
            // SAFETY: own and output belong to this call and are the same or apart, see `new`; all
            // keep their inputs until everybody has come to the second round.
            unsafe {
                pull_and_combine(&self.reduction, self.scene, round, own, output, |rank| {
                    round.address_of(rank, me, ranks)
                })
            }
        } else {
            // SAFETY: everybody has read the inputs.
            unsafe { self.output.finish() }
            Ok(())
        }
    }
}

impl Plan for ReduceScatter {
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
                let ranks = 0..self.scene.ranks;
                round.put_addresses(ranks.map(|rank| self.inputs.of(rank).address as u64));
            }
            return;
        }
        let mine = round.mine(self.together());
        for rank in self.scene.others() {
            let start = round.index as usize * self.step;
            let piece = part(self.inputs.of(rank), start, self.step);
            // SAFETY: the inputs belong to this call; the payload has a stride for every rank, and
            // this rank alone writes it now.
            unsafe { put(round, piece, mine.add(rank * self.step)) }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        if self.direct {
            return self.take_directly(round);
        }
        let (me, start) = (self.scene.me, round.index as usize * self.step);
        let own = part(self.inputs.of(me), start, self.step);
        let output = part(self.output.region(), start, self.step);
        let together = self.together();
        // SAFETY: own and output belong to this call and are the same or apart, see `new`; the
        // others have posted and write there no more.
        unsafe {
            let of = |rank| round.of(rank, together).add(me * self.step);
            round.look(of((me + 1) % self.scene.ranks), output.bytes);
            combine(&self.reduction, self.scene.ranks, me, own, output, of);
        }
        if round.index + 1 == self.rounds() {
            // SAFETY: this was the last round: nothing reads the inputs any more.
            unsafe { self.output.finish() }
        }
        Ok(())
    }
}

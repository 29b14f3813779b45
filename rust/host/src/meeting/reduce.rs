//! Reduce: the root combines everything when it is short; else everyone combines a slice of each
//! chunk, and the root takes them a round later. Of two ranks the root reads the memory of the
//! other. Must not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::Reduction;

use super::all_reduce::Cut;
use super::places::{
    combine, combine_and_put, hand_over, overlap, pull_and_combine, put, worth_pulling,
};
use super::{Needs, Plan, Round, Scene};

pub(super) struct Reduce {
    scene: Scene,
    input: Region,
    /// on the root alone
    output: Option<Region>,
    reduction: Reduction,
    cut: Option<Cut>,
    root: usize,
    /// the root reads where the input of the other lies
    direct: bool,
}

impl Reduce {
    pub(super) fn new(
        scene: Scene,
        input: Region,
        output: Option<Region>,
        reduction: Reduction,
        root: usize,
    ) -> Self {
        let output = output.filter(|_| scene.me == root);
        let over =
            output.filter(|output| input.address != output.address && overlap(input, *output));
        if let Some(output) = over {
            // SAFETY: both belong to this call.
            unsafe { hand_over(input, output) }
        }
        Self {
            scene,
            input: over.unwrap_or(input),
            output,
            reduction,
            cut: Cut::of(scene, input.bytes),
            root,
            direct: scene.ranks == 2 && worth_pulling(scene, input.bytes),
        }
    }
}

impl Plan for Reduce {
    fn rounds(&self) -> u64 {
        if self.direct {
            return 2;
        }
        self.cut.map_or(1, |cut| cut.chunks() + 1)
    }

    fn leads(&self, index: u64) -> bool {
        self.direct && index == 1 && self.output.is_some()
    }

    fn needs(&self, index: u64) -> Needs {
        if self.direct {
            return match (index, self.output) {
                (0, Some(_)) => Needs::All,
                (0, None) | (_, Some(_)) => Needs::Nobody,
                (_, None) => Needs::Only(self.root),
            };
        }
        // What the last round brings is the root's.
        if self.output.is_none() && index + 1 == self.rounds() {
            Needs::Nobody
        } else {
            Needs::All
        }
    }

    fn put(&mut self, round: &Round<'_>) {
        if self.direct {
            if round.index == 0 {
                round.put_addresses([self.input.address as u64].into_iter());
            }
            return;
        }
        // SAFETY: the input belongs to this call; this rank alone writes its payload now.
        unsafe {
            match self.cut {
                None => put(round, self.input, round.mine(self.input.bytes)),
                Some(cut) if round.index < cut.chunks() => {
                    cut.put_chunk(self.scene, round, self.input)
                }
                Some(_) => {}
            }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        let Scene { me, ranks, .. } = self.scene;
        if self.direct {
            return match self.output.filter(|_| round.index == 0) {
                // SAFETY: input and output belong to this call and are the same or apart, see `new`;
                // the other keeps its input until the root has come to the second round.
                Some(output) => unsafe {
                    pull_and_combine(
                        &self.reduction,
                        self.scene,
                        round,
                        self.input,
                        output,
                        |rank| round.address_of(rank, 0, 1),
                    )
                },
                None => Ok(()),
            };
        }
        let Some(cut) = self.cut else {
            if let Some(output) = self.output {
                // SAFETY: input and output belong to this call and are the same or apart, see
                // `new`; the others have posted and write there no more.
                unsafe {
                    combine(&self.reduction, ranks, me, self.input, output, |rank| {
                        round.of(rank, self.input.bytes)
                    });
                }
            }
            return Ok(());
        };
        if round.index < cut.chunks() {
            let own = cut.slice(self.input, round.index, me);
            // SAFETY: as above; the next payload is nobody's to read until it is posted.
            unsafe {
                let of = |rank| round.of(rank, cut.together()).add(cut.offset(me));
                round.look(of((me + 1) % ranks), own.bytes);
                if let Some(output) = self.output {
                    let output = cut.slice(output, round.index, me);
                    combine(&self.reduction, ranks, me, own, output, of);
                } else {
                    let ahead = round.ahead(cut.together()).add(cut.offset(ranks));
                    combine_and_put(round, &self.reduction, self.scene, own, None, of, ahead);
                }
            }
        }
        if let Some(output) = self.output.filter(|_| round.index > 0) {
            // SAFETY: as above.
            unsafe { cut.take_chunk(self.scene, round, output) }
        }
        Ok(())
    }
}

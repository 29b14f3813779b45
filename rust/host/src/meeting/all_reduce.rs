//! All-reduce: everyone takes everything when it is short; else everyone combines a slice of each
//! chunk, and takes the slices of the others a round later, while the next chunk is put.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::Reduction;

use super::places::{LINE, combine, hand_over, overlap, part, put, take};
use super::{Needs, Plan, Round, Scene};

/// Bytes all ranks together read at most when everyone takes everything.
const SHORT: usize = 32 << 10;

/// How a buffer is cut: chunks of one slice per rank.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    ranks: usize,
    bytes: usize,
    /// bytes of a slice
    slice: usize,
}

impl Cut {
    /// `None` when everyone takes everything in one round.
    pub(super) fn of(scene: Scene, bytes: usize) -> Option<Self> {
        if bytes <= (SHORT / scene.ranks).min(scene.slot) {
            return None;
        }
        // A payload holds a slice for every rank and one that is combined.
        let room = scene.slot / (scene.ranks + 1) / LINE * LINE;
        let share = bytes.div_ceil(scene.ranks).next_multiple_of(LINE);
        Some(Self {
            ranks: scene.ranks,
            bytes,
            slice: share.min(room),
        })
    }

    pub(super) fn chunks(self) -> u64 {
        self.bytes.div_ceil(self.slice * self.ranks) as u64
    }

    /// The slice of `rank` in chunk `chunk` of `region`.
    pub(super) fn slice(self, region: Region, chunk: u64, rank: usize) -> Region {
        let start = (chunk as usize * self.ranks + rank) * self.slice;
        part(region, start, self.slice)
    }

    /// Where the part for `rank` starts in a payload; the combined slice follows the last.
    pub(super) fn offset(self, rank: usize) -> usize {
        rank * self.slice
    }

    pub(super) fn together(self) -> usize {
        (self.ranks + 1) * self.slice
    }

    /// Puts what the others combine of chunk `chunk`.
    ///
    /// # Safety
    /// `input` belongs to the running call.
    pub(super) unsafe fn put_chunk(self, scene: Scene, round: &Round<'_>, input: Region) {
        let mine = round.mine(self.together());
        for rank in scene.others() {
            // SAFETY: by the caller's promise; the payload has room for every slice, and this rank
            // alone writes it now.
            unsafe {
                put(
                    self.slice(input, round.index, rank),
                    mine.add(self.offset(rank)),
                )
            }
        }
    }

    /// Takes the slices the others combined of the chunk before.
    ///
    /// # Safety
    /// `output` belongs to the running call.
    pub(super) unsafe fn take_chunk(self, scene: Scene, round: &Round<'_>, output: Region) {
        for rank in scene.others() {
            let slice = self.slice(output, round.index - 1, rank);
            // SAFETY: by the caller's promise; `rank` has posted and writes there no more.
            unsafe {
                take(
                    round.of(rank, self.together()).add(self.offset(self.ranks)),
                    slice,
                )
            }
        }
    }
}

pub(super) struct AllReduce {
    scene: Scene,
    input: Region,
    output: Region,
    reduction: Reduction,
    cut: Option<Cut>,
}

impl AllReduce {
    pub(super) fn new(scene: Scene, input: Region, output: Region, reduction: Reduction) -> Self {
        let moved = input.address != output.address && overlap(input, output);
        if moved {
            // SAFETY: both belong to this call.
            unsafe { hand_over(input, output) }
        }
        Self {
            scene,
            input: if moved { output } else { input },
            output,
            reduction,
            cut: Cut::of(scene, input.bytes),
        }
    }
}

impl Plan for AllReduce {
    fn rounds(&self) -> u64 {
        self.cut.map_or(1, |cut| cut.chunks() + 1)
    }

    fn needs(&self, _: u64) -> Needs {
        Needs::All
    }

    fn put(&mut self, round: &Round<'_>) {
        // SAFETY: the input belongs to this call; this rank alone writes its payload now.
        unsafe {
            match self.cut {
                None => put(self.input, round.mine(self.input.bytes)),
                Some(cut) if round.index < cut.chunks() => {
                    cut.put_chunk(self.scene, round, self.input)
                }
                Some(_) => {}
            }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        let Scene { me, ranks, .. } = self.scene;
        let Some(cut) = self.cut else {
            // SAFETY: input and output belong to this call and are the same or apart, see `new`;
            // the others have posted and write there no more.
            unsafe {
                combine(
                    &self.reduction,
                    ranks,
                    me,
                    self.input,
                    self.output,
                    |rank| round.of(rank, self.input.bytes),
                );
            }
            return Ok(());
        };
        if round.index < cut.chunks() {
            let own = cut.slice(self.input, round.index, me);
            let output = cut.slice(self.output, round.index, me);
            // SAFETY: as above; the next payload is nobody's to read until it is posted.
            unsafe {
                combine(&self.reduction, ranks, me, own, output, |rank| {
                    round.of(rank, cut.together()).add(cut.offset(me))
                });
                put(output, round.ahead(cut.together()).add(cut.offset(ranks)));
            }
        }
        if round.index > 0 {
            // SAFETY: as above.
            unsafe { cut.take_chunk(self.scene, round, self.output) }
        }
        Ok(())
    }
}

//! All-reduce: everyone takes everything when it is short; else everyone combines a slice of each
//! chunk, and takes the slices of the others a round later, while the next chunk is put. Where ranks
//! read one another's memory, a slice is as long as it can be, and nothing is put but addresses.
//! Must not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::Reduction;

use super::places::{
    LINE, combine, combine_and_put, hand_over, overlap, part, pull_and_combine, put, take,
    worth_pulling,
};
use super::{Needs, Plan, Round, SETTLED, Scene};

/// Bytes all ranks together read at most when everyone takes everything.
const SHORT: usize = 32 << 10;

/// Whether everyone takes everything in one round.
pub(super) fn is_short(bytes: usize, ranks: usize, slot: usize) -> bool {
    bytes.saturating_mul(ranks) <= SHORT && bytes <= slot
}

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
        if is_short(bytes, scene.ranks, scene.slot) {
            return None;
        }
        let share = bytes.div_ceil(scene.ranks).next_multiple_of(LINE);
        // A payload holds a slice for every rank and one that is combined. Past the caches slices of a
        // long buffer are better shorter than there is room.
        let slot = if scene.near || share <= 2 * SETTLED {
            scene.slot
        } else {
            scene.slot.min(SETTLED)
        };
        let room = slot / (scene.ranks + 1) / LINE * LINE;
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
                    round,
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
                    round,
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
    direct: Option<Direct>,
}

/// How an all-reduce goes that reads directly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direct {
    /// not known before everybody has said whether its output is its input
    Open,
    /// everyone combines everything
    Whole,
    /// everyone combines a slice, then reads those of the others
    Slices,
}

/// Of two ranks everyone combines everything up to so many bytes.
const WHOLE: usize = 4 << 20;

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
            direct: worth_pulling(scene, input.bytes / scene.ranks).then_some(Direct::Open),
        }
    }

    /// The slice of `rank` when everyone has one.
    fn slice(&self, region: Region, rank: usize) -> Region {
        let slice = region
            .bytes
            .div_ceil(self.scene.ranks)
            .next_multiple_of(LINE);
        part(region, rank * slice, slice)
    }

    fn start(&self, rank: usize) -> u64 {
        (self.slice(self.input, rank).address - self.input.address) as u64
    }

    fn take_directly(&mut self, round: &Round<'_>, direct: Direct) -> Result<()> {
        let Scene { me, ranks, .. } = self.scene;
        let input_of = |rank| round.address_of(rank, 0, 2);
        let output_of = |rank| round.address_of(rank, 1, 2);
        match (direct, round.index) {
            (Direct::Open, _) => {
                let apart = (0..ranks).all(|rank| input_of(rank) != output_of(rank));
                let direct = if ranks == 2 && apart && self.input.bytes <= WHOLE {
                    Direct::Whole
                } else {
                    Direct::Slices
                };
                self.direct = Some(direct);
                self.take_directly(round, direct)
            }
            // SAFETY: input and output belong to this call and are the same or apart, see `new`; no
            // input is overwritten, and all keep theirs until everybody has come to the last round.
            (Direct::Whole, 0) => unsafe {
                pull_and_combine(
                    &self.reduction,
                    self.scene,
                    round,
                    self.input,
                    self.output,
                    input_of,
                )
            },
            (Direct::Slices, 0) => {
                let own = self.slice(self.input, me);
                let output = self.slice(self.output, me);
                let start = self.start(me);
                // SAFETY: as above; where an output is the input, its rank overwrites its own slice
                // alone, which the others do not read.
                unsafe {
                    pull_and_combine(&self.reduction, self.scene, round, own, output, |rank| {
                        input_of(rank) + start
                    })
                }
            }
            (Direct::Slices, 1) => self.scene.others().try_for_each(|rank| {
                let output = self.slice(self.output, rank);
                // SAFETY: the output belongs to this call; `rank` is done with its slice.
                unsafe { round.pull(rank, output_of(rank) + self.start(rank), output) }
            }),
            (Direct::Whole | Direct::Slices, _) => Ok(()),
        }
    }
}

impl Plan for AllReduce {
    fn rounds(&self) -> u64 {
        match self.direct {
            None => self.cut.map_or(1, |cut| cut.chunks() + 1),
            Some(Direct::Whole) => 2,
            // The last tells that all have read.
            Some(Direct::Open | Direct::Slices) => 3,
        }
    }

    fn needs(&self, _: u64) -> Needs {
        Needs::All
    }

    fn put(&mut self, round: &Round<'_>) {
        if self.direct.is_some() {
            let regions = [self.input, self.output];
            round.put_addresses(regions.into_iter().map(|region| region.address as u64));
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
        if let Some(direct) = self.direct {
            return self.take_directly(round, direct);
        }
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
                let of = |rank| round.of(rank, cut.together()).add(cut.offset(me));
                round.look(of((me + 1) % ranks), output.bytes);
                let ahead = round.ahead(cut.together()).add(cut.offset(ranks));
                combine_and_put(
                    round,
                    &self.reduction,
                    self.scene,
                    own,
                    Some(output),
                    of,
                    ahead,
                );
            }
        }
        if round.index > 0 {
            // SAFETY: as above.
            unsafe { cut.take_chunk(self.scene, round, self.output) }
        }
        Ok(())
    }
}

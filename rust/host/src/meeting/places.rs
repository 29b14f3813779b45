//! Client memory and payloads as plans handle them: cut, copied, combined. Must not know rounds.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::{Input, Reduction};

use super::{Round, Scene, Way};
use crate::copying::copy_out;
use crate::near::LOOKED_AT;

/// Pieces of a slot start at multiples of this.
pub(super) const LINE: usize = 64;

/// How many rounds it takes to move `bytes` bytes in steps of `step`; at least one.
pub(super) fn rounds(bytes: usize, step: usize) -> u64 {
    bytes.div_ceil(step.max(1)).max(1) as u64
}

/// The part of `region` from `start` on, `bytes` bytes or what there is.
pub(super) fn part(region: Region, start: usize, bytes: usize) -> Region {
    let start = start.min(region.bytes);
    region.slice(start, bytes.min(region.bytes - start))
}

pub(super) fn overlap(a: Region, b: Region) -> bool {
    a.bytes > 0 && b.bytes > 0 && a.address < b.address + b.bytes && b.address < a.address + a.bytes
}

/// From how many bytes on what is put for others goes past the caches.
fn put_past_caches_from(round: &Round<'_>) -> usize {
    match round.way {
        Way::Near => usize::MAX,
        Way::Chosen | Way::Looked => round.arena.choice().past_caches_from,
    }
}

/// Copies all of `from` to `to`, for the others of the round.
///
/// # Safety
/// `from` belongs to the running call, and `to` is valid for as many bytes and nobody reads it.
pub(super) unsafe fn put(round: &Round<'_>, from: Region, to: *mut u8) {
    let past_caches_from = put_past_caches_from(round);
    let first = if round.is_looked_at() {
        LOOKED_AT.min(from.bytes)
    } else {
        0
    };
    let rest = part(from, first, from.bytes);
    // SAFETY: by the caller's promise; client memory and payloads are different memory.
    unsafe {
        copy_out(from.address as *const u8, to, first, usize::MAX);
        copy_out(
            rest.address as *const u8,
            to.add(first),
            rest.bytes,
            past_caches_from,
        );
    }
}

/// Fills `to` from `from`; past the caches where the call moves more than these hold.
///
/// # Safety
/// `to` belongs to the running call, and `from` is valid for as many bytes and nobody writes it.
pub(super) unsafe fn take(round: &Round<'_>, from: *const u8, to: Region) {
    let past_caches_from = if round.is_large { LINE } else { usize::MAX };
    // SAFETY: by the caller's promise; client memory and payloads are different memory.
    unsafe {
        copy_out(from, to.address as *mut u8, to.bytes, past_caches_from);
    }
}

/// Copies between regions of the client of one length, which may overlap.
///
/// # Safety
/// Both belong to the running call.
pub(super) unsafe fn hand_over(from: Region, to: Region) {
    debug_assert_eq!(from.bytes, to.bytes);
    if from.address != to.address {
        // SAFETY: by the caller's promise; `copy` lets them overlap.
        unsafe { std::ptr::copy(from.address as *const u8, to.address as *mut u8, to.bytes) }
    }
}

/// Combines one operand per rank, in rank order, into `output`: the own one is `own`, that of another
/// rank lies where `of` says.
///
/// # Safety
/// `own` and `output` belong to the running call or to this rank's slot and are the same or apart;
/// what `of` returns is valid for as many bytes, apart from `output`, and nobody writes it.
pub(super) unsafe fn combine(
    reduction: &Reduction,
    ranks: usize,
    me: usize,
    own: Region,
    output: Region,
    of: impl Fn(usize) -> *const u8,
) {
    const FEW: usize = 16;
    if output.bytes == 0 {
        return;
    }
    let operand = |rank| {
        if rank != me {
            // SAFETY: by the caller's promise.
            Input::Bytes(unsafe { std::slice::from_raw_parts(of(rank), output.bytes) })
        } else if own.address == output.address {
            Input::Output
        } else {
            // SAFETY: by the caller's promise.
            Input::Bytes(unsafe { std::slice::from_raw_parts(own.address as *const u8, own.bytes) })
        }
    };
    // SAFETY: by the caller's promise; an operand that is the output is not borrowed.
    let out = unsafe { std::slice::from_raw_parts_mut(output.address as *mut u8, output.bytes) };
    if ranks == 2 {
        reduction.reduce(out, &[operand(0), operand(1)]);
    } else if ranks <= FEW {
        let mut inputs = [Input::Output; FEW];
        for (rank, input) in inputs.iter_mut().enumerate().take(ranks) {
            *input = operand(rank);
        }
        reduction.reduce(out, &inputs[..ranks]);
    } else {
        let inputs: Vec<Input<'_>> = (0..ranks).map(operand).collect();
        reduction.reduce(out, &inputs);
    }
}

/// As `combine`, and puts the result at `ahead` too; at `ahead` alone where there is no output. What
/// goes past the caches or is more than they hold is combined a block at a time: others' memory is
/// then written in one go, and the output is not fetched from memory only to be overwritten.
///
/// # Safety
/// As `combine`; `ahead` is valid for as many bytes as `own`, apart from everything, and nobody reads
/// it.
pub(super) unsafe fn combine_and_put(
    round: &Round<'_>,
    reduction: &Reduction,
    scene: Scene,
    own: Region,
    output: Option<Region>,
    of: impl Fn(usize) -> *const u8,
    ahead: *mut u8,
) {
    /// stays in the first-level cache
    const BLOCK: usize = 16 << 10;
    let Scene { me, ranks, .. } = scene;
    let in_blocks = match output {
        Some(_) => round.is_large,
        None => own.bytes >= put_past_caches_from(round),
    };
    if !in_blocks {
        let target = output.unwrap_or(Region {
            address: ahead as usize,
            bytes: own.bytes,
        });
        // SAFETY: by the caller's promise.
        unsafe {
            combine(reduction, ranks, me, own, target, of);
            if output.is_some() {
                put(round, target, ahead);
            }
        }
        return;
    }
    let mut block = vec![0_u8; BLOCK.min(own.bytes)];
    for start in (0..own.bytes).step_by(BLOCK) {
        let own = part(own, start, BLOCK);
        let combined = Region {
            address: block.as_mut_ptr() as usize,
            bytes: own.bytes,
        };
        // SAFETY: by the caller's promise; the block is apart from everything.
        unsafe {
            let of = |rank| of(rank).add(start);
            combine(reduction, ranks, me, own, combined, of);
            if let Some(output) = output {
                take(
                    round,
                    combined.address as *const u8,
                    part(output, start, BLOCK),
                );
            }
            put(round, combined, ahead.add(start));
        }
    }
}

/// Scratch memory of a reduction that reads directly: it stays in the second-level cache, and what is
/// read at once is worth its system call.
const SCRATCH: usize = 64 << 10;
const LEAST_AT_ONCE: usize = 32 << 10;

/// Whether ranks read `bytes` bytes where they lie instead of having them put.
pub(super) fn worth_pulling(scene: Scene, bytes: usize) -> bool {
    scene.direct && bytes >= scene.direct_from
}

/// Combines one operand per rank, in rank order, into `output`: the own one is `own`, that of another
/// rank is read from its memory, at the address that `at` gives and that it has put.
///
/// # Errors
/// `Transport` when the kernel refuses to read.
///
/// # Safety
/// `own` and `output` belong to the running call and are the same or apart; nobody writes what is
/// read.
pub(super) unsafe fn pull_and_combine(
    reduction: &Reduction,
    scene: Scene,
    round: &Round<'_>,
    own: Region,
    output: Region,
    at: impl Fn(usize) -> u64,
) -> Result<()> {
    let Scene { me, ranks, .. } = scene;
    let step = (SCRATCH / (ranks - 1)).max(LEAST_AT_ONCE) / LINE * LINE;
    let step = step.min(output.bytes.next_multiple_of(LINE)).max(LINE);
    // What lies in shared segments is combined where it is.
    let direct: Vec<_> = (0..ranks)
        .map(|rank| {
            (rank != me)
                .then(|| round.direct(rank, at(rank), output.bytes))
                .flatten()
        })
        .collect();
    let pulled = |rank: usize| direct[rank].is_none();
    let places = if scene.others().any(pulled) {
        ranks - 1
    } else {
        0
    };
    let mut scratch = vec![0_u8; step * places];
    let base = scratch.as_mut_ptr();
    let place = |rank: usize| {
        let index = if rank < me { rank } else { rank - 1 };
        // SAFETY: where one other rank is pulled there is a step for every one.
        unsafe { base.add(index * step) }
    };
    for start in (0..output.bytes).step_by(step) {
        let output = part(output, start, step);
        for rank in scene.others().filter(|rank| pulled(*rank)) {
            let to = Region {
                address: place(rank) as usize,
                bytes: output.bytes,
            };
            // SAFETY: the scratch memory is this call's.
            unsafe { round.pull(rank, at(rank) + start as u64, to)? }
        }
        let own = part(own, start, step);
        // SAFETY: by the caller's promise; scratch memory is apart from everything.
        unsafe {
            combine(reduction, ranks, me, own, output, |rank| {
                direct[rank].map_or_else(|| place(rank).cast_const(), |from| from.add(start))
            });
        }
    }
    Ok(())
}

/// Where a result is gathered when the client's own place for it overlaps an input.
pub(super) struct Target {
    client: Region,
    scratch: Vec<u8>,
}

impl Target {
    /// `client` itself, or scratch memory of its length when it is `taken`.
    pub(super) fn new(client: Region, taken: bool) -> Self {
        let scratch = vec![0; if taken { client.bytes } else { 0 }];
        Self { client, scratch }
    }

    pub(super) fn region(&mut self) -> Region {
        if self.scratch.is_empty() {
            return self.client;
        }
        Region {
            address: self.scratch.as_mut_ptr() as usize,
            bytes: self.scratch.len(),
        }
    }

    /// Gives the client its result.
    ///
    /// # Safety
    /// The client's region belongs to the running call, and nothing reads the inputs any more.
    pub(super) unsafe fn finish(&mut self) {
        if !self.scratch.is_empty() {
            let from = self.region();
            // SAFETY: scratch is apart from all client memory; else by the caller's promise.
            unsafe { hand_over(from, self.client) }
        }
    }
}

//! Operations between ranks, through the shared memory. They run on a stream's thread, and return
//! early when the communicator is stopped. It must not know of streams, groups or handles.

use std::sync::atomic::Ordering;

use crate::arena::{Arena, BOX, DESCRIPTION, SLOT, Stopped, Watch};
use crate::dtype::{self, DataType, Reduction};

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
}

/// A collective, with addresses of its buffers.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Which one.
    pub kind: Kind,
    /// Where this rank's elements are.
    pub send: usize,
    /// Where the result goes.
    pub recv: usize,
    /// Elements, as the function of the API counts them.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// How they are reduced.
    pub reduction: Reduction,
    /// The root, or zero.
    pub root: usize,
}

impl Collective {
    /// Bytes of `count` elements.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    fn description(&self) -> [u64; DESCRIPTION] {
        [
            self.kind as u64,
            self.count as u64,
            self.dtype as u64,
            self.reduction.fingerprint(),
            self.root as u64,
            1,
        ]
    }
}

/// One direction of a message.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Whether this rank sends.
    pub sends: bool,
    /// Where the bytes are.
    pub at: usize,
    /// How many.
    pub bytes: usize,
    /// The other rank.
    pub peer: usize,
}

/// Why an operation did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Its communicator was stopped.
    Stopped,
    /// Ranks called different things; what they called.
    Mismatch(String),
}

impl From<Stopped> for Unfinished {
    fn from(_: Stopped) -> Unfinished {
        Unfinished::Stopped
    }
}

/// Copies out of a buffer of the caller's.
fn read(into: &mut [u8], from: usize) {
    // SAFETY: the caller keeps the buffer until the operation is complete, and validation has
    // looked that the range is inside an allocation.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
}

/// Copies into a buffer of the caller's.
fn write(to: usize, from: &[u8]) {
    // SAFETY: as for `read`.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
}

/// Refuses a collective that other ranks do not call alike.
fn compare(arena: &Arena, watch: &dyn Watch, call: &Collective) -> Result<(), Unfinished> {
    arena.describe(call.description());
    arena.barrier(watch)?;
    let own = call.description();
    let different = (0..arena.ranks).find(|rank| arena.description(*rank) != own);
    let text = different.map(|rank| {
        let theirs = arena.description(rank);
        format!(
            "rank {} calls {:?} with [kind, count, dtype, reduction, root] {:?}, rank {rank} {:?}",
            arena.rank,
            call.kind,
            &own[..5],
            &theirs[..5]
        )
    });
    // Nobody describes the next operation before everybody has compared this one.
    arena.barrier(watch)?;
    text.map_or(Ok(()), |text| Err(Unfinished::Mismatch(text)))
}

/// Runs a collective.
pub fn collective(arena: &Arena, watch: &dyn Watch, call: &Collective) -> Result<(), Unfinished> {
    compare(arena, watch, call)?;
    let everyone = |_: usize| true;
    let root = |rank: usize| rank == call.root;
    match call.kind {
        Kind::AllReduce => reduce(arena, watch, call, 0, arena.rank, &everyone)?,
        Kind::Reduce => reduce(arena, watch, call, 0, arena.rank, &root)?,
        Kind::ReduceScatter => {
            for owner in 0..arena.ranks {
                let from = owner * call.bytes();
                reduce(arena, watch, call, from, arena.rank, &|rank| rank == owner)?;
            }
        }
        Kind::Broadcast => {
            let (whole, to) = (call.bytes(), call.recv);
            show(
                arena,
                watch,
                call.send,
                whole,
                &root,
                |rank, done, piece| {
                    if root(rank) {
                        write(to + done, piece);
                    }
                },
            )?;
        }
        Kind::AllGather | Kind::Gather => {
            let (whole, to) = (call.bytes(), call.recv);
            let takes = call.kind == Kind::AllGather || root(arena.rank);
            show(
                arena,
                watch,
                call.send,
                whole,
                &everyone,
                |rank, done, piece| {
                    if takes {
                        write(to + rank * whole + done, piece);
                    }
                },
            )?;
        }
        Kind::AlltoAll | Kind::Scatter => {
            let shows = |rank: usize| call.kind == Kind::AlltoAll || root(rank);
            distribute(arena, watch, call, &shows)?;
        }
    }
    Ok(())
}

/// Reduces `count` elements that begin `from` bytes into every rank's buffer; those for whom
/// `takes` holds get the result.
fn reduce(
    arena: &Arena,
    watch: &dyn Watch,
    call: &Collective,
    from: usize,
    own: usize,
    takes: &dyn Fn(usize) -> bool,
) -> Result<(), Stopped> {
    let ranks = arena.ranks as u32;
    let mut done = 0;
    while done < call.bytes() {
        let length = SLOT.min(call.bytes() - done);
        let shown = &mut arena.own_slot()[..length];
        read(shown, call.send + from + done);
        dtype::prepare(call.dtype, shown, &call.reduction, ranks);
        arena.barrier(watch)?;
        if takes(own) {
            let mut result = arena.slot(0)[..length].to_vec();
            for rank in 1..arena.ranks {
                let part = &arena.slot(rank)[..length];
                dtype::combine(call.dtype, &mut result, part, &call.reduction);
            }
            dtype::finish(call.dtype, &mut result, &call.reduction, ranks);
            write(call.recv + done, &result);
        }
        arena.barrier(watch)?;
        done += length;
    }
    Ok(())
}

/// Those for whom `shows` holds show `whole` bytes, piece by piece, and every rank takes.
fn show(
    arena: &Arena,
    watch: &dyn Watch,
    from: usize,
    whole: usize,
    shows: &dyn Fn(usize) -> bool,
    mut take: impl FnMut(usize, usize, &[u8]),
) -> Result<(), Stopped> {
    let mut done = 0;
    while done < whole {
        let length = SLOT.min(whole - done);
        if shows(arena.rank) {
            read(&mut arena.own_slot()[..length], from + done);
        }
        arena.barrier(watch)?;
        for rank in 0..arena.ranks {
            take(rank, done, &arena.slot(rank)[..length]);
        }
        arena.barrier(watch)?;
        done += length;
    }
    Ok(())
}

/// Each rank takes its block out of what others show.
fn distribute(
    arena: &Arena,
    watch: &dyn Watch,
    call: &Collective,
    shows: &dyn Fn(usize) -> bool,
) -> Result<(), Stopped> {
    let block = call.bytes();
    let whole = block * arena.ranks;
    let (begin, end) = (arena.rank * block, (arena.rank + 1) * block);
    let blocks = if call.kind == Kind::AlltoAll {
        arena.ranks
    } else {
        1
    };
    // Aside first: the result may lie where the rest is still to be read.
    let mut result = vec![0; block * blocks];
    show(
        arena,
        watch,
        call.send,
        whole,
        shows,
        |rank, done, piece| {
            let (from, to) = (begin.max(done), end.min(done + piece.len()));
            if from < to && shows(rank) {
                let place = if blocks == 1 { 0 } else { rank * block };
                let part = &piece[from - done..to - done];
                result[place + from - begin..][..part.len()].copy_from_slice(part);
            }
        },
    )?;
    write(call.recv, &result);
    Ok(())
}

struct Progress {
    transfer: Transfer,
    done: usize,
}

/// Runs messages at the same time. Those of one pair and direction keep their order.
pub fn transfers(arena: &Arena, watch: &dyn Watch, all: &[Transfer]) -> Result<(), Unfinished> {
    let start = |transfer: &Transfer| Progress {
        transfer: *transfer,
        done: 0,
    };
    // Nothing is sent for a message without bytes, on either side.
    let mut open: Vec<_> = all
        .iter()
        .filter(|transfer| transfer.bytes > 0)
        .map(start)
        .collect();
    let mut wrong = None;
    arena.wait(watch, || {
        while step(arena, &mut open, &mut wrong) {}
        open.is_empty() || wrong.is_some()
    })?;
    wrong.map_or(Ok(()), |text| Err(Unfinished::Mismatch(text)))
}

/// Moves each message on that can be; tells whether one was.
fn step(arena: &Arena, open: &mut Vec<Progress>, wrong: &mut Option<String>) -> bool {
    let mut moved = false;
    let mut earlier: Vec<(usize, bool)> = Vec::new();
    for progress in open.iter_mut() {
        let line = (progress.transfer.peer, progress.transfer.sends);
        if !earlier.contains(&line) {
            moved |= advance(arena, progress, wrong);
        }
        if progress.done < progress.transfer.bytes {
            earlier.push(line);
        }
    }
    open.retain(|progress| progress.done < progress.transfer.bytes);
    moved && wrong.is_none()
}

fn advance(arena: &Arena, progress: &mut Progress, wrong: &mut Option<String>) -> bool {
    let Transfer {
        sends,
        at,
        bytes,
        peer,
    } = progress.transfer;
    let (from, to) = if sends {
        (arena.rank, peer)
    } else {
        (peer, arena.rank)
    };
    let room = arena.letter_box(from, to);
    if (room.full.load(Ordering::Acquire) == 1) == sends {
        return false;
    }
    if sends {
        let length = BOX.min(bytes - progress.done);
        // SAFETY: the box is empty, so it is this rank's to fill; it has BOX bytes.
        let piece = unsafe { std::slice::from_raw_parts_mut(room.bytes, length) };
        read(piece, at + progress.done);
        room.length.store(length as u32, Ordering::Relaxed);
        room.total.store(bytes as u64, Ordering::Relaxed);
        room.full.store(1, Ordering::Release);
        progress.done += length;
    } else {
        let total = room.total.load(Ordering::Relaxed) as usize;
        if total != bytes {
            *wrong = Some(format!(
                "rank {} receives {bytes} bytes of rank {peer}, which sends {total}",
                arena.rank
            ));
            return false;
        }
        let length = room.length.load(Ordering::Relaxed) as usize;
        // SAFETY: the box is full, so it is this rank's to read; it has that many bytes.
        write(at + progress.done, unsafe {
            std::slice::from_raw_parts(room.bytes, length)
        });
        room.full.store(0, Ordering::Release);
        progress.done += length;
    }
    arena.ring(peer);
    true
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;

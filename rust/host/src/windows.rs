//! Windows: memory of every rank that the others write to and read from on their own.
//!
//! A rank of this machine is reached directly: its memory is mapped here, or the kernel copies, and its
//! signals are counters in shared memory. Any other is sent frames, which its engine applies. Each rank
//! decides for itself how it reaches another, and all it does to that one takes this one way, so that it
//! takes effect in order. Must not know how streams work or who calls.

mod arriving;
mod board;
mod handle;
mod reaching;
mod registering;
#[cfg(test)]
mod tests;
mod waiting;
mod words;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferrocomm_core::call::Region;
use ferrocomm_core::ids::{CommId, GroupRank};
use spin::mutex::SpinMutex;

use board::Board;
pub(crate) use handle::{HostWindow, Site};

/// How a process knows its windows: by the communicator and the number of the registration.
pub(crate) type WindowId = (CommId, u64);

/// Signals of one rank that were taken here.
#[derive(Clone, Copy, Default)]
struct Taking {
    taken: u64,
    /// waits that the engine has: they come first
    queued: usize,
}

/// This rank's part of a window, for its handle and for the engine.
pub(crate) struct Pane {
    pub(crate) id: WindowId,
    memory: Region,
    board: Board,
    /// by source
    taking: Box<[SpinMutex<Taking>]>,
    /// whether others reach it with frames, for which somebody has to look
    attended: AtomicBool,
    /// changed under the engine's lock
    closed: AtomicBool,
    /// threads that copy without holding up others
    copying: AtomicUsize,
}

impl Pane {
    fn new(id: WindowId, memory: Region, ranks: usize) -> Self {
        Self {
            id,
            memory,
            board: Board::new(ranks),
            taking: (0..ranks).map(|_| SpinMutex::default()).collect(),
            attended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            copying: AtomicUsize::new(0),
        }
    }

    /// Whether its memory is no longer lent.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The part of the memory that a frame of another rank is about, while it is lent.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> Option<Region> {
        let offset = usize::try_from(offset).ok()?;
        let bytes = usize::try_from(bytes).ok()?;
        let inside = offset.checked_add(bytes)? <= self.memory.bytes;
        (inside && !self.is_closed()).then(|| self.memory.slice(offset, bytes))
    }

    /// Takes a signal of `from`, unless waits that came before want it.
    fn take_signal(&self, from: GroupRank) -> bool {
        let mut taking = self.taking[from.index()].lock();
        let there = taking.queued == 0 && self.board.signals(from) > taking.taken;
        taking.taken += u64::from(there);
        there
    }

    /// Takes a signal of `from` for the wait that has waited longest.
    fn take_for_queued(&self, from: GroupRank) -> bool {
        let mut taking = self.taking[from.index()].lock();
        let there = self.board.signals(from) > taking.taken;
        taking.taken += u64::from(there);
        there
    }

    fn enqueue(&self, from: GroupRank) {
        self.taking[from.index()].lock().queued += 1;
    }

    pub(crate) fn leave(&self, from: GroupRank) {
        self.taking[from.index()].lock().queued -= 1;
    }
}

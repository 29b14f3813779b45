//! What a side of a shared memory says before it sleeps, and whether the other side must wake it.
//!
//! Why no wake-up is lost: a side that goes to sleep stores its announcement, then looks at the
//! counts once more; a side that changes a count stores it, then looks at the announcement. With a
//! full fence between the two steps on both sides, at least one of them sees what the other stored.
//! `tests/models` tries all orders. This module must not know what is counted or how waking works.

use crate::memory::Memory;
use crate::sync::{Ordering, fence};

/// Wake me when bytes come.
pub(super) const WANTS_BYTES: u32 = 1;
/// Wake me when there is room.
pub(super) const WANTS_ROOM: u32 = 2;

/// Where the announcements of both sides lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcements {
    own: usize,
    peers: usize,
}

impl Announcements {
    /// `own` and `peers` are the offsets of two words of 32 bits.
    pub(super) fn new(own: usize, peers: usize) -> Self {
        Self { own, peers }
    }

    /// Asks to be woken for `wants`. The counts must be looked at once more before sleeping.
    pub(super) fn announce(&self, memory: &Memory, wants: u32) {
        memory.atomic_u32(self.own).store(wants, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Asks for nothing any more.
    pub(super) fn withdraw(&self, memory: &Memory) {
        memory.atomic_u32(self.own).store(0, Ordering::Relaxed);
    }

    /// Whether the peer sleeps and asked to be woken for `reason`, after a count was stored.
    /// Whoever clears the announcement rings, and rings once.
    pub(super) fn must_ring(&self, memory: &Memory, reason: u32) -> bool {
        fence(Ordering::SeqCst);
        let wants = memory.atomic_u32(self.peers);
        wants.load(Ordering::Relaxed) & reason != 0 && wants.swap(0, Ordering::AcqRel) != 0
    }
}

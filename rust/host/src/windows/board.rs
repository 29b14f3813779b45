//! The board of a rank's window: what the others tell it without a message. A counter of signals per
//! source, each written by that source or, for those that cannot reach it, by this rank's engine; and what
//! this rank tells those who write: that it sleeps, or that its window is closed.
//!
//! Lies in shared memory where there is some. Must not know who maps it or how.

use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

use ferrocomm_core::ids::GroupRank;

use super::words;
use crate::allocator;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of a line; sources do not share any.
const LINE: usize = 64;
/// Words of the first line.
const ASLEEP: usize = 0;
const CLOSED: usize = 8;
/// Words of a source's line.
const SIGNALS: usize = 0;
const PROBE: usize = 8;

/// Bytes of a board for `ranks` sources.
pub(super) fn bytes_for(ranks: usize) -> usize {
    LINE * (1 + ranks)
}

/// A board wherever it lies: the own one, or that of another process.
#[derive(Clone, Copy)]
pub(super) struct Face {
    start: NonNull<u8>,
    ranks: usize,
}

// SAFETY: every access is to an atomic word.
unsafe impl Send for Face {}
// SAFETY: as above.
unsafe impl Sync for Face {}

impl Face {
    /// # Safety
    /// `start` is the beginning of a board for `ranks` sources, aligned to a line, which outlives every
    /// use of the value.
    pub(super) unsafe fn new(start: NonNull<u8>, ranks: usize) -> Self {
        Self { start, ranks }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + size_of::<AtomicU64>() <= bytes_for(self.ranks));
        // SAFETY: inside the board and aligned, as `new` was promised; both processes access words with
        // atomics alone.
        unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn of(&self, source: GroupRank, offset: usize) -> &AtomicU64 {
        self.word(LINE * (1 + source.index()) + offset)
    }

    /// Signals that `source` has given so far.
    fn signals(&self, source: GroupRank) -> u64 {
        words::given(self.of(source, SIGNALS))
    }

    /// Gives a signal of `source`; whether the owner sleeps and is to be woken.
    pub(super) fn signal(&self, source: GroupRank) -> bool {
        words::give(self.of(source, SIGNALS), self.word(ASLEEP))
    }

    /// Whether its owner has closed the window.
    pub(super) fn is_closed(&self) -> bool {
        self.word(CLOSED).load(Ordering::Acquire) != 0
    }

    /// A word that `source` writes through the kernel, to see whether it may.
    pub(super) fn probe(&self, source: GroupRank) -> u64 {
        self.of(source, PROBE).load(Ordering::Relaxed)
    }
}

/// Where that word is behind the beginning of a board.
pub(super) fn probe_offset(source: GroupRank) -> usize {
    LINE * (1 + source.index()) + PROBE
}

#[repr(align(64))]
#[expect(dead_code, reason = "its words are reached through a face")]
struct Line([AtomicU64; LINE / size_of::<AtomicU64>()]);

/// What a board lies in.
enum Place {
    /// a block of the allocator
    Shared(NonNull<u8>),
    /// where shared memory is short: nobody else reaches it
    Own(Box<[Line]>),
}

/// The own board. Its block is given back once the others use it no more; else it stays.
pub(super) struct Board {
    place: Place,
    face: Face,
    given_up: AtomicBool,
}

// SAFETY: the block is this value's alone but for atomic words, like the lines.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    pub(super) fn new(ranks: usize) -> Self {
        let bytes = bytes_for(ranks);
        let place = match allocator::allocate(bytes) {
            Ok(block) => {
                // SAFETY: the block is new and so long.
                unsafe { block.write_bytes(0, bytes) };
                Place::Shared(block)
            }
            Err(error) => {
                tracing::debug!(%error, "signals of a window travel as messages");
                let line = || Line([const { AtomicU64::new(0) }; LINE / size_of::<AtomicU64>()]);
                Place::Own((0..=ranks).map(|_| line()).collect())
            }
        };
        let start = match &place {
            Place::Shared(block) => *block,
            Place::Own(lines) => NonNull::from(&**lines).cast(),
        };
        Self {
            // SAFETY: both are that long and aligned, and go with this value.
            face: unsafe { Face::new(start, ranks) },
            place,
            given_up: AtomicBool::new(false),
        }
    }

    /// Where other processes find it; 0: nowhere.
    pub(super) fn address(&self) -> u64 {
        match &self.place {
            Place::Shared(block) => block.as_ptr() as u64,
            Place::Own(_) => 0,
        }
    }

    pub(super) fn face(&self) -> Face {
        self.face
    }

    pub(super) fn signals(&self, source: GroupRank) -> u64 {
        self.face.signals(source)
    }

    /// Announces that the engine of this process goes to sleep. What was signalled before is seen after.
    pub(super) fn lie_down(&self) {
        words::lie_down(self.face.word(ASLEEP));
    }

    pub(super) fn get_up(&self) {
        words::get_up(self.face.word(ASLEEP));
    }

    /// Tells those who would write that the window is closed.
    pub(super) fn close(&self) {
        self.face.word(CLOSED).store(1, Ordering::Release);
    }

    /// All ranks have agreed that nobody uses it any more.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let Place::Shared(block) = &self.place else {
            return;
        };
        // A rank that has not heard of the end may still signal: the block stays, or the signal would
        // change what it is used for next.
        if !*self.given_up.get_mut() {
            return;
        }
        if let Err(error) = allocator::release(block.as_ptr() as usize) {
            tracing::debug!(%error, "the board of a window stays");
        }
    }
}

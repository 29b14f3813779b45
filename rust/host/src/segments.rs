//! Shared memory that other processes of this machine may map and read: segments, and the table in
//! which this process announces them.
//!
//! The table is plain memory of this process at an address that it tells; others read it as they
//! read everything else (see `pulling`), when its version has changed, and trust no line of it
//! before the segment itself says the same. Must not know what lies in a segment or who reads it.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ferrocomm_core::error::Result;

use crate::budget::Budget;
use crate::memory::Memory;

/// Segments a process announces at most; others read what lies beyond through the kernel.
pub(crate) const PLACES: usize = 256;
/// Bytes at the start of a segment that say which it is.
pub(crate) const HEADER: usize = 64;

/// Words of the header: what tells the segment from any other, and where its maker has it.
const MARK: usize = 0;
const START: usize = 8;

/// One announced segment. No mark: no segment.
#[repr(C)]
struct Entry {
    mark: AtomicU64,
    start: AtomicU64,
    bytes: AtomicU64,
    descriptor: AtomicU64,
}

static TABLE: [Entry; PLACES] = [const {
    Entry {
        mark: AtomicU64::new(0),
        start: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        descriptor: AtomicU64::new(0),
    }
}; PLACES];

/// How often the table has changed.
static VERSION: AtomicU64 = AtomicU64::new(0);

/// Segments that are announced now.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Words of the table as it is read.
pub(crate) const WORDS: usize = size_of::<[Entry; PLACES]>() / size_of::<u64>();

/// Where the table of this process lies.
pub(crate) fn table() -> u64 {
    (&raw const TABLE) as u64
}

/// How often the table of this process has changed; 0: it never announced a segment. Whoever tells
/// others of memory in a segment tells them the version from afterwards.
pub(crate) fn version() -> u64 {
    VERSION.load(Ordering::SeqCst)
}

/// Whether this process has announced segments that are still there.
pub(crate) fn any() -> bool {
    LIVE.load(Ordering::Relaxed) > 0
}

/// An announced segment, as others know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) mark: u64,
    /// where its maker has it
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// of its maker
    pub(crate) descriptor: u64,
}

impl Announced {
    /// The lines of a table that was read.
    pub(crate) fn all(words: &[u64; WORDS]) -> impl Iterator<Item = Self> {
        let lines = words.chunks_exact(4).map(|line| Self {
            mark: line[0],
            start: line[1],
            bytes: line[2],
            descriptor: line[3],
        });
        lines.filter(|line| line.mark != 0)
    }

    /// Whether `memory` is this segment. A line that was read while it changed never passes.
    pub(crate) fn is(&self, memory: &Memory) -> bool {
        let word = |offset| memory.atomic_u64(offset).load(Ordering::Relaxed);
        memory.len() as u64 == self.bytes && word(MARK) == self.mark && word(START) == self.start
    }
}

/// Shared memory of this process, announced while there is room in the table.
pub(crate) struct Segment {
    memory: Memory,
    /// open as long as it is announced, at this place of the table
    announced: Option<(OwnedFd, usize)>,
}

impl Segment {
    /// `bytes` bytes, header included, within `budget`.
    ///
    /// # Errors
    /// `Resources` when memory or descriptors run short.
    pub(crate) fn create(bytes: usize, budget: &Budget) -> Result<Self> {
        let (memory, fd) = Memory::create(bytes, budget)?;
        let mark = new_mark();
        let start = memory.pointer(0, bytes) as u64;
        memory.atomic_u64(MARK).store(mark, Ordering::Relaxed);
        memory.atomic_u64(START).store(start, Ordering::Relaxed);
        let announced = announce(Announced {
            mark,
            start,
            bytes: bytes as u64,
            descriptor: u64::from(fd.as_raw_fd().unsigned_abs()),
        })
        .map(|place| (fd, place));
        Ok(Self { memory, announced })
    }

    /// Where it starts, with its header.
    pub(crate) fn start(&self) -> usize {
        self.memory.pointer(0, 0) as usize
    }

    /// Its length, header included.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let Some((fd, place)) = self.announced.take() else {
            return;
        };
        // In this order: whoever is told of other memory at the same address sees a newer version.
        TABLE[place].mark.store(0, Ordering::SeqCst);
        VERSION.fetch_add(1, Ordering::SeqCst);
        LIVE.fetch_sub(1, Ordering::Relaxed);
        // Others may still have it mapped; the pages are free all the same.
        if let Err(error) = self.memory.discard(&fd) {
            tracing::warn!(%error, "pages of freed shared memory stay until the others unmap it");
        }
    }
}

/// Announces a segment, if there is room.
fn announce(segment: Announced) -> Option<usize> {
    let place = TABLE.iter().position(|entry| {
        entry
            .mark
            .compare_exchange(0, segment.mark, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    })?;
    let entry = &TABLE[place];
    entry.start.store(segment.start, Ordering::Relaxed);
    entry.bytes.store(segment.bytes, Ordering::Relaxed);
    entry
        .descriptor
        .store(segment.descriptor, Ordering::Relaxed);
    VERSION.fetch_add(1, Ordering::SeqCst);
    LIVE.fetch_add(1, Ordering::Relaxed);
    Some(place)
}

/// A number that no other segment has; not 0.
fn new_mark() -> u64 {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    // The keys are drawn at random once per thread: a forked child shares them, but not the number
    // of its process.
    RandomState::new().hash_one((std::process::id(), made)) | 1
}

//! A ring of bytes in shared memory, from one process to another.
//!
//! `head` counts the bytes ever written, `tail` the bytes ever read; each end keeps its own count
//! to itself and publishes it. What it reads of the other's count is checked, so a peer gone mad
//! leads to an error. This module must not know sleeping and waking.

use std::io;

use crate::memory::Memory;
use crate::sync::Ordering;

/// Bytes from `head` to `tail`, so that two writers never share a cache line (nor the pair of lines
/// a processor may fetch together).
const LINE: usize = 128;

/// Bytes of a ring's two counts.
pub(super) const COUNTS: usize = 2 * LINE;

/// Where a ring lies in its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// offset of the counts, a multiple of 8
    pub(super) counts: usize,
    /// offset of the bytes
    pub(super) bytes: usize,
    /// how many bytes; a power of two
    pub(super) capacity: usize,
}

impl Place {
    /// Where byte number `count` lies, and how many of `wanted` follow it without a turn.
    fn stretch(&self, count: u64, wanted: usize) -> (usize, usize) {
        let offset = (count & (self.capacity as u64 - 1)) as usize;
        (self.bytes + offset, wanted.min(self.capacity - offset))
    }
}

/// A count no sound peer can bring about: it ran back, or ahead of what it may be.
fn corrupt() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the counts of a ring are corrupt",
    )
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer {
    place: Place,
    /// bytes written
    head: u64,
    /// bytes written that the peer may see
    published: u64,
    /// bytes read, as last seen
    tail: u64,
}

impl Producer {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            head: 0,
            published: 0,
            tail: 0,
        }
    }

    /// Room for bytes, looking at the peer's count anew.
    pub(super) fn room(&mut self, memory: &Memory) -> io::Result<usize> {
        // Acquire: the peer has read what lies there before new bytes overwrite it.
        let tail = memory
            .atomic_u64(self.place.counts + LINE)
            .load(Ordering::Acquire);
        if !(self.tail..=self.head).contains(&tail) {
            return Err(corrupt());
        }
        self.tail = tail;
        Ok(self.room_seen())
    }

    /// Whether there is room for `bytes` bytes. A corrupt count is told by `write`.
    pub(super) fn has_room(&mut self, memory: &Memory, bytes: usize) -> bool {
        self.room_seen() >= bytes || self.room(memory).is_ok_and(|room| room >= bytes)
    }

    /// Room as of the last look.
    fn room_seen(&self) -> usize {
        self.place.capacity - (self.head - self.tail) as usize
    }

    /// Copies the first bytes of `from` into the ring, as many as there is room for, and returns
    /// how many. The peer sees them after `publish`.
    pub(super) fn write(&mut self, memory: &Memory, from: &[u8]) -> io::Result<usize> {
        let mut room = self.room_seen();
        if room < from.len() {
            room = self.room(memory)?;
        }
        let bytes = room.min(from.len());
        let (offset, first) = self.place.stretch(self.head, bytes);
        memory.write(offset, &from[..first]);
        memory.write(self.place.bytes, &from[first..bytes]);
        self.head += bytes as u64;
        Ok(bytes)
    }

    /// Bytes written since the last `publish`.
    pub(super) fn unpublished(&self) -> usize {
        (self.head - self.published) as usize
    }

    /// Lets the peer see what was written.
    pub(super) fn publish(&mut self, memory: &Memory) {
        memory
            .atomic_u64(self.place.counts)
            .store(self.head, Ordering::Release);
        self.published = self.head;
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer {
    place: Place,
    /// bytes read
    tail: u64,
    /// bytes read that the peer knows of
    released: u64,
    /// bytes written, as last seen
    head: u64,
}

impl Consumer {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            tail: 0,
            released: 0,
            head: 0,
        }
    }

    /// Bytes to read, looking at the peer's count anew.
    pub(super) fn waiting(&mut self, memory: &Memory) -> io::Result<usize> {
        // Acquire: the bytes are there once their count is.
        let head = memory.atomic_u64(self.place.counts).load(Ordering::Acquire);
        if !(self.head..=self.tail + self.place.capacity as u64).contains(&head) {
            return Err(corrupt());
        }
        self.head = head;
        Ok(self.waiting_seen())
    }

    /// Bytes to read as of the last look.
    fn waiting_seen(&self) -> usize {
        (self.head - self.tail) as usize
    }

    /// Copies the next bytes to the start of `into` and returns how many. The peer may use their
    /// room after `release`.
    pub(super) fn read(&mut self, memory: &Memory, into: &mut [u8]) -> io::Result<usize> {
        let mut waiting = self.waiting_seen();
        if waiting < into.len() {
            waiting = self.waiting(memory)?;
        }
        let bytes = waiting.min(into.len());
        let (offset, first) = self.place.stretch(self.tail, bytes);
        memory.read(offset, &mut into[..first]);
        memory.read(self.place.bytes, &mut into[first..bytes]);
        self.tail += bytes as u64;
        Ok(bytes)
    }

    /// Copies the next bytes to `start` and leaves them in the ring, once `whole` bytes wait. A
    /// corrupt count is told by `read`.
    pub(super) fn peek(&mut self, memory: &Memory, start: &mut [u8], whole: usize) -> bool {
        let waiting = self.waiting_seen() >= whole
            || self.waiting(memory).is_ok_and(|waiting| waiting >= whole);
        if waiting {
            let (offset, first) = self.place.stretch(self.tail, start.len());
            memory.read(offset, &mut start[..first]);
            memory.read(self.place.bytes, &mut start[first..]);
        }
        waiting
    }

    /// Bytes read since the last `release`.
    pub(super) fn unreleased(&self) -> usize {
        (self.tail - self.released) as usize
    }

    /// Gives the peer the room of what was read.
    pub(super) fn release(&mut self, memory: &Memory) {
        memory
            .atomic_u64(self.place.counts + LINE)
            .store(self.tail, Ordering::Release);
        self.released = self.tail;
    }
}

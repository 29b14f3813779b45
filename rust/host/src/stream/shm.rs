//! A stream through shared memory: one ring per direction, and a connected local socket that wakes
//! a sleeping side and tells when the peer is gone.
//!
//! The side that dialled makes the memory and hands it over with its first bytes; afterwards the
//! socket carries single bytes that mean "look again". Waking costs a system call, and happens only
//! when the other side announced that it sleeps; `announcements` says why none is lost. This module
//! must not know messages.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ferrocomm_core::error::{Error, ErrorKind, Result};

use super::announcements::{Announcements, WANTS_BYTES, WANTS_ROOM};
use super::ring::{COUNTS, Consumer, Place, Producer};
use super::{Stream, StreamKind, length, or_would_block, send_with_fd};
use crate::budget::Budget;
use crate::cores::{self, Processors};
use crate::memory::Memory;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes of each ring unless the caller says otherwise.
pub(crate) const RING_BYTES: usize = 1 << 20;

/// Rings a peer may offer.
const SMALLEST_RING: usize = 4 << 10;
const LARGEST_RING: usize = 64 << 20;

/// First word of the memory: layout and version.
const MAGIC: u64 = 0x4643_5348_4d00_0001;

// Layout: magic, ring size | counts of ring 0, of ring 1 | state of side 0, of side 1 | bytes.
// Ring 0 runs from the side that dialled (side 0) to the side that accepted (side 1).
const RING_SIZE_WORD: usize = 8;
const COUNTS_START: usize = 256;
const STATE_START: usize = COUNTS_START + 2 * COUNTS;
const STATE_BYTES: usize = 256;
/// From the start of a side's state to the processors it runs on, and to its word `closed`, on a line
/// of its own.
const PROCESSORS: usize = 64;
const CLOSED: usize = 128;
const BYTES_START: usize = 4096;

/// A long write is made visible in steps of so many bytes, so that the peer reads the first while
/// the next are copied; room is given back in eighths of a ring.
const PUBLISH_STEP: usize = 8 << 10;
const RELEASES_PER_RING: usize = 8;

/// Which side of the memory an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Dialled = 0,
    Accepted = 1,
}

/// What is known of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    There,
    Gone,
}

/// One end of a stream through shared memory.
#[derive(Debug)]
pub(crate) struct ShmStream {
    socket: UnixStream,
    memory: Shared,
    announcements: Announcements,
    output: Producer,
    input: Consumer,
    release_step: usize,
    peer: Peer,
    /// the last write found no room
    full: bool,
    /// The process that made this end. A child that inherited it must not close it for the parent.
    owner: u32,
}

/// The memory with the words that are not the rings'.
struct Shared {
    memory: Memory,
    side: Side,
}

impl ShmStream {
    /// Makes the memory, with rings of `ring_bytes` bytes rounded up to a power of two, and sends
    /// it with `hello` (at most a few hundred bytes) over a connected socket. `hello` may be empty
    /// only if the peer expects one byte: a descriptor cannot travel alone.
    ///
    /// # Errors
    /// `Resources` when memory runs short, `Transport` when the peer does not take the hello.
    pub(crate) fn dial(
        socket: UnixStream,
        hello: &[u8],
        ring_bytes: usize,
        budget: &Budget,
    ) -> Result<Self> {
        let capacity = ring_bytes
            .clamp(SMALLEST_RING, LARGEST_RING)
            .next_power_of_two();
        let (memory, fd) = Memory::create(BYTES_START + 2 * capacity, budget)?;
        memory
            .atomic_u64(RING_SIZE_WORD)
            .store(capacity as u64, Ordering::Relaxed);
        memory.atomic_u64(0).store(MAGIC, Ordering::Release);
        let stream = Self::new(socket, memory, capacity, Side::Dialled)?;
        send_with_fd(&stream.socket, hello, &fd).map_err(|error| {
            transport("the shared memory of a connection could not be handed over").got(error)
        })?;
        Ok(stream)
    }

    /// Takes the memory that came with the peer's first bytes, see `receive_with_fd`. All of the
    /// hello has been read from `socket`.
    ///
    /// # Errors
    /// `Transport` when the descriptor is not such memory, `Resources` when it cannot be mapped.
    pub(crate) fn accept(socket: UnixStream, fd: &OwnedFd) -> Result<Self> {
        let size = |ring: usize| BYTES_START + 2 * ring;
        let memory = Memory::open(fd, size(SMALLEST_RING), size(LARGEST_RING))?;
        let magic = memory.atomic_u64(0).load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(transport("shared memory of another version of the engine")
                .got(format_args!("{magic:#x}"))
                .expected(format_args!("{MAGIC:#x}")));
        }
        let word = memory.atomic_u64(RING_SIZE_WORD).load(Ordering::Relaxed);
        match usize::try_from(word) {
            Ok(capacity)
                if capacity.is_power_of_two()
                    && capacity <= LARGEST_RING
                    && memory.len() == size(capacity) =>
            {
                Self::new(socket, memory, capacity, Side::Accepted)
            }
            _ => Err(transport("shared memory whose rings do not fit it").got(word)),
        }
    }

    fn new(socket: UnixStream, memory: Memory, capacity: usize, side: Side) -> Result<Self> {
        socket
            .set_nonblocking(true)
            .map_err(|error| transport("a local socket cannot be made non-blocking").got(error))?;
        let place = |side: Side| Place {
            counts: COUNTS_START + side as usize * COUNTS,
            bytes: BYTES_START + side as usize * capacity,
            capacity,
        };
        let memory = Shared { memory, side };
        memory.introduce(cores::own());
        Ok(Self {
            socket,
            memory,
            announcements: Announcements::new(state_of(side), state_of(side.other())),
            output: Producer::new(place(side)),
            input: Consumer::new(place(side.other())),
            release_step: capacity / RELEASES_PER_RING,
            peer: Peer::There,
            full: false,
            owner: std::process::id(),
        })
    }

    /// Makes what was written visible and wakes the peer if it waits for it.
    fn publish(&mut self) {
        self.output.publish(&self.memory.memory);
        self.wake(WANTS_BYTES);
    }

    /// Gives back the room of what was read and wakes the peer if it waits for it.
    fn release(&mut self) {
        self.input.release(&self.memory.memory);
        self.wake(WANTS_ROOM);
    }

    fn wake(&mut self, reason: u32) {
        if !self.announcements.must_ring(&self.memory.memory, reason) {
            return;
        }
        // SAFETY: sends one byte that lives for the call, on an open descriptor.
        let sent = or_would_block(length(unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::send(self.socket.as_raw_fd(), [1_u8].as_ptr().cast(), 1, flags)
        }));
        // A socket that is full wakes the peer as well. One that is broken says the peer is gone;
        // it may have sent bytes before, so reading goes on.
        if sent.is_err() {
            self.peer = Peer::Gone;
        }
    }

    /// Whether the peer closed its end, as it does when it is not killed.
    fn peer_is_gone(&self) -> bool {
        self.peer == Peer::Gone || self.memory.closed(self.memory.side.other())
    }

    /// Empties the socket, which also shows whether the peer is gone. A peer rings once per
    /// announcement, so this ends after two calls, unless it has gone mad: hence the bound.
    fn fetch_rings(&mut self) {
        let mut rings = [0_u8; 256];
        for _ in 0..4 {
            // SAFETY: receives at most `rings.len()` bytes into `rings`, on an open descriptor.
            let received = length(unsafe {
                let into = rings.as_mut_ptr().cast();
                libc::recv(
                    self.socket.as_raw_fd(),
                    into,
                    rings.len(),
                    libc::MSG_DONTWAIT,
                )
            });
            match received {
                Ok(0) => self.peer = Peer::Gone,
                // The end of the connection may lie behind them.
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.peer = Peer::Gone,
            }
            return;
        }
    }

    fn has_something_to_do(&mut self) -> bool {
        // A corrupt count is something to do, too: the next call reports it.
        let bytes = !matches!(self.input.waiting(&self.memory.memory), Ok(0));
        let room = self.full && !matches!(self.output.room(&self.memory.memory), Ok(0));
        bytes || room || self.peer_is_gone()
    }
}

impl Stream for ShmStream {
    fn kind(&self) -> StreamKind {
        StreamKind::Shm
    }

    fn try_write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.peer_is_gone() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut written = 0;
        self.full = false;
        'parts: for part in parts {
            for step in part.chunks(PUBLISH_STEP) {
                let bytes = self.output.write(&self.memory.memory, step)?;
                written += bytes;
                if self.output.unpublished() >= PUBLISH_STEP {
                    self.publish();
                }
                if bytes < step.len() {
                    self.full = true;
                    break 'parts;
                }
            }
        }
        if self.output.unpublished() > 0 {
            self.publish();
        }
        Ok(written)
    }

    fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        for step in into.chunks_mut(self.release_step) {
            // Looked at before the ring: what a peer wrote before it went is there by now.
            let gone = self.peer_is_gone();
            let bytes = self.input.read(&self.memory.memory, step)?;
            read += bytes;
            // An empty ring gives back all of its room; see `Consumer::release`.
            let drained = bytes < step.len();
            let unreleased = self.input.unreleased();
            if unreleased >= self.release_step || (drained && unreleased > 0) {
                self.release();
            }
            if drained {
                if read == 0 && gone {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                break;
            }
        }
        Ok(read)
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        self.output.has_room(&self.memory.memory, bytes)
    }

    fn peek(&mut self, start: &mut [u8], whole: usize) -> bool {
        self.input.peek(&self.memory.memory, start, whole)
    }

    fn processors(&self) -> Option<Processors> {
        let other = self.memory.side.other();
        let set: Processors = std::array::from_fn(|index| {
            self.memory
                .processors_word(other, index)
                .load(Ordering::Relaxed)
        });
        (set != Processors::default()).then_some(set)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn watch_writable(&self) -> bool {
        false
    }

    fn before_sleep(&mut self) -> bool {
        if self.input.unreleased() > 0 {
            self.release();
        }
        let wants = if self.full {
            WANTS_BYTES | WANTS_ROOM
        } else {
            WANTS_BYTES
        };
        self.announcements.announce(&self.memory.memory, wants);
        let stay_awake = self.has_something_to_do();
        if stay_awake {
            self.after_sleep(false);
        }
        stay_awake
    }

    fn after_sleep(&mut self, ready: bool) {
        self.announcements.withdraw(&self.memory.memory);
        if !ready {
            return;
        }
        self.fetch_rings();
    }

    fn probe(&mut self) {
        // A ring fetched here wakes nobody any more, but then nobody sleeps: this thread is the one
        // that would.
        self.fetch_rings();
    }
}

impl Drop for ShmStream {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.memory.close();
        }
    }
}

/// Where the state of `side` starts: its announcements, then its word `closed`.
fn state_of(side: Side) -> usize {
    STATE_START + side as usize * STATE_BYTES
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Dialled => Self::Accepted,
            Self::Accepted => Self::Dialled,
        }
    }
}

impl Shared {
    fn processors_word(&self, side: Side, index: usize) -> &AtomicU64 {
        self.memory
            .atomic_u64(state_of(side) + PROCESSORS + 8 * index)
    }

    /// Says where this side runs.
    fn introduce(&self, own: Processors) {
        for (index, word) in own.into_iter().enumerate() {
            self.processors_word(self.side, index)
                .store(word, Ordering::Relaxed);
        }
    }

    fn closed_word(&self, side: Side) -> &AtomicU32 {
        self.memory.atomic_u32(state_of(side) + CLOSED)
    }

    fn closed(&self, side: Side) -> bool {
        self.closed_word(side).load(Ordering::Acquire) != 0
    }

    fn close(&self) {
        // Release: who sees it sees all that was written before.
        self.closed_word(self.side).store(1, Ordering::Release);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("bytes", &self.memory.len())
            .field("side", &self.side)
            .finish()
    }
}

fn transport(what: &'static str) -> Error {
    Error::new(ErrorKind::Transport, what)
}

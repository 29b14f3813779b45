//! The memory that the ranks of a communicator share, and how they wait in it. It is a memory file
//! without a name: ranks find it through the process that made it, and it goes with the last of
//! them, whatever ends them.
//!
//! It must not know what is sent.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Code, Failure, Outcome};

const PAGE: usize = 4096;
/// Bytes that a rank shows at a time in a collective.
pub const SLOT: usize = 1 << 20;
/// Bytes of a message that are on their way at a time.
pub const BOX: usize = 128 << 10;
/// Contexts of signals.
pub const CONTEXTS: usize = 8;
/// How many messages of management a rank keeps.
const NOTES: u64 = 16;
/// Bytes of one of them.
pub const NOTE: usize = 240;
/// How long a wait sleeps at most before it looks whether it should go on.
const NAP: Duration = Duration::from_millis(20);
/// How often a waiting rank looks whether the others still live.
const LOOK_ROUND: Duration = Duration::from_millis(100);

const NONCE_AT: usize = 0;
const RANKS_AT: usize = 8;
const JOINED_AT: usize = 12;
const BARRIER_COUNT_AT: usize = 16;
const BARRIER_TURN_AT: usize = 20;
const IDS_AT: usize = 24;

const RANK_PAGES: usize = 2 * PAGE;
const PID_AT: usize = 0;
const BELL_AT: usize = 8;
const STARTED_AT: usize = 16;
const DESCRIPTION_AT: usize = 64;
const NOTES_AT: usize = PAGE;

/// Words that describe a collective.
pub const DESCRIPTION: usize = 6;

/// Where each part of the memory begins.
struct Layout {
    signals: usize,
    slots: usize,
    boxes: usize,
    whole: usize,
}

/// A box has its header before its bytes.
const BOX_STRIDE: usize = PAGE + BOX;

impl Layout {
    fn of(ranks: usize) -> Layout {
        let signals = PAGE + ranks * RANK_PAGES;
        let slots = (signals + ranks * ranks * CONTEXTS * 8).next_multiple_of(PAGE);
        let boxes = slots + ranks * SLOT;
        Layout {
            signals,
            slots,
            boxes,
            whole: boxes + ranks * ranks * BOX_STRIDE,
        }
    }
}

/// What the 128 bytes of a unique id say: who made the memory, and which of its files it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The process.
    pub pid: i32,
    /// The number of the file in that process.
    pub file: i32,
    /// What the memory begins with.
    pub nonce: u64,
}

/// Bytes of an address.
pub const ADDRESS: usize = 24;
const MARK: &[u8; 8] = b"simnccl1";

impl Address {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; ADDRESS] {
        let mut bytes = [0; ADDRESS];
        bytes[..8].copy_from_slice(MARK);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.file.to_le_bytes());
        bytes[16..].copy_from_slice(&self.nonce.to_le_bytes());
        bytes
    }

    /// From bytes that may be anything.
    pub fn from_bytes(bytes: &[u8]) -> Outcome<Address> {
        let wrong = || Failure::argument("the unique id is none of this library's");
        let bytes: &[u8; ADDRESS] = bytes.first_chunk().ok_or_else(wrong)?;
        if &bytes[..8] != MARK {
            return Err(wrong());
        }
        let part = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        Ok(Address {
            pid: i32::from_le_bytes(part(8)),
            file: i32::from_le_bytes(part(12)),
            nonce: u64::from(u32::from_le_bytes(part(16)))
                | u64::from(u32::from_le_bytes(part(20))) << 32,
        })
    }
}

/// Opens a file of another process, or of this one.
pub(crate) fn open_file_of(pid: i32, file: i32) -> Outcome<File> {
    let path = format!("/proc/{pid}/fd/{file}");
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|error| {
            let text = format!("process {pid} has no memory to share any more ({path}: {error})");
            Failure::new(Code::SYSTEM_ERROR, text)
        })
}

/// Memory for a communicator that is yet to be made. Others find it while the file is open.
pub fn found() -> Outcome<(File, Address)> {
    // SAFETY: the name ends with a zero; the flags are memfd_create's.
    let number = unsafe { libc::memfd_create(c"simgpu nccl".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(Failure::system("memfd_create"));
    }
    // SAFETY: the number is a file's that nobody else owns.
    let file = unsafe { File::from_raw_fd(number) };
    file.set_len(PAGE as u64)
        .map_err(|_| Failure::system("ftruncate"))?;
    let mut nonce = [0u8; 8];
    // SAFETY: the buffer has as many bytes as it says.
    let got = unsafe { libc::getrandom(nonce.as_mut_ptr().cast(), nonce.len(), 0) };
    if got != 8 {
        return Err(Failure::system("getrandom"));
    }
    let nonce = u64::from_le_bytes(nonce) | 1;
    let address = Address {
        pid: std::process::id().cast_signed(),
        file: number,
        nonce,
    };
    let page = Mapping::of(&file, PAGE)?;
    page.wide(NONCE_AT).store(nonce, Ordering::Release);
    Ok((file, address))
}

struct Mapping {
    base: *mut u8,
    length: usize,
}
// SAFETY: the memory is reached through atomics, or through copies whose order the protocol of
// the communicator decides, as between processes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, length: usize) -> Outcome<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                access,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Failure::system("mmap"));
        }
        Ok(Mapping {
            base: base.cast(),
            length,
        })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.length, "an offset outside the shared memory");
        // SAFETY: inside the mapping, as was just looked at.
        unsafe { self.base.add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, which lives as long as self; offsets of words are aligned.
        unsafe { &*self.at(offset).cast() }
    }

    fn signed(&self, offset: usize) -> &AtomicI32 {
        // SAFETY: as for `word`.
        unsafe { &*self.at(offset).cast() }
    }

    fn wide(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for `word`.
        unsafe { &*self.at(offset).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// What a waiting rank is told by others of its own process, and what it tells them.
pub trait Watch {
    /// Whether the wait should end without what it waits for.
    fn stopped(&self) -> bool;
    /// A rank's process is gone.
    fn lost(&self, rank: usize);
}

/// A wait ended because its communicator was aborted or revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// One rank's view of the shared memory.
pub struct Arena {
    memory: Mapping,
    layout: Layout,
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

/// When the process of a pid started, and whether it still runs. Pids are used again.
fn start_of(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // The start is the 22nd field; three were before what is left.
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

impl Arena {
    /// Opens the memory of an address as one of `ranks` ranks. It does not wait for the others.
    pub fn open(address: Address, rank: usize, ranks: usize, ids: u64) -> Outcome<Arena> {
        let file = open_file_of(address.pid, address.file)?;
        let head = Mapping::of(&file, PAGE)?;
        if head.wide(NONCE_AT).load(Ordering::Acquire) != address.nonce {
            return Err(Failure::argument(
                "the unique id is of a communicator that is gone",
            ));
        }
        let wanted = u32::try_from(ranks).map_err(|_| Failure::argument("too many ranks"))?;
        agree(head.word(RANKS_AT), wanted).map_err(|other| {
            Failure::argument(format!("other ranks join {other} ranks, this one {ranks}"))
        })?;
        let layout = Layout::of(ranks);
        file.set_len(layout.whole as u64)
            .map_err(|_| Failure::system("ftruncate"))?;
        let memory = Mapping::of(&file, layout.whole)?;
        let ids_there = memory.wide(IDS_AT);
        if let Err(other) = ids_there.compare_exchange(0, ids, Ordering::AcqRel, Ordering::Acquire)
            && other != ids
        {
            return Err(Failure::argument(
                "ranks came with different lists of unique ids",
            ));
        }
        let arena = Arena {
            memory,
            layout,
            rank,
            ranks,
        };
        arena.enter()?;
        Ok(arena)
    }

    fn enter(&self) -> Outcome {
        let page = self.page(self.rank);
        let pid = std::process::id().cast_signed();
        let taken = self.memory.signed(page + PID_AT);
        if taken
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return Err(Failure::argument(format!(
                "rank {} joined already",
                self.rank
            )));
        }
        let started = start_of(pid).unwrap_or(0);
        self.memory
            .wide(page + STARTED_AT)
            .store(started, Ordering::Release);
        self.memory.word(JOINED_AT).fetch_add(1, Ordering::AcqRel);
        self.ring_all();
        Ok(())
    }

    /// Whether a rank has joined.
    pub fn has_joined(&self, rank: usize) -> bool {
        let started = self.memory.wide(self.page(rank) + STARTED_AT);
        started.load(Ordering::Acquire) != 0
    }

    /// Waits until every rank has joined.
    pub fn wait_for_all(&self, watch: &dyn Watch) -> Result<(), Stopped> {
        let joined = self.memory.word(JOINED_AT);
        self.wait(watch, || {
            joined.load(Ordering::Acquire) as usize == self.ranks
        })
    }

    fn page(&self, rank: usize) -> usize {
        PAGE + rank * RANK_PAGES
    }

    fn bell(&self, rank: usize) -> &AtomicU32 {
        self.memory.word(self.page(rank) + BELL_AT)
    }

    /// Wakes whoever waits in a rank.
    pub fn ring(&self, rank: usize) {
        let bell = self.bell(rank);
        bell.fetch_add(1, Ordering::AcqRel);
        futex(bell, libc::FUTEX_WAKE, u32::MAX >> 1, None);
    }

    /// Wakes whoever waits in any rank.
    pub fn ring_all(&self) {
        (0..self.ranks).for_each(|rank| self.ring(rank));
    }

    /// Waits until `ready` is true, in whatever way others bring that about: they ring.
    pub fn wait(&self, watch: &dyn Watch, mut ready: impl FnMut() -> bool) -> Result<(), Stopped> {
        let bell = self.bell(self.rank);
        let mut looked = Instant::now();
        loop {
            let before = bell.load(Ordering::Acquire);
            if ready() {
                return Ok(());
            }
            if watch.stopped() {
                return Err(Stopped);
            }
            futex(bell, libc::FUTEX_WAIT, before, Some(NAP));
            if looked.elapsed() > LOOK_ROUND {
                self.look_for_dead(watch);
                looked = Instant::now();
            }
        }
    }

    fn look_for_dead(&self, watch: &dyn Watch) {
        for rank in (0..self.ranks).filter(|rank| *rank != self.rank) {
            let page = self.page(rank);
            let started = self.memory.wide(page + STARTED_AT).load(Ordering::Acquire);
            let pid = self.memory.signed(page + PID_AT).load(Ordering::Acquire);
            // Without a start it is still on its way in.
            if started != 0 && start_of(pid) != Some(started) {
                watch.lost(rank);
            }
        }
    }

    /// Waits until every rank has come here.
    pub fn barrier(&self, watch: &dyn Watch) -> Result<(), Stopped> {
        let turn = self.memory.word(BARRIER_TURN_AT);
        let count = self.memory.word(BARRIER_COUNT_AT);
        let now = turn.load(Ordering::Acquire);
        if count.fetch_add(1, Ordering::AcqRel) as usize + 1 == self.ranks {
            count.store(0, Ordering::Release);
            turn.fetch_add(1, Ordering::AcqRel);
            self.ring_all();
            return Ok(());
        }
        self.wait(watch, || turn.load(Ordering::Acquire) != now)
    }

    /// Shows what this rank is about to do.
    pub fn describe(&self, words: [u64; DESCRIPTION]) {
        let page = self.page(self.rank) + DESCRIPTION_AT;
        for (index, word) in words.into_iter().enumerate() {
            self.memory
                .wide(page + index * 8)
                .store(word, Ordering::Release);
        }
    }

    /// What a rank has shown.
    pub fn description(&self, rank: usize) -> [u64; DESCRIPTION] {
        let page = self.page(rank) + DESCRIPTION_AT;
        std::array::from_fn(|index| self.memory.wide(page + index * 8).load(Ordering::Acquire))
    }

    /// The bytes that this rank shows.
    #[expect(
        clippy::mut_from_ref,
        reason = "shared with processes; barriers say who writes"
    )]
    pub fn own_slot(&self) -> &mut [u8] {
        let start = self.memory.at(self.layout.slots + self.rank * SLOT);
        // SAFETY: inside the mapping; between two barriers only this rank's operation, of which
        // one runs at a time, touches its slot.
        unsafe { std::slice::from_raw_parts_mut(start, SLOT) }
    }

    /// The bytes that a rank shows.
    pub fn slot(&self, rank: usize) -> &[u8] {
        let start = self.memory.at(self.layout.slots + rank * SLOT);
        // SAFETY: inside the mapping; between the barriers nobody writes.
        unsafe { std::slice::from_raw_parts(start, SLOT) }
    }

    /// The box of messages from one rank to another.
    pub fn letter_box(&self, from: usize, to: usize) -> LetterBox<'_> {
        let start = self.layout.boxes + (from * self.ranks + to) * BOX_STRIDE;
        LetterBox {
            full: self.memory.word(start),
            length: self.memory.word(start + 4),
            total: self.memory.wide(start + 8),
            bytes: self.memory.at(start + PAGE),
        }
    }

    /// How many signals one rank has sent another.
    pub fn signals(&self, from: usize, to: usize, context: usize) -> &AtomicU64 {
        let index = (to * self.ranks + from) * CONTEXTS + context;
        self.memory.wide(self.layout.signals + index * 8)
    }

    fn note(&self, rank: usize, turn: u64) -> usize {
        let index = (turn % NOTES) as usize;
        self.page(rank) + NOTES_AT + index * (NOTE + 16)
    }

    /// Leaves a note of management for the others; turns begin at one.
    pub fn post(&self, turn: u64, text: &[u8; NOTE]) {
        let at = self.note(self.rank, turn);
        // SAFETY: inside the mapping. Others read it only after the turn's number below, and have
        // read what was there before, or they could not be near this turn.
        unsafe {
            self.memory
                .at(at + 16)
                .copy_from_nonoverlapping(text.as_ptr(), NOTE)
        };
        self.memory.wide(at).store(turn, Ordering::Release);
        self.ring_all();
    }

    /// Waits for the notes of some ranks.
    pub fn collect(
        &self,
        turn: u64,
        ranks: &[usize],
        watch: &dyn Watch,
    ) -> Result<Vec<[u8; NOTE]>, Stopped> {
        let there = |rank: &usize| {
            self.memory
                .wide(self.note(*rank, turn))
                .load(Ordering::Acquire)
                >= turn
        };
        self.wait(watch, || ranks.iter().all(there))?;
        let read = |rank: &usize| {
            let mut text = [0; NOTE];
            let from = self.memory.at(self.note(*rank, turn) + 16);
            // SAFETY: inside the mapping, and written before the number that was waited for.
            unsafe { from.copy_to_nonoverlapping(text.as_mut_ptr(), NOTE) };
            text
        };
        Ok(ranks.iter().map(read).collect())
    }
}

/// Room for a piece of a message.
pub struct LetterBox<'a> {
    /// One while a piece is inside.
    pub full: &'a AtomicU32,
    /// Bytes of the piece.
    pub length: &'a AtomicU32,
    /// Bytes of the message.
    pub total: &'a AtomicU64,
    /// Where the piece is.
    pub bytes: *mut u8,
}

/// Sets a word that is zero, or finds it as wanted; else gives what it is.
fn agree(word: &AtomicU32, wanted: u32) -> Result<(), u32> {
    match word.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Acquire) {
        Err(other) if other != wanted => Err(other),
        _ => Ok(()),
    }
}

/// Waits on a word that processes share, or wakes. A wait may end for no reason.
fn futex(word: &AtomicU32, operation: c_int, value: u32, limit: Option<Duration>) {
    let time = limit.map(|limit| libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let time = time
        .as_ref()
        .map_or(std::ptr::null(), |time| time as *const libc::timespec);
    // SAFETY: the word lives, and the time is null or a local's.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, time) };
}

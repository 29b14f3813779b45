//! The shared memory of one communicator whose ranks live on one machine.
//!
//! Its collectives run in rounds, numbered from 1 and the same on all ranks. In a round a rank posts
//! once: an entry with the round's number as its flag, the fingerprint of the call and a few bytes
//! of payload, and before it, when the payload is larger, a slot. Entries and slots have one writer.
//! An entry's place is used again four rounds later, a slot's two; whoever posts round `n` must have
//! seen everybody post round `n - 1`, so nobody still reads what it overwrites.
//!
//! A word per 64 ranks says who sleeps. This module must not know collectives or who is woken how.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use ferrocomm_core::error::{Error, ErrorKind, Result};

use crate::barrier;
use crate::budget::Budget;
use crate::choosing::Choice;
use crate::cores::{self, Processors};
use crate::memory::Memory;
use crate::near::Near;
use crate::print::Print;
use crate::pulling::Readable;
use crate::segments;
use crate::sync::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use crate::views::Views;

/// Ranks an arena serves at most; larger groups use links.
pub(crate) const MAX_RANKS: usize = 256;
/// Bytes of payload that travel in the cache line of the flag.
pub(crate) const INLINE: usize = 40;
/// The payload of that line, in words.
pub(crate) type Inline = [u64; INLINE / 8];

const MAGIC: u64 = 0x4643_4152_454e_0003;

// Layout: control | entries of rank 0, of rank 1, … | slots of rank 0, of rank 1, …
const RANKS_WORD: usize = 8;
const SLOT_WORD: usize = 16;
/// Two words: how all ranks copy. The first rank decides, since all have to act alike.
const CHOICE: usize = 24;
const SLEEPERS: usize = 64;
const FAILED: usize = 128;
const CAUSE_LENGTH: usize = 136;
const CAUSE: usize = 4096;
const CAUSE_BYTES: usize = 12 << 10;
const PEERS: usize = 16 << 10;
/// Words per rank: process id and whether it reads others, where its probe is, its processors, and
/// where the table of its shared segments is and of which version.
const PEER: usize = 64;
const PROBE: usize = 8;
const PROCESSORS: usize = 16;
const SEGMENTS: usize = 48;
const VERSION: usize = 56;
const READS: u64 = 1 << 32;
const ORDERED: u64 = 1 << 33;
const ENTRIES: usize = PEERS + MAX_RANKS * PEER;
/// A flag is the number of a round, times this, and whether the rank has shared segments and thinks the
/// other one near.
const FLAG: u64 = 4;
const SHARES: u64 = 1;
const NEAR: u64 = 2;

/// What a rank says of itself with a flag.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remarks {
    /// it has announced shared segments, see `segments`
    pub(crate) shares: bool,
    /// it thinks the other of two ranks near
    pub(crate) near: bool,
}

impl Remarks {
    fn of(flag: u64) -> Self {
        Self {
            shares: flag & SHARES != 0,
            near: flag & NEAR != 0,
        }
    }

    fn bits(self) -> u64 {
        u64::from(self.shares) * SHARES + u64::from(self.near) * NEAR
    }

    /// What both say.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            shares: self.shares && other.shares,
            near: self.near && other.near,
        }
    }
}
/// An entry takes two cache lines: processors fetch lines in pairs.
const ENTRY: usize = 128;
const RING: u64 = 4;
const WHAT: usize = 8;
const BYTES: usize = 16;
const PAYLOAD: usize = 24;
const FACTOR: usize = 64;
const PAGE: usize = 4096;

/// Bytes all slots of one half take together: longer slots mean fewer rounds, and much longer ones no
/// fewer that matter.
const SLOTS_TOGETHER: usize = 1 << 20;
const SMALLEST_SLOT: usize = 16 << 10;
/// Of two ranks. Through the caches a slice of half a megabyte goes in one piece, and what is combined of
/// two beside them: when the other rank reads the first line it has left for the cache they share.
const SLOT_OF_PAIR: usize = 3 << 19;

/// Values of the word at `FAILED`.
const HEALTHY: u32 = 0;
const BEING_TOLD: u32 = 1;
const TOLD: u32 = 2;

/// The mapped memory.
pub(crate) struct Arena {
    memory: Memory,
    ranks: usize,
    slot: usize,
    choice: Choice,
    /// what this process thinks of the other rank
    near: Near,
    /// by rank: its shared segments, as they are mapped here
    views: Vec<Mutex<Views>>,
}

fn no_views(ranks: usize) -> Vec<Mutex<Views>> {
    (0..ranks).map(|_| Mutex::default()).collect()
}

fn slot_for(ranks: usize) -> usize {
    if ranks == 2 {
        return SLOT_OF_PAIR;
    }
    (SLOTS_TOGETHER / ranks.max(1)).max(SMALLEST_SLOT) / PAGE * PAGE
}

fn length(ranks: usize, slot: usize) -> usize {
    (ENTRIES + ranks * ENTRY * RING as usize).next_multiple_of(PAGE) + 2 * ranks * slot
}

impl Arena {
    /// Makes the memory for `ranks` ranks, which copy as `choice` says, and the descriptor through
    /// which the others map it.
    ///
    /// # Errors
    /// `Resources` when memory or descriptors run short.
    pub(crate) fn create(ranks: usize, choice: Choice, budget: &Budget) -> Result<(Self, OwnedFd)> {
        let slot = slot_for(ranks);
        let (memory, fd) = Memory::create(length(ranks, slot), budget)?;
        memory
            .atomic_u64(RANKS_WORD)
            .store(ranks as u64, Ordering::Relaxed);
        memory
            .atomic_u64(SLOT_WORD)
            .store(slot as u64, Ordering::Relaxed);
        for (index, from) in [choice.past_caches_from, choice.direct_from]
            .into_iter()
            .enumerate()
        {
            memory
                .atomic_u64(CHOICE + 8 * index)
                .store(from as u64, Ordering::Relaxed);
        }
        memory.atomic_u64(0).store(MAGIC, Ordering::Release);
        Ok((
            Self {
                memory,
                ranks,
                slot,
                choice,
                near: Near::of(ranks),
                views: no_views(ranks),
            },
            fd,
        ))
    }

    /// Maps the memory that the first rank made.
    ///
    /// # Errors
    /// `Transport` when it is not the arena of `ranks` ranks, `Resources` when it cannot be mapped.
    pub(crate) fn open(fd: &OwnedFd, ranks: usize) -> Result<Self> {
        let slot = slot_for(ranks);
        let expected = length(ranks, slot);
        let memory = Memory::open(fd, expected, expected)?;
        let word = |offset| memory.atomic_u64(offset).load(Ordering::Acquire);
        if word(0) != MAGIC || word(RANKS_WORD) != ranks as u64 || word(SLOT_WORD) != slot as u64 {
            return Err(Error::new(
                ErrorKind::Transport,
                "the shared memory of a communicator is another one's",
            ));
        }
        // A length beyond what this process can count is one that it never meets.
        let from = |offset| usize::try_from(word(offset)).unwrap_or(usize::MAX);
        let choice = Choice {
            past_caches_from: from(CHOICE),
            direct_from: from(CHOICE + 8),
        };
        Ok(Self {
            memory,
            ranks,
            slot,
            choice,
            near: Near::of(ranks),
            views: no_views(ranks),
        })
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot
    }

    /// What this process thinks of the other rank.
    pub(crate) fn near(&self) -> &Near {
        &self.near
    }

    /// How its ranks copy; the same for all.
    pub(crate) fn choice(&self) -> Choice {
        self.choice
    }

    #[inline(always)]
    fn entry(&self, rank: usize, round: u64) -> usize {
        ENTRIES + (rank * RING as usize + (round % RING) as usize) * ENTRY
    }

    /// Whether `rank` has posted `round`.
    #[inline(always)]
    pub(crate) fn posted(&self, rank: usize, round: u64) -> bool {
        let flag = self.memory.atomic_u64(self.entry(rank, round));
        flag.load(Ordering::Acquire) / FLAG >= round
    }

    /// What `rank` remarked when it posted `round`. Only after it posted that, and before it posts
    /// `round + RING`.
    #[inline(always)]
    pub(crate) fn remarks(&self, rank: usize, round: u64) -> Remarks {
        let flag = self.memory.atomic_u64(self.entry(rank, round));
        Remarks::of(flag.load(Ordering::Acquire))
    }

    /// What `rank` posted `round` with; only after `posted`.
    #[inline(always)]
    pub(crate) fn print(&self, rank: usize, round: u64) -> Print {
        let entry = self.entry(rank, round);
        let word = |offset| {
            self.memory
                .atomic_u64(entry + offset)
                .load(Ordering::Relaxed)
        };
        Print {
            what: word(WHAT),
            bytes: word(BYTES),
            factor: if Print::has_factor(word(WHAT)) {
                word(FACTOR)
            } else {
                0
            },
        }
    }

    /// Posts `round` with the payload that lies beside the flag, and tells what this rank remarks with
    /// it; what was written to a slot before is
    /// visible to whoever sees the flag.
    ///
    /// The line is written in one go: others look at it all the time, and each look between two stores
    /// takes it away from this processor.
    #[inline(always)]
    pub(crate) fn post(&self, rank: usize, round: u64, print: Print, inline: &Inline) -> Remarks {
        let entry = self.entry(rank, round);
        let store = |offset, value| {
            self.memory
                .atomic_u64(entry + offset)
                .store(value, Ordering::Relaxed);
        };
        // On a line of its own that few need.
        if Print::has_factor(print.what) {
            store(FACTOR, print.factor);
        }
        store(WHAT, print.what);
        store(BYTES, print.bytes);
        self.memory.put(entry + PAYLOAD, inline);
        let remarks = Remarks {
            shares: segments::any(),
            near: self.near.is_near(),
        };
        self.memory
            .atomic_u64(entry)
            .store((round * FLAG) | remarks.bits(), Ordering::Release);
        remarks
    }

    /// Lets what `rank` posts `round` with come to this processor.
    #[inline(always)]
    pub(crate) fn expect(&self, rank: usize, round: u64) {
        let flag = self.memory.pointer(self.entry(rank, round), 8);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: only a hint, and of an address that may be read.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch(flag.cast(), _MM_HINT_T0);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _no_hint_here = flag;
    }

    /// Lets the line of the round after `round`, which `rank` has posted, come to this processor while
    /// it waits for the others. Whoever posts a round has seen all post the one before, so nobody reads
    /// there any more. Locked instructions wait until it is there: this comes after them.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, rank: usize, round: u64) {
        let next = self.entry(rank, round + 1) + WHAT;
        self.memory.atomic_u64(next).store(0, Ordering::Relaxed);
    }

    /// Where the payload of `rank` for `round` lies, if it has `bytes` bytes: with the flag when it
    /// fits there, where `post` puts it, else in a slot. Valid for `bytes` bytes, aligned to 8 or to a
    /// page.
    ///
    /// # Panics
    /// When it is longer than a slot.
    #[inline(always)]
    pub(crate) fn payload(&self, rank: usize, round: u64, bytes: usize) -> *mut u8 {
        if bytes <= INLINE {
            return self
                .memory
                .pointer(self.entry(rank, round) + PAYLOAD, INLINE);
        }
        assert!(bytes <= self.slot, "a payload fits its slot");
        let slots = (ENTRIES + self.ranks * ENTRY * RING as usize).next_multiple_of(PAGE);
        let at = slots + (2 * rank + (round % 2) as usize) * self.slot;
        self.memory.pointer(at, bytes)
    }

    // ---- direct reads

    /// Says how `rank` can be read, whether it reads others, and where it runs. Before its first post.
    pub(crate) fn introduce(&self, rank: usize, who: Readable, reads: bool, on: Processors) {
        let word = self.memory.atomic_u64(PEERS + rank * PEER);
        let probe = self.memory.atomic_u64(PEERS + rank * PEER + PROBE);
        probe.store(who.probe, Ordering::Relaxed);
        let table = self.memory.atomic_u64(PEERS + rank * PEER + SEGMENTS);
        table.store(who.segments, Ordering::Relaxed);
        for (index, processors) in on.into_iter().enumerate() {
            let at = PEERS + rank * PEER + PROCESSORS + 8 * index;
            self.memory
                .atomic_u64(at)
                .store(processors, Ordering::Relaxed);
        }
        let reads = if reads { READS } else { 0 };
        let ordered = if barrier::take_part() { ORDERED } else { 0 };
        word.store(u64::from(who.pid) | reads | ordered, Ordering::Release);
    }

    /// How `rank` can be read, and whether it reads others; after its first post.
    pub(crate) fn peer(&self, rank: usize) -> (Readable, bool) {
        let word = self.memory.atomic_u64(PEERS + rank * PEER);
        let word = word.load(Ordering::Acquire);
        let at = |offset| {
            let word = self.memory.atomic_u64(PEERS + rank * PEER + offset);
            word.load(Ordering::Relaxed)
        };
        let who = Readable {
            pid: (word & u64::from(u32::MAX)) as u32,
            probe: at(PROBE),
            segments: at(SEGMENTS),
        };
        (who, word & READS != 0)
    }

    /// Says what `rank`, this process, has announced; before it posts addresses of its memory.
    pub(crate) fn announce(&self, rank: usize) {
        let word = self.memory.atomic_u64(PEERS + rank * PEER + VERSION);
        let version = segments::version();
        // The others have the line in their caches.
        if word.load(Ordering::Relaxed) != version {
            word.store(version, Ordering::Relaxed);
        }
    }

    /// Where `bytes` bytes of `rank` from `address` on can be read in this process: those that lie in
    /// a segment `rank` has announced. After it posted the address; valid until this is asked for
    /// `rank` again, and longer while `rank` keeps the memory.
    pub(crate) fn view(&self, rank: usize, address: u64, bytes: usize) -> Option<*const u8> {
        let word = self.memory.atomic_u64(PEERS + rank * PEER + VERSION);
        let version = word.load(Ordering::Relaxed);
        if version == 0 {
            return None;
        }
        let mut views = self.views[rank]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        views.find(self.peer(rank).0, version, address, bytes)
    }

    /// Whether sleepers order the memory of all ranks, so that nobody needs a fence after posting;
    /// after everybody's first post.
    pub(crate) fn is_ordered(&self) -> bool {
        (0..self.ranks).all(|rank| {
            let word = self.memory.atomic_u64(PEERS + rank * PEER);
            word.load(Ordering::Acquire) & ORDERED != 0
        })
    }

    /// Whether the ranks have to share processors; after everybody's first post.
    pub(crate) fn is_crowded(&self) -> bool {
        cores::crowded((0..self.ranks).map(|rank| {
            std::array::from_fn(|index| {
                let at = PEERS + rank * PEER + PROCESSORS + 8 * index;
                self.memory.atomic_u64(at).load(Ordering::Relaxed)
            })
        }))
    }

    // ---- sleeping

    fn sleepers(&self, word: usize) -> &AtomicU64 {
        self.memory.atomic_u64(SLEEPERS + 8 * word)
    }

    fn words(&self) -> usize {
        self.ranks.div_ceil(64)
    }

    /// Announces that `rank` goes to sleep. Whoever posts afterwards sees it, or `rank` sees the
    /// post when it looks once more.
    pub(crate) fn lie_down(&self, rank: usize) {
        self.sleepers(rank / 64)
            .fetch_or(1 << (rank % 64), Ordering::SeqCst);
        // Those who post without a fence of their own count on this one.
        if barrier::take_part() && !barrier::order_all() {
            tracing::error!("the kernel gives no barrier any more; a wake-up may come late");
        }
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub(crate) fn get_up(&self, rank: usize) {
        self.sleepers(rank / 64)
            .fetch_and(!(1 << (rank % 64)), Ordering::SeqCst);
    }

    /// Whether somebody sleeps; called after posting. `ordered`: as `is_ordered` told.
    #[inline(always)]
    pub(crate) fn anybody_sleeps(&self, ordered: bool) -> bool {
        if ordered {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        (0..self.words()).any(|word| self.sleepers(word).load(Ordering::Relaxed) != 0)
    }

    /// Takes all announcements: the caller wakes these ranks.
    pub(crate) fn take_sleepers(&self) -> Vec<usize> {
        (0..self.words())
            .flat_map(|word| {
                let bits = self.sleepers(word).swap(0, Ordering::SeqCst);
                (0..64)
                    .filter(move |bit| bits >> bit & 1 == 1)
                    .map(move |bit| word * 64 + bit)
            })
            .filter(|rank| *rank < self.ranks)
            .collect()
    }

    // ---- failing

    fn failed(&self) -> &AtomicU32 {
        self.memory.atomic_u32(FAILED)
    }

    /// Tells all ranks why the communicator failed; the first cause stands.
    pub(crate) fn tell(&self, cause: &[u8]) {
        let first = self
            .failed()
            .compare_exchange(HEALTHY, BEING_TOLD, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if first {
            let cause = &cause[..cause.len().min(CAUSE_BYTES)];
            self.memory.write(CAUSE, cause);
            self.memory
                .atomic_u64(CAUSE_LENGTH)
                .store(cause.len() as u64, Ordering::Relaxed);
            self.failed().store(TOLD, Ordering::Release);
        }
    }

    /// Whether a cause of failure has been told.
    pub(crate) fn is_failed(&self) -> bool {
        self.failed().load(Ordering::Acquire) == TOLD
    }

    /// The cause that was told, as it was given to `tell`.
    pub(crate) fn cause(&self) -> Option<Vec<u8>> {
        if !self.is_failed() {
            return None;
        }
        let length = self.memory.atomic_u64(CAUSE_LENGTH).load(Ordering::Relaxed);
        let length = usize::try_from(length).map_or(CAUSE_BYTES, |length| length.min(CAUSE_BYTES));
        let mut cause = vec![0; length];
        self.memory.read(CAUSE, &mut cause);
        Some(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Arena, Arena) {
        let (one, fd) = Arena::create(3, Choice::DEFAULT, &Budget::of_machine()).unwrap();
        let other = Arena::open(&fd, 3).unwrap();
        (one, other)
    }

    #[test]
    fn what_is_posted_is_seen_with_its_payload() {
        let (one, other) = pair();
        for round in 1..=9 {
            assert!(!other.posted(2, round));
            for bytes in [INLINE + 1, one.slot_bytes()] {
                let to = one.payload(2, round, bytes);
                // SAFETY: it is valid for `bytes` bytes, and no thread runs beside this one.
                unsafe { to.add(bytes - 1).write(round as u8) }
            }
            let print = Print {
                what: round,
                bytes: 7,
                factor: 0,
            };
            one.post(2, round, print, &[u64::from_ne_bytes([round as u8; 8]); 5]);
            assert!(other.posted(2, round));
            assert_eq!(other.print(2, round), print);
            for bytes in [8, INLINE, INLINE + 1, one.slot_bytes()] {
                let from = other.payload(2, round, bytes);
                // SAFETY: as above.
                assert_eq!(unsafe { from.add(bytes - 1).read() }, round as u8);
            }
            assert!(!other.posted(1, round));
        }
    }

    #[test]
    fn sleepers_are_taken_once() {
        let (one, other) = pair();
        one.lie_down(0);
        one.lie_down(2);
        one.get_up(0);
        assert!(other.anybody_sleeps(false));
        assert_eq!(other.take_sleepers(), [2]);
        assert!(!one.anybody_sleeps(false));
    }

    #[test]
    fn the_first_cause_stands() {
        let (one, other) = pair();
        assert!(other.cause().is_none());
        one.tell(b"first");
        other.tell(b"second");
        assert_eq!(other.cause().unwrap(), b"first");
    }

    #[test]
    fn memory_for_another_number_of_ranks_is_refused() {
        let (_, fd) = Arena::create(3, Choice::DEFAULT, &Budget::of_machine()).unwrap();
        assert!(Arena::open(&fd, 2).is_err());
    }

    #[test]
    fn the_choice_of_the_first_rank_is_that_of_all() {
        for choice in [
            Choice::DEFAULT,
            Choice {
                past_caches_from: usize::MAX,
                direct_from: 24 << 10,
            },
        ] {
            let (one, fd) = Arena::create(3, choice, &Budget::of_machine()).unwrap();
            assert_eq!(one.choice(), choice);
            assert_eq!(Arena::open(&fd, 3).unwrap().choice(), choice);
        }
    }
}

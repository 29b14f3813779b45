//! How fast each kernel takes bytes from one processor to another, here and now.
//!
//! Two threads that end with the measurement do what two ranks do: one has just written what it
//! gives, the other wants it in memory of its own. Either the first puts it in pieces into slots
//! and the second takes them, or the second has the kernel read it. Must not know what follows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::Region;

use super::{Choice, NEVER};
use crate::budget::Budget;
use crate::copying::copy_out;
use crate::cores;
use crate::memory::Memory;
use crate::pulling::{self, Readable};

/// A measurement that takes longer is given up: somebody else uses the processors.
pub(super) const LIMIT: Duration = Duration::from_millis(100);

/// Lengths at which kernels are compared, in bytes.
const CACHES: [usize; 4] = [1 << 10, 2 << 10, 4 << 10, 64 << 10];
const READS: [usize; 3] = [64 << 10, 1 << 20, 4 << 20];
const LARGEST: usize = 4 << 20;
/// Bytes of a slot.
const SLOT: usize = 128 << 10;
const LINE: usize = 64;
/// Looks at a word between two looks at the clock.
const LOOKS: u32 = 256;
const NAME: &str = "fc-copies";

/// How bytes go from the giver to the taker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// through slots; from so many bytes on past the caches
    Slots { past_caches_from: usize },
    /// the taker reads
    Direct,
}

/// The choice for this machine. `None` when it cannot be told: there is one processor only, memory
/// is short, or it took longer than `limit`.
pub(super) fn measure(limit: Duration) -> Option<Choice> {
    let sides = cores::two_apart()?;
    let board = Board::new(Instant::now() + limit)?;
    let mut source = vec![0_u8; LARGEST];
    let mut target = vec![0_u8; LARGEST];
    let [source, target] = [&mut source, &mut target].map(|list| Region {
        address: list.as_mut_ptr() as usize,
        bytes: list.len(),
    });
    let start = |name: &str| thread::Builder::new().name(name.to_owned());
    thread::scope(|scope| {
        let board = &board;
        let [on, beside] = sides;
        let taker = start(NAME)
            .spawn_scoped(scope, move || {
                let _ends = Ends(board);
                beside.apply()?;
                Taker {
                    board,
                    source,
                    target,
                }
                .run()
            })
            .ok()?;
        let giver = start(NAME).spawn_scoped(scope, move || {
            let _ends = Ends(board);
            on.apply()?;
            Giver {
                board,
                source,
                orders: 0,
                pieces: 0,
            }
            .choose()
        });
        let Ok(giver) = giver else {
            board.over.store(true, Ordering::Release);
            return None;
        };
        let choice = giver.join().ok()?;
        taker.join().ok()?;
        choice
    })
}

/// Whether a kernel that takes `time` beats one that takes `than` by so much that the choice may rest on
/// it: half as much again. Ranks run on other pairs of processors than the one that was measured, and
/// a hypervisor moves processors about: on one machine, within minutes, a line that another processor
/// has written was seen to cost four times what it had before.
fn beats(time: Duration, than: Duration) -> bool {
    time * 3 <= than * 2
}

/// From which of `lengths`, which grow, on a kernel is used, where without measuring it would be from
/// `default` on: wherever it is the other way round, one must beat the other. At all longer ones it
/// must be used too; `NEVER` when it is nowhere. `times` gives the time without that kernel and the
/// one with it; `None` when it does.
fn used_from(
    lengths: &[usize],
    default: usize,
    mut times: impl FnMut(usize) -> Option<(Duration, Duration)>,
) -> Option<usize> {
    let mut from = NEVER;
    for bytes in lengths.iter().copied().rev() {
        let (without, with) = times(bytes)?;
        let is_used = if bytes >= default {
            !beats(without, with)
        } else {
            beats(with, without)
        };
        if !is_used {
            break;
        }
        from = bytes;
    }
    Some(from)
}

/// What an undisturbed try takes: the slowest of the fastest quarter. Whatever disturbs a try, such as
/// another process that wants the processor, makes it slower and never faster.
fn usual(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 4).copied()
}

/// Each kernel is tried so often at a length, or as often as fits into its share of the time, but
/// so often at least.
const TRIES: usize = 31;
const SHARE: Duration = Duration::from_millis(5);
const LEAST_TRIES: usize = 3;

/// A word on lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Word(AtomicU64);

/// What both threads share.
struct Board {
    slots: Memory,
    end: Instant,
    over: AtomicBool,
    /// what the order says; written before it is given
    bytes: Word,
    direct: AtomicBool,
    /// orders that were given, and that the taker has seen
    ordered: Word,
    ready: Word,
    /// pieces that were put, and that were taken
    put: Word,
    taken: Word,
}

impl Board {
    fn new(end: Instant) -> Option<Self> {
        let slots = Memory::create(2 * SLOT, &Budget::of_machine());
        // The descriptor is not needed: both threads use one mapping.
        let (slots, _) = slots
            .inspect_err(|error| tracing::debug!(%error, "copy kernels are not measured"))
            .ok()?;
        Some(Self {
            slots,
            end,
            over: AtomicBool::new(false),
            bytes: Word::default(),
            direct: AtomicBool::new(false),
            ordered: Word::default(),
            ready: Word::default(),
            put: Word::default(),
            taken: Word::default(),
        })
    }

    /// Waits until `word` is at least `value`; `None` when the measurement ends before.
    fn wait(&self, word: &Word, value: u64) -> Option<()> {
        loop {
            for _ in 0..LOOKS {
                if word.0.load(Ordering::Acquire) >= value {
                    return Some(());
                }
                std::hint::spin_loop();
            }
            if self.over.load(Ordering::Acquire) || Instant::now() >= self.end {
                return None;
            }
            thread::yield_now();
        }
    }

    fn slot(&self, piece: u64) -> *mut u8 {
        self.slots.pointer((piece % 2) as usize * SLOT, SLOT)
    }
}

/// Whoever ends, in whatever way, ends the other.
struct Ends<'a>(&'a Board);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// The side whose bytes they are.
struct Giver<'a> {
    board: &'a Board,
    source: Region,
    orders: u64,
    pieces: u64,
}

impl Giver<'_> {
    fn choose(mut self) -> Option<Choice> {
        let cached = Way::Slots {
            past_caches_from: NEVER,
        };
        let past = Way::Slots {
            past_caches_from: 0,
        };
        let past_caches_from = used_from(&CACHES, Choice::DEFAULT.past_caches_from, |bytes| {
            self.compare(bytes, cached, past)
        })?;
        let slots = Way::Slots { past_caches_from };
        let direct_from = if Readable::own().can_be_read() {
            used_from(&READS, Choice::DEFAULT.direct_from, |bytes| {
                self.compare(bytes, slots, Way::Direct)
            })?
        } else {
            NEVER
        };
        Some(Choice {
            past_caches_from,
            direct_from,
        })
    }

    /// The usual times of two ways, tried in turn; the first try of each brings its memory near.
    fn compare(&mut self, bytes: usize, one: Way, other: Way) -> Option<(Duration, Duration)> {
        let (mut of_one, mut of_other) = (Vec::new(), Vec::new());
        self.give(bytes, one)?;
        self.give(bytes, other)?;
        let begun = Instant::now();
        while of_one.len() < LEAST_TRIES || of_one.len() < TRIES && begun.elapsed() < SHARE {
            of_one.push(self.give(bytes, one)?);
            of_other.push(self.give(bytes, other)?);
        }
        let times = (usual(of_one)?, usual(of_other)?);
        tracing::debug!(bytes, ?one, ?other, ?times, "copy kernels compared");
        Some(times)
    }

    /// How long it takes until the taker has `bytes` bytes that have just been written.
    fn give(&mut self, bytes: usize, way: Way) -> Option<Duration> {
        let board = self.board;
        for at in (0..bytes).step_by(LINE) {
            let place = (self.source.address + at) as *mut u8;
            // SAFETY: it lies in the source, which only this thread uses between two orders.
            unsafe { place.write_volatile(place.read_volatile().wrapping_add(1)) }
        }
        self.orders += 1;
        board.bytes.0.store(bytes as u64, Ordering::Relaxed);
        board.direct.store(way == Way::Direct, Ordering::Relaxed);
        board.ordered.0.store(self.orders, Ordering::Release);
        board.wait(&board.ready, self.orders)?;
        let begun = Instant::now();
        match way {
            Way::Direct => self.hand_over(),
            Way::Slots { past_caches_from } => self.put(bytes, past_caches_from)?,
        }
        board.wait(&board.taken, self.pieces)?;
        Some(begun.elapsed())
    }

    fn hand_over(&mut self) {
        self.pieces += 1;
        self.board.put.0.store(self.pieces, Ordering::Release);
    }

    fn put(&mut self, bytes: usize, past_caches_from: usize) -> Option<()> {
        for start in (0..bytes).step_by(SLOT) {
            let length = SLOT.min(bytes - start);
            // What lies in this slot was put two pieces ago.
            self.board
                .wait(&self.board.taken, self.pieces.saturating_sub(1))?;
            let from = (self.source.address + start) as *const u8;
            let to = self.board.slot(self.pieces);
            // SAFETY: both are as long, and apart; the taker has done with the slot and does not
            // look at it before it is handed over.
            unsafe { copy_out(from, to, length, past_caches_from) }
            self.hand_over();
        }
        Some(())
    }
}

/// The side that wants them.
struct Taker<'a> {
    board: &'a Board,
    source: Region,
    target: Region,
}

impl Taker<'_> {
    /// Takes until the measurement ends.
    fn run(self) -> Option<()> {
        let board = self.board;
        let (mut orders, mut pieces) = (0, 0);
        loop {
            orders += 1;
            board.wait(&board.ordered, orders)?;
            let bytes = board.bytes.0.load(Ordering::Relaxed) as usize;
            let direct = board.direct.load(Ordering::Relaxed);
            board.ready.0.store(orders, Ordering::Release);
            let step = if direct { bytes } else { SLOT };
            for start in (0..bytes).step_by(step) {
                board.wait(&board.put, pieces + 1)?;
                let to = self.target.slice(start, step.min(bytes - start));
                if direct {
                    self.pull(to)?;
                } else {
                    let (from, to, length) = (board.slot(pieces), to.address as *mut u8, to.bytes);
                    // SAFETY: both are as long, and apart; the giver does not write to a slot
                    // before the piece in it is taken.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, length) }
                }
                pieces += 1;
                board.taken.0.store(pieces, Ordering::Release);
            }
        }
    }

    fn pull(&self, to: Region) -> Option<()> {
        // SAFETY: the target is this thread's alone as long as the measurement lasts.
        unsafe { pulling::pull(std::process::id(), self.source.address as u64, to) }
            .inspect_err(|error| tracing::debug!(%error, "copy kernels are not measured"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(lengths: &[usize], default: usize, times: &[(u64, u64)]) -> usize {
        let nanos = Duration::from_nanos;
        used_from(lengths, default, |bytes| {
            let at = lengths.iter().position(|length| *length == bytes).unwrap();
            Some((nanos(times[at].0), nanos(times[at].1)))
        })
        .unwrap()
    }

    #[test]
    fn a_kernel_is_used_from_where_it_wins_at_all_longer_lengths() {
        let decide = |times: [(u64, u64); 3]| decide(&[1, 4, 64], NEVER, &times);
        assert_eq!(decide([(100, 50), (100, 50), (100, 50)]), 1);
        assert_eq!(decide([(100, 99), (100, 50), (100, 50)]), 4);
        // The loss in the middle counts, not the win before it.
        assert_eq!(decide([(100, 10), (100, 120), (100, 50)]), 64);
        assert_eq!(decide([(100, 10), (100, 10), (100, 100)]), NEVER);
        // By half as much again or not at all.
        assert_eq!(decide([(150, 100); 3]), 1);
        assert_eq!(decide([(149, 100); 3]), NEVER);
    }

    #[test]
    fn what_is_used_by_default_must_be_beaten_to_be_given_up() {
        let decide = |times: [(u64, u64); 3]| decide(&[1, 4, 64], 4, &times);
        // Nothing stands out.
        assert_eq!(decide([(100, 100); 3]), 4);
        assert_eq!(decide([(100, 110); 3]), 4);
        assert_eq!(decide([(100, 90); 3]), 4);
        // Shorter ones where it wins, longer ones alone, or none.
        assert_eq!(decide([(300, 100); 3]), 1);
        assert_eq!(decide([(300, 100), (100, 300), (100, 100)]), 64);
        assert_eq!(decide([(300, 100), (300, 100), (100, 150)]), NEVER);
    }

    #[test]
    fn what_cannot_be_measured_is_not_decided() {
        assert_eq!(used_from(&[1, 4], NEVER, |_| None), None);
        let ten = Duration::from_nanos(10);
        let only_long = |bytes| (bytes == 4).then_some((ten, ten / 2));
        assert_eq!(used_from(&[1, 4], NEVER, only_long), None);
    }

    #[test]
    fn tries_that_were_disturbed_do_not_count() {
        let times = [1_000_000, 3, 1, 1_000_000, 2, 1_000_000, 2, 5].map(Duration::from_nanos);
        assert_eq!(usual(times.to_vec()), Some(Duration::from_nanos(2)));
        assert_eq!(usual(vec![times[0]]), Some(times[0]));
        assert_eq!(usual(Vec::new()), None);
    }

    fn threads_of_a_measurement() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        };
        tasks.map(name).filter(|name| name.trim() == NAME).count()
    }

    #[test]
    fn a_measurement_ends_in_time_and_leaves_no_thread() {
        const WATCHDOG: Duration = Duration::from_secs(20);
        for limit in [Duration::ZERO, Duration::from_millis(2), LIMIT] {
            let begun = Instant::now();
            let choice = measure(limit);
            assert!(begun.elapsed() < WATCHDOG, "{:?}", begun.elapsed());
            assert!(!limit.is_zero() || choice.is_none());
            if let Some(choice) = choice {
                assert!(
                    choice.past_caches_from == NEVER || CACHES.contains(&choice.past_caches_from)
                );
                assert!(choice.direct_from == NEVER || READS.contains(&choice.direct_from));
            }
        }
        // A thread that was joined may be listed for another moment, and an arena made by another
        // test may have its own measured now.
        let begun = Instant::now();
        while threads_of_a_measurement() > 0 {
            assert!(begun.elapsed() < WATCHDOG, "a thread is left");
            thread::yield_now();
        }
    }

    #[test]
    fn every_way_brings_what_was_written() {
        let board = Board::new(Instant::now() + Duration::from_secs(60)).unwrap();
        let mut source: Vec<u8> = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect();
        let mut target = vec![0_u8; source.len()];
        let bytes = source.len();
        let [from, to] = [&mut source, &mut target].map(|list| Region {
            address: list.as_mut_ptr() as usize,
            bytes: list.len(),
        });
        let ways = [0, NEVER].map(|past_caches_from| Way::Slots { past_caches_from });
        for way in ways.into_iter().chain([Way::Direct]) {
            let board = &Board {
                over: AtomicBool::new(false),
                ..Board::new(board.end).unwrap()
            };
            thread::scope(|scope| {
                let taker = scope.spawn(|| {
                    Taker {
                        board,
                        source: from,
                        target: to,
                    }
                    .run()
                });
                let ends = Ends(board);
                let mut giver = Giver {
                    board,
                    source: from,
                    orders: 0,
                    pieces: 0,
                };
                for length in [1000, SLOT + 7, bytes] {
                    giver.give(length, way).unwrap();
                }
                drop(ends);
                taker.join().unwrap();
            });
            assert!(source == target, "{way:?}");
        }
    }
}

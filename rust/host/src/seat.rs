//! This rank's place on an arena: where it stands in the rounds, and whom it wakes.
//!
//! Whoever holds the position drives. A thread that waits for one short collective may do so without
//! the engine's lock; the engine itself never waits for the position. Must not know operations.

use std::os::unix::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferrocomm_core::call::Collective;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::Error;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::arena::Arena;
use crate::bell::Bell;
use crate::meeting::{Brief, Meeting, Position, Settled, Stepped};

/// Longer than it takes to wake a sleeping process, so that ranks which once slept find back to
/// spinning.
const SPIN: Duration = Duration::from_micros(200);

/// A rank's seat on an arena.
pub(crate) struct Seat {
    arena: Arena,
    me: usize,
    /// only ever tried
    position: SpinMutex<Position>,
    bell: Arc<Bell>,
    /// by rank
    others: Vec<SocketAddr>,
    /// how long a wait is worth spinning, once all ranks have said where they run
    spin: OnceLock<Duration>,
    /// whether sleepers order the memory of all ranks, once all have said whether they do
    ordered: OnceLock<bool>,
}

/// The right to post on a seat.
pub(crate) type Turn<'a> = SpinMutexGuard<'a, Position>;

impl Seat {
    pub(crate) fn new(arena: Arena, me: usize, bell: Arc<Bell>, others: Vec<SocketAddr>) -> Self {
        Self {
            arena,
            me,
            position: SpinMutex::new(Position::new()),
            bell,
            others,
            spin: OnceLock::new(),
            ordered: OnceLock::new(),
        }
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// How long a wait is worth spinning. Before everybody has come for the first time, nobody knows:
    /// not at all.
    #[inline(always)]
    pub(crate) fn spin(&self, turn: &Position) -> Duration {
        if let Some(spin) = self.spin.get() {
            return *spin;
        }
        if !turn.has_begun() {
            return Duration::ZERO;
        }
        let crowded = self.arena.is_crowded();
        *self
            .spin
            .get_or_init(|| if crowded { Duration::ZERO } else { SPIN })
    }

    /// Whether posting needs no fence.
    #[inline(always)]
    fn is_ordered(&self, turn: &Position) -> bool {
        match self.ordered.get() {
            Some(ordered) => *ordered,
            None if turn.has_begun() => *self.ordered.get_or_init(|| self.arena.is_ordered()),
            None => false,
        }
    }

    /// The position, unless another thread drives.
    pub(crate) fn try_turn(&self) -> Option<Turn<'_>> {
        self.position.try_lock()
    }

    /// Takes `meeting` as far as it goes, and wakes those who waited for that.
    pub(crate) fn step(&self, meeting: &mut Meeting, turn: &mut Position) -> Stepped {
        let ordered = self.is_ordered(turn);
        meeting.step(&self.arena, self.me, turn, |round, alone| {
            self.rouse(ordered, round, alone);
        })
    }

    /// `collective` as a brief one, if it is one.
    #[inline(always)]
    pub(crate) fn brief(&self, collective: &Collective, dtype: Dtype) -> Option<Brief<'_>> {
        Brief::of(collective, dtype, &self.arena, self.me)
    }

    /// Posts `brief`, and wakes those who waited for that; whether it could.
    #[inline(always)]
    pub(crate) fn post(&self, brief: &Brief<'_>, turn: &mut Position) -> bool {
        let ordered = self.is_ordered(turn);
        let posted = brief.post(turn);
        if let Some(round) = posted {
            self.rouse(ordered, round, false);
        }
        posted.is_some()
    }

    /// Wakes those who sleep, when `round` was the last they waited for. `alone`: they wait for this
    /// rank alone.
    #[inline(always)]
    fn rouse(&self, ordered: bool, round: u64, alone: bool) {
        if self.arena.anybody_sleeps(ordered) && (alone || self.is_last(round)) {
            self.wake();
        }
    }

    /// Whether everybody has posted `round`. Of the ranks that post at one time, one sees it: they
    /// look after a full fence.
    fn is_last(&self, round: u64) -> bool {
        fence(Ordering::SeqCst);
        (0..self.arena.ranks()).all(|rank| self.arena.posted(rank, round))
    }

    fn wake(&self) {
        for rank in self.arena.take_sleepers() {
            if let Some(name) = self.others.get(rank).filter(|_| rank != self.me) {
                self.bell.ring_at(name);
            }
        }
    }

    /// Tells all ranks why the communicator failed.
    pub(crate) fn tell(&self, cause: &[u8]) {
        self.arena.tell(cause);
        fence(Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn cause(&self) -> Option<Error> {
        self.arena
            .cause()
            .map(|cause| crate::frame::decode_failure(&cause))
    }

    /// Whether everybody has posted what this rank has, and agrees; open while another thread drives.
    pub(crate) fn settled(&self) -> Settled {
        match self.try_turn() {
            Some(mut turn) => turn.settle_all(&self.arena, self.me),
            None => Settled::Open,
        }
    }

    pub(crate) fn lie_down(&self) {
        self.arena.lie_down(self.me);
    }

    pub(crate) fn get_up(&self) {
        self.arena.get_up(self.me);
    }
}

/// Where a communicator's handle and the engine find its seat.
#[derive(Default)]
pub(crate) struct Place {
    seat: OnceLock<Arc<Seat>>,
    queued: AtomicUsize,
}

impl Place {
    pub(crate) fn seat(&self) -> Option<&Arc<Seat>> {
        self.seat.get()
    }

    pub(crate) fn sit_down(&self, seat: Seat) -> &Arc<Seat> {
        self.seat.get_or_init(|| Arc::new(seat))
    }

    /// Notes how many collectives the engine has queued.
    pub(crate) fn set_queued(&self, queued: usize) {
        self.queued.store(queued, Ordering::SeqCst);
    }

    /// How many collectives the engine has queued.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::SeqCst)
    }

    /// Whether the engine has queued collectives; one that gives back its turn sees those that could
    /// not get it.
    pub(crate) fn has_queued_meanwhile(&self) -> bool {
        // The turn has been given back before this looks. On x86 a locked instruction orders the two as a
        // fence does, in a fraction of its time.
        #[cfg(not(target_arch = "x86_64"))]
        fence(Ordering::SeqCst);
        self.queued
            .compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
    }
}

//! Collectives in shared memory inside the progress engine: the arena of a communicator comes into
//! being, its meetings are driven, sleepers announce themselves, and the dead are noticed.
//!
//! The first rank of a communicator makes its arena when it calls a collective, and hands it to the
//! others through their local sockets; nobody has to answer. Part of the progress engine's state,
//! under the same lock; nothing here blocks. Must not know what happens in a round.

use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Collective, Mode};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank, ProcessId};
use ferrocomm_core::work::Work;

use crate::arena::{Arena, MAX_RANKS};
use crate::bell::Bell;
use crate::bootstrap::Member;
use crate::choosing::{self, DirectReads};
use crate::core::Core;
use crate::cores;
use crate::endpoint::{Watch, Watched};
use crate::link::LinkState;
use crate::meeting::{Meeting, Settled, Stepped};
use crate::membership::{Membership, Seating, Standing};
use crate::op::Course;
use crate::pulling::Readable;
use crate::seat::{Seat, Turn};
use crate::slab::Key;
use crate::stream::StreamKind;

/// Arenas of communicators this rank has not made yet that are kept.
const OFFERS: usize = 256;
/// A meeting that waits for so long has its missing ranks watched.
const UNEASY: Duration = Duration::from_millis(50);

/// An arena another process handed over, or that it could not make one.
pub(crate) struct Offer {
    pub(crate) from: ProcessId,
    pub(crate) memory: Option<OwnedFd>,
}

impl Core {
    /// Whether a group of these members meets in shared memory.
    pub(crate) fn seating_for(&self, members: &[Member]) -> Seating {
        let own = self.endpoint.me.machine;
        let near = members.iter().all(|member| {
            member.machine == own && self.endpoint.kind_for(member) == StreamKind::Shm
        });
        if near && (2..=MAX_RANKS).contains(&members.len()) {
            Seating::Wanted
        } else {
            Seating::Links
        }
    }

    // ---- the arena

    /// Takes note of an arena that came for a communicator.
    pub(crate) fn offered(&mut self, comm: CommId, offer: Offer) {
        if self.closed.contains(&comm) || self.offers.len() >= OFFERS {
            return;
        }
        if let Entry::Vacant(vacant) = self.offers.entry(comm) {
            vacant.insert(offer);
        }
        let front = self.groups.get(&comm).and_then(|group| group.queue.front());
        self.ready.extend(front);
    }

    /// Seats the communicator when its arena can be had; whether that is decided.
    fn seat(&mut self, comm: CommId) -> Result<bool> {
        let Some(group) = self.groups.get(&comm) else {
            return Ok(true);
        };
        if !matches!(group.seating, Seating::Wanted) {
            return Ok(true);
        }
        let is_first = group.rank.index() == 0;
        let arena = if is_first {
            self.make_arena(comm)?
        } else {
            let Some(offer) = self.offers.remove(&comm) else {
                return Ok(false);
            };
            let Some(group) = self.groups.get(&comm) else {
                return Ok(true);
            };
            if group.members.first().map(|first| first.process) != Some(offer.from) {
                return Err(Error::new(
                    ErrorKind::Transport,
                    "shared memory came from a rank that does not make it",
                ));
            }
            offer
                .memory
                .map(|fd| Arena::open(&fd, group.members.len()))
                .transpose()?
        };
        if let (Some(arena), false) = (&arena, is_first) {
            self.introduce(comm, arena)?;
        }
        self.sit_down(comm, arena)?;
        Ok(true)
    }

    /// Tells the others how this process can be read, and whether it can read the first rank: what
    /// holds of it holds of the others, which are processes of the same user on the same machine.
    fn introduce(&self, comm: CommId, arena: &Arena) -> Result<()> {
        let rank = self.groups.get(&comm).map_or(0, |group| group.rank.index());
        let reads = DirectReads::from_environment()? != DirectReads::Off
            && (rank == 0 || arena.peer(0).1 && arena.peer(0).0.can_be_read());
        arena.introduce(rank, Readable::own(), reads, cores::own());
        Ok(())
    }

    fn sit_down(&mut self, comm: CommId, arena: Option<Arena>) -> Result<()> {
        let bell = self.bell.clone();
        let Some(group) = self.groups.get_mut(&comm) else {
            return Ok(());
        };
        group.seating = match arena {
            None => Seating::Links,
            Some(arena) => {
                let names = group
                    .members
                    .iter()
                    .map(|member| Bell::name_of(&member.unix));
                let names = names.collect::<Result<Vec<_>>>()?;
                let seat = Seat::new(arena, group.rank.index(), bell, names);
                Seating::Seated(group.place.sit_down(seat).clone())
            }
        };
        Ok(())
    }

    /// Makes the arena and hands it to everybody. Where memory is short all use links.
    fn make_arena(&mut self, comm: CommId) -> Result<Option<Arena>> {
        let Some(group) = self.groups.get(&comm) else {
            return Ok(None);
        };
        let ranks = group.members.len();
        let choice = choosing::for_arena(ranks)?;
        let made = match self.endpoint.make_arena(ranks, choice) {
            Ok(made) => Some(made),
            Err(error) => {
                tracing::warn!(%error, communicator = %group.name, "collectives use connections");
                None
            }
        };
        if let Some((arena, _)) = &made {
            self.introduce(comm, arena)?;
        }
        let fd = made.as_ref().map(|(_, fd)| fd);
        for (rank, member) in (0u32..).zip(group.members.iter()).skip(1) {
            self.endpoint
                .hand_arena(member, comm, fd)
                .map_err(|error| error.peers([GroupRank::new(rank)]))?;
        }
        Ok(made.map(|(arena, _)| arena))
    }

    // ---- meetings

    /// Decides how a collective at the head of its queue runs, and starts it.
    pub(crate) fn decide(&mut self, key: Key) {
        let Some(comm) = self.ops.get(key).map(|op| op.comm) else {
            return;
        };
        match self.seat(comm) {
            Ok(true) => {}
            Ok(false) => {
                if !self.meetings.contains(&key) {
                    self.meetings.push(key);
                }
                return;
            }
            Err(error) => return self.fail(comm, error),
        }
        self.meetings.retain(|waiting| *waiting != key);
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let Course::Undecided { collective, dtype } = &op.body else {
            return;
        };
        let (collective, dtype) = (collective.clone(), *dtype);
        let seat = self.groups.get(&comm).and_then(Membership::seat).cloned();
        let started = match seat {
            Some(_) => {
                self.begin_meeting(key, collective, dtype);
                Ok(())
            }
            None => self.start_program(key, &collective, dtype),
        };
        if let Err(error) = started {
            self.fail(comm, error);
        }
    }

    fn begin_meeting(&mut self, key: Key, collective: Collective, dtype: Dtype) {
        if let Some(op) = self.ops.get_mut(key) {
            op.body = Course::Meeting(Box::new(Meeting::new(collective, dtype)));
            self.meetings.push(key);
            self.advance_meeting(key);
        }
    }

    /// Takes over a collective that a thread began on its own, and its turn.
    pub(crate) fn take_over(
        &mut self,
        comm: CommId,
        meeting: Meeting,
        work: &Arc<Work>,
        (mode, timeout): (Mode, Duration),
        turn: Turn<'_>,
    ) {
        let body = Course::Meeting(Box::new(meeting));
        let key = self.add_op(work, comm, work.sequence(), timeout, mode, body);
        self.set_deadline(key);
        self.meetings.push(key);
        if let Some(group) = self.groups.get_mut(&comm) {
            group.queue.push_front(key);
            group.place.set_queued(group.queue.len());
        }
        drop(turn);
        let standing = self.groups.get(&comm).map(|group| &group.standing);
        match standing {
            Some(Standing::Open) => self.ready.push_back(key),
            Some(Standing::Failed(error)) => {
                let error = error.clone();
                self.fail_alone(key, error);
            }
            None => self.fail_alone(
                key,
                Error::new(ErrorKind::State, "the communicator is finalized"),
            ),
        }
    }

    /// Goes on with the collective at the head of the queue, if it could not get its turn before.
    pub(crate) fn kick(&mut self, comm: CommId) {
        let front = self.groups.get(&comm).and_then(|group| group.queue.front());
        self.ready.extend(front);
    }

    /// Takes every meeting as far as it goes; whether anything moved.
    pub(crate) fn step_meetings(&mut self) -> bool {
        let mut moved = false;
        let mut index = 0;
        while let Some(key) = self.meetings.get(index).copied() {
            let undecided = self
                .ops
                .get(key)
                .is_some_and(|op| matches!(op.body, Course::Undecided { .. }));
            if undecided {
                self.decide(key);
            } else {
                moved |= self.advance_meeting(key);
            }
            if self.meetings.get(index) == Some(&key) {
                index += 1;
            }
        }
        moved
    }

    /// Whether the meeting got any further.
    pub(crate) fn advance_meeting(&mut self, key: Key) -> bool {
        let Some(op) = self.ops.get_mut(key) else {
            self.meetings.retain(|waiting| *waiting != key);
            return false;
        };
        let Course::Meeting(meeting) = &mut op.body else {
            return false;
        };
        let (comm, sequence) = (op.comm, op.sequence);
        let Some(group) = self.groups.get(&comm) else {
            return false;
        };
        // Another collective is at its head: this one was begun out of order and waits.
        if group.queue.front() != Some(&key) {
            return false;
        }
        let Some(seat) = group.seat().cloned() else {
            return false;
        };
        let stepped = match seat.try_turn() {
            // Whoever has it kicks when it is done.
            None => return false,
            Some(_) if seat.arena().is_failed() => Stepped::Waiting(false),
            Some(mut turn) => seat.step(meeting, &mut turn),
        };
        match stepped {
            Stepped::Done => {
                self.finish(key, Ok(()));
                true
            }
            Stepped::Waiting(moved) => match seat.cause() {
                Some(cause) => {
                    self.fail_here(comm, cause);
                    true
                }
                None => moved,
            },
            Stepped::Differs { rank, theirs, ours } => {
                let error = group.differs(sequence, rank, ours, theirs);
                self.fail(comm, error);
                true
            }
            // A rank that fails tells why before it takes its buffers back.
            Stepped::Failed(error) => {
                match seat.cause() {
                    Some(cause) => self.fail_here(comm, cause),
                    None => self.fail(comm, error),
                }
                true
            }
        }
    }

    /// The ranks a collective waits for.
    pub(crate) fn missing(&mut self, key: Key) -> Vec<GroupRank> {
        let Some(op) = self.ops.get_mut(key) else {
            return Vec::new();
        };
        let seat = self.groups.get(&op.comm).and_then(Membership::seat);
        let missing = match (&mut op.body, seat) {
            (Course::Undecided { .. }, _) => vec![0],
            (Course::Awaiting { from, .. }, _) => vec![from.index()],
            (Course::Meeting(meeting), Some(seat)) => match seat.try_turn() {
                Some(turn) => meeting.missing(seat.arena(), seat.me(), &turn),
                None => Vec::new(),
            },
            _ => Vec::new(),
        };
        missing
            .into_iter()
            .filter_map(|rank| u32::try_from(rank).ok().map(GroupRank::new))
            .collect()
    }

    /// For the end of a communicator: whether all ranks have come as far as this one and agree, or it
    /// has failed.
    pub(crate) fn met(&mut self, comm: CommId) -> bool {
        let Some(group) = self.groups.get(&comm) else {
            return true;
        };
        let Some(seat) = group.seat().cloned() else {
            return true;
        };
        if matches!(group.standing, Standing::Failed(_)) {
            return true;
        }
        if let Some(cause) = seat.cause() {
            self.fail_here(comm, cause);
            return true;
        }
        match seat.settled() {
            Settled::Yes => true,
            Settled::Open => false,
            Settled::Differs { rank, theirs, ours } => {
                let sequence = group.collectives();
                let error = group.differs(sequence, rank, ours, theirs);
                self.fail(comm, error);
                true
            }
        }
    }

    // ---- sleeping

    /// Announces to all arenas in use that this process goes to sleep; `false` when there is
    /// something to do at once.
    pub(crate) fn lie_down(&mut self) -> bool {
        let mut seats: Vec<Arc<Seat>> = Vec::new();
        let meeting = self.meetings.iter().filter_map(|key| self.ops.get(*key));
        let comms = meeting
            .map(|op| op.comm)
            .chain(self.closing.iter().copied());
        for seat in comms.filter_map(|comm| self.groups.get(&comm)?.seat()) {
            if !seats.iter().any(|other| Arc::ptr_eq(other, seat)) {
                seat.lie_down();
                seats.push(seat.clone());
            }
        }
        self.lying = seats;
        self.lie_down_at_windows();
        let moved = self.step_meetings() | self.serve_waits();
        let closing = self.closing.clone();
        let met = closing.into_iter().any(|comm| self.met(comm));
        let quiet = !moved && !met && self.finished.is_empty() && self.ready.is_empty();
        if !quiet {
            self.get_up();
        }
        quiet
    }

    pub(crate) fn get_up(&mut self) {
        for seat in std::mem::take(&mut self.lying) {
            seat.get_up();
        }
        self.get_up_at_windows();
    }

    // ---- the dead

    /// Watches the ranks that meetings and signals have waited for long, and fails those whose ranks are gone.
    pub(crate) fn watch_missing(&mut self, now: Instant) {
        let mut index = 0;
        let waiting = |core: &Self, index| {
            let awaiting = core.awaiting.iter();
            core.meetings.iter().chain(awaiting).nth(index).copied()
        };
        while let Some(key) = waiting(self, index) {
            index += 1;
            let Some(op) = self.ops.get(key) else {
                continue;
            };
            let begun = op.deadline.and_then(|end| end.checked_sub(op.timeout));
            if begun.is_none_or(|begun| now.saturating_duration_since(begun) < UNEASY) {
                continue;
            }
            let comm = op.comm;
            for rank in self.missing(key) {
                self.watch(comm, rank);
            }
        }
    }

    fn watch(&mut self, comm: CommId, rank: GroupRank) {
        let Some(member) = self
            .groups
            .get(&comm)
            .and_then(|group| group.members.get(rank.index()))
            .cloned()
        else {
            return;
        };
        let link = self.by_process.get(&member.process);
        match link
            .and_then(|key| self.links.get(*key))
            .map(|link| &link.state)
        {
            Some(LinkState::Dead(error)) => {
                let error = error.clone().peers([rank]);
                return self.fail(comm, error);
            }
            Some(LinkState::Open) => return,
            Some(LinkState::Idle) | None => {}
        }
        if self
            .watches
            .iter()
            .any(|watch| watch.process == member.process)
        {
            return;
        }
        let near = member.machine == self.endpoint.me.machine;
        let watched = if near {
            self.endpoint.watch(&member)
        } else {
            Ok(Watched::NotByPid)
        };
        match watched {
            Ok(Watched::By(watch)) => self.watches.push(watch),
            // Another machine or pid namespace: its connection tells when it ends.
            Ok(Watched::NotByPid) => {
                if let Err(error) = self.link_to(comm, rank) {
                    self.fail(comm, error);
                }
            }
            Ok(Watched::Own) => {}
            Err(error) => {
                tracing::debug!(%error, "a peer cannot be watched");
                self.process_died(member.process);
            }
        }
    }

    /// Takes note of a watched process that has ended.
    pub(crate) fn look_at_watches(&mut self) {
        let (ended, alive): (Vec<Watch>, Vec<Watch>) = std::mem::take(&mut self.watches)
            .into_iter()
            .partition(Watch::has_ended);
        self.watches = alive;
        if !ended.is_empty() {
            // What the dead did before they died counts.
            self.step_meetings();
        }
        for watch in ended {
            self.process_died(watch.process);
        }
    }

    fn process_died(&mut self, process: ProcessId) {
        let key = self.link_of(process);
        self.link_died(key, &io::ErrorKind::UnexpectedEof.into());
    }

    /// Whether a meeting of this communicator cannot go on without `rank`.
    pub(crate) fn meets_without(&mut self, comm: CommId, rank: GroupRank) -> bool {
        let keys: Vec<Key> = self
            .meetings
            .iter()
            .copied()
            .filter(|key| self.ops.get(*key).is_some_and(|op| op.comm == comm))
            .collect();
        keys.into_iter()
            .any(|key| self.missing(key).contains(&rank))
    }
}

//! Ranks that ask one another about a collective: one that closes its communicator, whether what it
//! sent fits; one that waits for long, whether those it waits for called the same. Without the
//! second, ranks that all wait and send nothing would learn of a mismatch from no message. A rank
//! that answers says for whom it waits itself: so a time-out can name the rank that holds up all.
//!
//! Part of the progress engine's state, under the same lock. Must not know matching or streams.

use std::time::{Duration, Instant};

use ferrocomm_core::call::Source;
use ferrocomm_core::ids::{CommId, GroupRank};

use crate::core::Core;
use crate::frame::{Header, Kind, encode_failure};
use crate::link::LinkState;
use crate::membership::{Question, Standing};
use crate::op::{Course, Op, Transfer};
use crate::slab::Key;

/// A collective that has run for so long asks the ranks it waits for.
const UNEASY: Duration = Duration::from_millis(100);

/// So many ranks are named in an answer.
const NAMED: usize = 64;

/// Values of `part` in a verdict: the collective asked for was called here and fits, or an earlier one
/// still runs.
const CALLED: u32 = 0;
const NOT_YET: u32 = 1;

/// Whom a collective has asked whether they called the same.
#[derive(Default)]
pub(crate) struct Asked {
    ranks: Vec<GroupRank>,
    /// of these
    answered: Vec<GroupRank>,
    /// it has asked a second time, when whoever waits waits for the last in the chain
    again: bool,
}

impl Core {
    /// A peer asks whether its collective fits what this rank called.
    pub(crate) fn asked(&mut self, key: Key, header: &Header) {
        if self.closed.contains(&header.comm) {
            let mut verdict = Header::control(Kind::Verdict, header.comm);
            verdict.sequence = header.sequence;
            return self.push_control(key, &verdict, Vec::new());
        }
        let Some(from) = self.sender(key, header.comm) else {
            return self.keep(key, header, None);
        };
        let Some(group) = self.groups.get_mut(&header.comm) else {
            return;
        };
        match &group.standing {
            Standing::Failed(error) => {
                let payload = encode_failure(error, group.rank);
                let mut failure = Header::control(Kind::Failure, header.comm);
                failure.payload = u32::try_from(payload.len()).unwrap_or(0);
                self.push_control(key, &failure, payload);
            }
            Standing::Open => {
                let question = Question {
                    rank: from,
                    sequence: header.sequence,
                    fingerprint: header.fingerprint,
                };
                if !group.has_issued(question) {
                    self.put_off(header.comm, from, header.sequence);
                } else if self.fits_calls(header, from) {
                    self.answer(header.comm, from, header.sequence);
                }
            }
        }
    }

    /// Tells `rank` that collective `sequence` is issued here and fits.
    pub(crate) fn answer(&mut self, comm: CommId, rank: GroupRank, sequence: u64) {
        self.tell_awaited(comm, rank, sequence, CALLED);
    }

    /// Tells `rank`, which is at `sequence`, who holds up an earlier collective here. Without one
    /// this rank itself is late, which its silence says.
    fn put_off(&mut self, comm: CommId, rank: GroupRank, sequence: u64) {
        if !self.awaited_first(comm).is_empty() {
            self.tell_awaited(comm, rank, sequence, NOT_YET);
        }
    }

    /// Whom the collective that runs here waits for; those behind it wait for the same.
    fn awaited_first(&self, comm: CommId) -> Vec<GroupRank> {
        let first = self.groups.get(&comm).and_then(|group| group.queue.front());
        first.map_or(Vec::new(), |key| self.awaited(*key))
    }

    fn tell_awaited(&mut self, comm: CommId, rank: GroupRank, sequence: u64, called: u32) {
        let awaited: Vec<u8> = self
            .awaited_first(comm)
            .iter()
            .take(NAMED)
            .flat_map(|rank| rank.get().to_le_bytes())
            .collect();
        let mut verdict = Header::control(Kind::Verdict, comm);
        verdict.sequence = sequence;
        verdict.part = called;
        verdict.payload = u32::try_from(awaited.len()).unwrap_or(0);
        if let Ok(link) = self.link_to(comm, rank) {
            self.push_control(link, &verdict, awaited);
        }
    }

    /// The collective `sequence`, while it runs as messages.
    fn running(&self, comm: CommId, sequence: u64) -> Option<Key> {
        let key = *self.groups.get(&comm)?.queue.front()?;
        let op = self.ops.get(key)?;
        (op.sequence == sequence && matches!(op.body, Course::Program { .. })).then_some(key)
    }

    /// A rank has called the same, or not yet, and waits for the messages of `awaited` itself.
    pub(crate) fn answered(&mut self, link: Key, header: &Header, awaited: &[u8]) {
        let Some(from) = self.sender(link, header.comm) else {
            return;
        };
        let Some(group) = self.groups.get_mut(&header.comm) else {
            return;
        };
        if header.part == CALLED {
            group.heard(from, header.sequence);
        }
        let (own, size) = (group.rank, group.members.len());
        let Some(key) = self.running(header.comm, header.sequence) else {
            return;
        };
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.asked.answered.push(from);
        let awaited: Vec<GroupRank> = awaited
            .chunks_exact(4)
            .filter_map(|four| four.try_into().ok().map(u32::from_le_bytes))
            .map(GroupRank::new)
            .filter(|rank| *rank != own && rank.index() < size)
            .collect();
        self.put_to(key, awaited);
    }

    /// Asks the ranks that may disagree about what they were sent.
    pub(crate) fn ask(&mut self, comm: CommId) {
        let unheard: Vec<Question> = self
            .groups
            .get(&comm)
            .map_or(Vec::new(), |group| group.unheard().collect());
        for question in unheard {
            self.put(comm, question);
        }
    }

    fn put(&mut self, comm: CommId, question: Question) {
        let mut query = Header::control(Kind::Query, comm);
        query.sequence = question.sequence;
        query.fingerprint = question.fingerprint;
        if let Ok(link) = self.link_to(comm, question.rank) {
            self.push_control(link, &query, Vec::new());
        }
    }

    /// Collectives that have run for long ask each rank they wait for, and again when half of their
    /// time is over.
    pub(crate) fn ask_awaited(&mut self, now: Instant) {
        let uneasy: Vec<Key> = self
            .ops
            .iter()
            .filter(|(_, op)| op.has_run_for(UNEASY, now))
            .map(|(key, _)| key)
            .collect();
        for key in uneasy {
            if let Some(op) = self.ops.get_mut(key)
                && !op.asked.again
                && op.has_run_for(op.timeout / 2, now)
            {
                op.asked = Asked {
                    again: true,
                    ..Asked::default()
                };
            }
            let awaited = self.awaited(key);
            self.put_to(key, awaited);
        }
    }

    /// Asks those of `ranks` that the collective has not asked yet.
    fn put_to(&mut self, key: Key, mut ranks: Vec<GroupRank>) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let Course::Program { fingerprint, .. } = op.body else {
            return;
        };
        let (comm, sequence) = (op.comm, op.sequence);
        ranks.retain(|rank| !op.asked.ranks.contains(rank));
        op.asked.ranks.extend(&ranks);
        for rank in ranks {
            let question = Question {
                rank,
                sequence,
                fingerprint,
            };
            self.put(comm, question);
        }
    }

    /// The ranks that hold up an operation: that were asked and did not answer, or where all did, for
    /// which it waits.
    pub(crate) fn silent(&self, key: Key) -> Vec<GroupRank> {
        let mut silent = Vec::new();
        if let Some(op) = self.ops.get(key) {
            silent.extend(&op.asked.ranks);
            silent.retain(|rank| !op.asked.answered.contains(rank));
        }
        if silent.is_empty() {
            return self.awaited(key);
        }
        silent
    }

    /// The ranks an operation waits for: whose messages have not come, and who has not taken its
    /// own. Each once.
    pub(crate) fn awaited(&self, key: Key) -> Vec<GroupRank> {
        let Some(op) = self.ops.get(key) else {
            return Vec::new();
        };
        let mut ranks: Vec<GroupRank> = op
            .transfers
            .iter()
            .filter_map(|transfer| match transfer {
                Transfer::Recv(recv) => match self.recvs.get(*recv)?.from {
                    Source::Rank(rank) => Some(rank),
                    Source::Any => None,
                },
                Transfer::Send(send) => Some(self.sends.get(*send)?.to),
                Transfer::Done => None,
            })
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Whether every rank that lives has shown that it agrees, or the communicator has failed.
    pub(crate) fn agreed(&self, comm: CommId) -> bool {
        let Some(group) = self.groups.get(&comm) else {
            return true;
        };
        let gone = |rank: GroupRank| {
            let process = group.members[rank.index()].process;
            let link = self
                .by_process
                .get(&process)
                .and_then(|link| self.links.get(*link));
            !link.is_some_and(|link| matches!(link.state, LinkState::Open))
        };
        matches!(group.standing, Standing::Failed(_))
            || group.unheard().all(|question| gone(question.rank))
    }
}

impl Op {
    fn has_run_for(&self, time: Duration, now: Instant) -> bool {
        let begun = self.deadline.and_then(|end| end.checked_sub(self.timeout));
        begun.is_some_and(|begun| now.saturating_duration_since(begun) >= time)
    }
}

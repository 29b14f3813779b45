//! Ranks that ask one another about a collective: one that closes its communicator, whether what it
//! sent fits; one that waits for long, whether those it waits for called the same. Without the
//! second, ranks that all wait and send nothing would learn of a mismatch from no message.
//!
//! Part of the progress engine's state, under the same lock. Must not know matching or streams.

use std::time::{Duration, Instant};

use ferrocomm_core::call::Source;
use ferrocomm_core::ids::{CommId, GroupRank};

use crate::core::{Core, Course, Op, Transfer};
use crate::frame::{Fingerprint, Header, Kind, encode_failure};
use crate::link::LinkState;
use crate::membership::{Question, Standing};
use crate::slab::Key;

/// A collective that has run for so long asks the ranks it waits for.
const UNEASY: Duration = Duration::from_millis(100);

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
                if group.has_issued(question) && self.fits_calls(header, from) {
                    self.answer(header.comm, from, header.sequence);
                }
            }
        }
    }

    /// Tells `rank` that collective `sequence` is issued here and fits.
    pub(crate) fn answer(&mut self, comm: CommId, rank: GroupRank, sequence: u64) {
        let mut verdict = Header::control(Kind::Verdict, comm);
        verdict.sequence = sequence;
        if let Ok(link) = self.link_to(comm, rank) {
            self.push_control(link, &verdict, Vec::new());
        }
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

    /// Collectives that have run for long ask each rank they wait for, once.
    pub(crate) fn ask_awaited(&mut self, now: Instant) {
        let uneasy: Vec<(Key, Fingerprint)> = self
            .ops
            .iter()
            .filter(|(_, op)| op.has_run_for(UNEASY, now))
            .filter_map(|(key, op)| match op.body {
                Course::Program { fingerprint, .. } => Some((key, fingerprint)),
                Course::Undecided { .. } | Course::Meeting(_) | Course::Points => None,
            })
            .collect();
        for (key, fingerprint) in uneasy {
            let awaited = self.awaited(key);
            let Some(op) = self.ops.get_mut(key) else {
                continue;
            };
            let (comm, sequence) = (op.comm, op.sequence);
            let new: Vec<GroupRank> = awaited
                .into_iter()
                .filter(|rank| !op.asked.contains(rank))
                .collect();
            op.asked.extend(&new);
            for rank in new {
                let question = Question {
                    rank,
                    sequence,
                    fingerprint,
                };
                self.put(comm, question);
            }
        }
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

//! What failing does: to one operation, to a communicator, and when time is over or a peer is gone.
//!
//! Part of the progress engine's state, under the same lock. Must not know how a failure was seen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocomm_core::call::Source;
use ferrocomm_core::error::{Error, ErrorKind};
use ferrocomm_core::ids::{CommId, ProcessId};
use ferrocomm_core::work::Work;

use crate::core::Core;
use crate::frame::{Header, Kind, encode_failure};
use crate::link::LinkState;
use crate::membership::{Membership, Seating, Standing};
use crate::op::Course;
use crate::slab::Key;

impl Core {
    /// Fails the communicator: the peers are told, and everything pending gets `error`.
    pub(crate) fn fail(&mut self, comm: CommId, error: Error) {
        if let Some(error) = self.mark_failed(comm, error) {
            // First the cause: what a withdrawn message says to its receiver is only a consequence.
            self.tell(comm, &error);
            self.fail_pending(comm, &error);
        }
    }

    /// Fails the communicator on this rank alone.
    pub(crate) fn fail_here(&mut self, comm: CommId, error: Error) {
        if let Some(error) = self.mark_failed(comm, error) {
            self.fail_pending(comm, &error);
        }
    }

    /// Fails every communicator that is open.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.fail_attempts(error);
        let open: Vec<CommId> = self.groups.keys().copied().collect();
        for comm in open {
            self.fail(comm, error.clone());
        }
    }

    /// The error in full, when the communicator had not failed before.
    fn mark_failed(&mut self, comm: CommId, error: Error) -> Option<Error> {
        let group = self.groups.get_mut(&comm)?;
        if matches!(group.standing, Standing::Failed(_)) {
            return None;
        }
        let error = error.communicator(&group.name).rank(group.rank);
        group.standing = Standing::Failed(error.clone());
        group.unexpected.clear();
        self.close_windows(comm);
        Some(error)
    }

    fn fail_pending(&mut self, comm: CommId, error: &Error) {
        let victims: Vec<Key> = self
            .ops
            .iter()
            .filter(|(_, op)| op.comm == comm)
            .map(|(key, _)| key)
            .collect();
        if let Some(group) = self.groups.get_mut(&comm) {
            group.reported = !victims.is_empty();
        }
        for op in victims {
            self.fail_alone(op, error.clone());
        }
    }

    fn tell(&mut self, comm: CommId, error: &Error) {
        let Some(group) = self.groups.get(&comm) else {
            return;
        };
        let members = group.members.clone();
        let payload = encode_failure(error, group.rank);
        if let Some(seat) = group.seat() {
            seat.tell(&payload);
        }
        let mut header = Header::control(Kind::Failure, comm);
        header.payload = u32::try_from(payload.len()).unwrap_or(0);
        let own = self.endpoint.me.process;
        for member in members.iter().filter(|member| member.process != own) {
            let open = self
                .by_process
                .get(&member.process)
                .copied()
                .filter(|link| {
                    self.links
                        .get(*link)
                        .is_some_and(|link| matches!(link.state, LinkState::Open))
                });
            if let Some(link) = open {
                self.push_control(link, &header, payload.clone());
            }
        }
    }

    /// Fails what passed its deadline.
    pub(crate) fn check_deadlines(&mut self, now: Instant) {
        if self.next_deadline.is_none_or(|next| now < next) {
            return;
        }
        let late: Vec<Key> = self
            .ops
            .iter()
            .filter(|(_, op)| op.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(key, _)| key)
            .collect();
        self.next_deadline = None;
        for op in late {
            self.time_out(op, None);
        }
        self.next_deadline = self.ops.iter().filter_map(|(_, op)| op.deadline).min();
    }

    /// Fails an operation whose time is over: a point-to-point alone, a collective with its group.
    pub(crate) fn time_out(&mut self, key: Key, limit: Option<Duration>) {
        if let Some(Course::Regroup(id)) = self.ops.get(key).map(|op| &op.body) {
            return self.attempt_due(*id, limit.is_some());
        }
        let mut missing = self.missing(key);
        let Some(op) = self.ops.get(key) else { return };
        missing.extend(self.silent(key));
        missing.sort_unstable();
        missing.dedup();
        let limit = limit.unwrap_or(op.timeout);
        let error = Error::new(ErrorKind::Timeout, "ranks did not take part in time")
            .expected(format_args!(
                "an answer within the timeout of {:.3} s",
                limit.as_secs_f64()
            ))
            .peers(missing)
            .operation(op.work.operation().name())
            .sequence(op.sequence)
            .remedy("look at what the named ranks do, or raise the time-out");
        let comm = op.comm;
        match op.body {
            Course::Undecided { .. } | Course::Meeting(_) | Course::Program { .. } => {
                self.fail(comm, error)
            }
            Course::Points | Course::Regroup(_) | Course::Awaiting { .. } => {
                self.fail_alone(key, error)
            }
        }
    }

    /// Fails one operation; the communicator stays as it is.
    pub(crate) fn fail_alone(&mut self, key: Key, error: Error) {
        let Some(op) = self.ops.get(key) else { return };
        let error = match self.groups.get(&op.comm) {
            Some(group) => error.communicator(&group.name).rank(group.rank),
            None => error,
        };
        let error = error
            .operation(op.work.operation().name())
            .sequence(op.sequence);
        self.finish(key, Err(error));
    }

    pub(crate) fn op_of(&self, work: &Arc<Work>) -> Option<Key> {
        self.ops
            .iter()
            .find(|(_, op)| Arc::ptr_eq(&op.work, work))
            .map(|(key, _)| key)
    }

    /// Whether a work is over or being worked at: of a communicator's collectives one at a time is.
    pub(crate) fn has_begun(&self, work: &Arc<Work>) -> bool {
        let Some(key) = self.op_of(work) else {
            return true;
        };
        let comm = self.ops.get(key).map(|op| op.comm);
        comm.and_then(|comm| self.groups.get(&comm))
            .is_none_or(|group| group.queue.iter().skip(1).all(|queued| *queued != key))
    }

    pub(crate) fn is_collective(&self, key: Key) -> bool {
        self.ops
            .get(key)
            .is_some_and(|op| !matches!(op.body, Course::Points | Course::Awaiting { .. }))
    }

    /// Whether every other rank of the group is known to be gone.
    fn alone(&self, group: &Membership) -> bool {
        let own = self.endpoint.me.process;
        group
            .members
            .iter()
            .filter(|member| member.process != own)
            .all(|member| {
                let link = self
                    .by_process
                    .get(&member.process)
                    .and_then(|link| self.links.get(*link));
                link.is_some_and(|link| matches!(link.state, LinkState::Dead(_)))
            })
    }

    /// Communicators that wait for `process` and cannot go on without it.
    pub(crate) fn fail_those_waiting_for(&mut self, process: ProcessId, error: &Error) {
        // What the dead signalled before they died counts.
        self.serve_waits();
        self.attempts_lose(process, error);
        let mut victims = Vec::new();
        let mut meeting = Vec::new();
        for (comm, group) in &self.groups {
            let Some(rank) = group.rank_of(process) else {
                continue;
            };
            let alone = self.alone(group);
            let waits = self.recvs.iter().any(|(_, recv)| {
                recv.comm == *comm
                    && match recv.from {
                        Source::Rank(from) => from == rank,
                        // Another rank may still send.
                        Source::Any => alone,
                    }
            });
            let sends = self
                .sends
                .iter()
                .any(|(_, send)| send.comm == *comm && send.to == rank);
            if waits || sends || self.awaits(*comm, rank) {
                victims.push((*comm, rank));
            } else if group.seat().is_some() || matches!(group.seating, Seating::Wanted) {
                meeting.push((*comm, rank));
            }
        }
        for (comm, rank) in meeting {
            if self.meets_without(comm, rank) {
                victims.push((comm, rank));
            }
        }
        for (comm, rank) in victims {
            self.fail(comm, error.clone().peers([rank]));
        }
    }
}

//! Regrouping inside the progress engine: letters come and go on the links that members have anyway.
//!
//! Part of the progress engine's state, under the same lock; nothing here blocks but a dial. Must
//! not know how a round is decided: `machine` does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ferrocomm_core::call::{Mode, Operation};
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank, ProcessId, stable_hash};
use ferrocomm_core::work::Work;

use super::handle::{Handle, PresenceId};
use super::machine::{Action, Round, Word};
use super::wire::Letter;
use crate::bootstrap::Member;
use crate::core::Core;
use crate::frame::{Header, Kind, encode_failure};
use crate::link::LinkState;
use crate::op::Course;
use crate::slab::Key;

/// So many attempts are remembered for members that come late.
const REMEMBERED: usize = 1024;
/// Letters about attempts not begun here that are kept.
const EARLY: usize = 16 * 1024;

/// What the engine keeps of one presence.
#[derive(Default)]
pub(crate) struct Gatherings {
    active: Option<Active>,
    past: VecDeque<(i64, Past)>,
    /// what members said of attempts not begun here, and their processes
    early: VecDeque<(ProcessId, Letter)>,
}

/// An attempt on its way.
struct Active {
    uuid: i64,
    op: Key,
    begun: Instant,
    round: Round,
    members: Arc<Vec<Member>>,
    me: GroupRank,
    comm: CommId,
}

/// An attempt that is over.
struct Past {
    /// of the list it was called with
    digest: u64,
    me: GroupRank,
    comm: CommId,
    failure: Option<Error>,
}

/// An attempt to begin.
pub(super) struct Attempt {
    pub(super) uuid: i64,
    pub(super) ids: Vec<PresenceId>,
    pub(super) members: Arc<Vec<Member>>,
    pub(super) me: GroupRank,
    pub(super) timeout: std::time::Duration,
}

/// The group that an attempt leads to: the same on all members, and of this attempt alone.
pub(super) fn group_of(uuid: i64, ids: &[PresenceId]) -> CommId {
    CommId(stable_hash(&[
        b"regroup",
        &uuid.to_le_bytes(),
        &digest(ids).to_le_bytes(),
    ]))
}

fn digest(ids: &[PresenceId]) -> u64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.0.to_le_bytes()).collect();
    stable_hash(&[&bytes])
}

impl Core {
    /// Makes a presence known to others.
    pub(super) fn appear(&mut self, id: PresenceId) {
        self.presences.insert(id, Gatherings::default());
    }

    /// Ends a presence.
    pub(super) fn disappear(&mut self, id: PresenceId) {
        self.abort_attempt(id, None);
        self.presences.remove(&id);
    }

    /// Begins an attempt.
    ///
    /// # Errors
    /// `State`, when the presence has ended or is at one already.
    pub(super) fn begin_attempt(&mut self, id: PresenceId, attempt: Attempt) -> Result<Arc<Work>> {
        let state = |what| Error::new(ErrorKind::State, what);
        match self.presences.get(&id) {
            None => return Err(state("the communicator is finalized")),
            Some(Gatherings {
                active: Some(_), ..
            }) => {
                return Err(state("the communicator is being reconfigured already"));
            }
            Some(Gatherings { active: None, .. }) => {}
        }
        let Attempt {
            uuid,
            ids,
            members,
            me,
            timeout,
        } = attempt;
        // A connection that broke says nothing of the process: it is dialled anew.
        self.forget_dead(|process| members.iter().any(|member| member.process == process));
        let comm = group_of(uuid, &ids);
        let work = Arc::new(Work::new(Operation::Reconfigure, 0));
        let op = self.add_op(&work, comm, 0, timeout, Mode::Async, Course::Regroup(id));
        let Some(gatherings) = self.presences.get_mut(&id) else {
            return Ok(work);
        };
        gatherings.active = Some(Active {
            uuid,
            op,
            begun: Instant::now(),
            round: Round::new(ids, me.index(), timeout),
            members,
            me,
            comm,
        });
        let (now, later) = std::mem::take(&mut gatherings.early)
            .into_iter()
            .partition(|(_, letter)| letter.uuid == uuid);
        gatherings.early = later;
        self.drive_attempt(id, None);
        let now: VecDeque<(ProcessId, Letter)> = now;
        for (process, letter) in now {
            if let Some(link) = self.by_process.get(&process).copied() {
                self.read_letter(link, letter);
            }
        }
        Ok(work)
    }

    /// A letter has come whole.
    pub(crate) fn letter(&mut self, link: Key, bytes: &[u8]) {
        match Letter::decode(bytes) {
            Some(letter) => self.read_letter(link, letter),
            None => tracing::debug!("a member wrote what cannot be read"),
        }
    }

    fn read_letter(&mut self, link: Key, letter: Letter) {
        let Some(process) = self.links.get(link).map(|link| link.peer) else {
            return;
        };
        let Some(gatherings) = self.presences.get_mut(&letter.to) else {
            let gone = Error::new(
                ErrorKind::PeerLost,
                "the communicator of this handle was closed",
            );
            return self.answer_letter(link, &letter, gone);
        };
        if let Some(active) = &mut gatherings.active
            && active.uuid == letter.uuid
        {
            let id = letter.to;
            active.round.heard(letter.from, letter.word);
            return self.drive_attempt(id, Some((link, letter.from)));
        }
        let past = gatherings
            .past
            .iter()
            .find(|(uuid, _)| *uuid == letter.uuid);
        if let Some((_, past)) = past {
            match (&letter.word, &past.failure) {
                // The group has come into being without this rank: its first member tells the others.
                (Word::Settled, Some(error)) => {
                    let (comm, payload) = (past.comm, encode_failure(error, past.me));
                    let mut header = Header::control(Kind::Failure, comm);
                    header.payload = u32::try_from(payload.len()).unwrap_or(0);
                    self.push_control(link, &header, payload);
                }
                _ => {
                    if let Some(error) = past.verdict(&letter) {
                        self.answer_letter(link, &letter, error);
                    }
                }
            }
            return;
        }
        // Of one sender the last word counts.
        gatherings
            .early
            .retain(|(_, other)| (other.from, other.uuid) != (letter.from, letter.uuid));
        if !matches!(letter.word, Word::GaveUp | Word::Settled) {
            if gatherings.early.len() == EARLY {
                tracing::warn!(
                    "too many members of groups not asked for here; the oldest is dropped"
                );
                gatherings.early.pop_front();
            }
            gatherings.early.push_back((process, letter));
        }
    }

    /// Tells the other members of an attempt that this one has seen its uuid before.
    pub(super) fn refuse_attempt(&mut self, id: PresenceId, uuid: i64, members: &[Handle]) {
        let me = members.iter().position(|member| member.id == id);
        let Some(me) = me.and_then(|me| u32::try_from(me).ok()) else {
            return;
        };
        for member in members.iter().filter(|member| member.id != id) {
            let letter = Letter {
                to: member.id,
                from: id,
                uuid,
                word: Word::Failed(used(uuid)),
            };
            match self.link_to_member(&member.member) {
                Ok(link) => self.post_letter(link, &letter, GroupRank::new(me)),
                Err(error) => tracing::debug!(%error, "a member cannot be told of a used uuid"),
            }
        }
    }

    /// Answers a proposal; other words want no answer.
    fn answer_letter(&mut self, link: Key, letter: &Letter, error: Error) {
        if let Word::Proposal(ids) = &letter.word {
            let me = ids.iter().position(|id| *id == letter.to).unwrap_or(0);
            let answer = Letter {
                to: letter.from,
                from: letter.to,
                uuid: letter.uuid,
                word: Word::Failed(error),
            };
            self.post_letter(
                link,
                &answer,
                GroupRank::new(u32::try_from(me).unwrap_or(0)),
            );
        }
    }

    fn post_letter(&mut self, link: Key, letter: &Letter, rank: GroupRank) {
        let payload = letter.encode(rank);
        let mut header = Header::control(Kind::Letter, CommId(0));
        header.payload = u32::try_from(payload.len()).unwrap_or(0);
        self.push_control(link, &header, payload);
    }

    /// Does what the attempt of a presence asks for. `answer`: where the word in hand came from.
    fn drive_attempt(&mut self, id: PresenceId, answer: Option<(Key, PresenceId)>) {
        loop {
            let Some(active) = self.active(id) else {
                return;
            };
            let (uuid, me) = (active.uuid, active.me);
            let Some(action) = active.round.action() else {
                break;
            };
            match action {
                Action::Send(position, word) => self.send_word(id, position, word),
                Action::Settle => {
                    let op = active.op;
                    self.ready.push_back(op);
                }
                Action::Answer(word) => {
                    if let Some((link, to)) = answer {
                        let from = id;
                        self.post_letter(
                            link,
                            &Letter {
                                to,
                                from,
                                uuid,
                                word,
                            },
                            me,
                        );
                    }
                }
                Action::End(outcome) => return self.end_attempt(id, outcome),
            }
        }
        if let Some(active) = self.active(id) {
            let (op, at) = (active.op, active.begun.checked_add(active.round.alarm_at()));
            if let Some(op) = self.ops.get_mut(op) {
                op.deadline = at;
            }
            self.next_deadline = match (self.next_deadline, at) {
                (Some(next), Some(at)) => Some(next.min(at)),
                (next, at) => next.or(at),
            };
        }
    }

    fn active(&mut self, id: PresenceId) -> Option<&mut Active> {
        self.presences.get_mut(&id)?.active.as_mut()
    }

    fn send_word(&mut self, id: PresenceId, position: usize, word: Word) {
        let Some(active) = self.active(id) else {
            return;
        };
        let (uuid, me) = (active.uuid, active.me);
        let (Some(to), Some(member)) = (
            active.round.ids().get(position).copied(),
            active.members.get(position).cloned(),
        ) else {
            return;
        };
        match self.link_to_member(&member) {
            Ok(link) => {
                let from = id;
                self.post_letter(
                    link,
                    &Letter {
                        to,
                        from,
                        uuid,
                        word,
                    },
                    me,
                );
            }
            Err(error) => {
                if let Some(active) = self.active(id) {
                    active.round.lost(position, &error);
                }
            }
        }
    }

    fn end_attempt(&mut self, id: PresenceId, outcome: Result<()>) {
        let Some(gatherings) = self.presences.get_mut(&id) else {
            return;
        };
        let Some(active) = gatherings.active.take() else {
            return;
        };
        if gatherings.past.len() == REMEMBERED {
            gatherings.past.pop_front();
        }
        let past = Past {
            digest: digest(active.round.ids()),
            me: active.me,
            comm: active.comm,
            failure: outcome.as_ref().err().cloned(),
        };
        gatherings.past.push_back((active.uuid, past));
        if outcome.is_err() {
            // Others may believe in that group for a while.
            self.close_comm(active.comm);
        }
        self.finish(active.op, outcome);
    }

    /// An attempt's alarm; with `forced` its time is over, whatever its limit was.
    pub(crate) fn attempt_due(&mut self, id: PresenceId, forced: bool) {
        if let Some(active) = self.active(id) {
            let now = active.begun.elapsed();
            if forced {
                active.round.time_out(now);
            } else {
                active.round.alarm(now);
            }
            self.drive_attempt(id, None);
        }
    }

    /// All that came with the last word has been read.
    pub(crate) fn settle_attempt(&mut self, id: PresenceId) {
        if let Some(active) = self.active(id) {
            active.round.settle();
            self.drive_attempt(id, None);
        }
    }

    /// Gives up the attempt of a presence: the one of `uuid`, or whichever there is.
    pub(super) fn abort_attempt(&mut self, id: PresenceId, uuid: Option<i64>) {
        if let Some(active) = self.active(id)
            && uuid.is_none_or(|uuid| uuid == active.uuid)
        {
            let error = Error::new(ErrorKind::Aborted, "the communicator was aborted")
                .remedy("reconfigure with a new uuid");
            active.round.abort(error);
            self.drive_attempt(id, None);
        }
    }

    /// Fails every attempt: the engine cannot go on.
    pub(crate) fn fail_attempts(&mut self, error: &Error) {
        let ids: Vec<PresenceId> = self.presences.keys().copied().collect();
        for id in ids {
            if let Some(active) = self.active(id) {
                active.round.abort(error.clone());
                self.drive_attempt(id, None);
            }
        }
    }

    /// The process of some member is gone.
    pub(crate) fn attempts_lose(&mut self, process: ProcessId, cause: &Error) {
        let mut losers = Vec::new();
        for (id, gatherings) in &mut self.presences {
            gatherings.early.retain(|(sender, _)| *sender != process);
            if let Some(active) = &mut gatherings.active
                && let Some(position) = active
                    .members
                    .iter()
                    .position(|member| member.process == process)
            {
                active.round.lost(position, cause);
                losers.push(*id);
            }
        }
        for id in losers {
            self.drive_attempt(id, None);
        }
    }

    /// Forgets links to processes that are gone, and in no group; and those that are `wanted` anew.
    pub(crate) fn forget_dead(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        let groups = &self.groups;
        let needed = |process: ProcessId| {
            !wanted(process)
                && groups
                    .values()
                    .any(|group| group.rank_of(process).is_some())
        };
        let dead: Vec<(ProcessId, Key)> = self
            .by_process
            .iter()
            .filter(|(process, key)| {
                let link = self.links.get(**key);
                link.is_none_or(|link| matches!(link.state, LinkState::Dead(_)))
                    && !needed(**process)
            })
            .map(|(process, key)| (*process, *key))
            .collect();
        for (process, key) in dead {
            self.by_process.remove(&process);
            drop(self.links.remove(key));
        }
    }
}

impl Past {
    /// What to tell the sender of a letter about an attempt that is over here.
    fn verdict(&self, letter: &Letter) -> Option<Error> {
        let Word::Proposal(ids) = &letter.word else {
            return None;
        };
        if digest(ids) == self.digest {
            return self.failure.clone();
        }
        Some(used(letter.uuid))
    }
}

/// The error of a member that has seen `uuid` before.
fn used(uuid: i64) -> Error {
    Error::new(ErrorKind::Mismatch, "this uuid was used before")
        .got(format!("uuid {uuid}"))
        .expected("one that no member has seen")
        .remedy("draw a new uuid for every reconfiguration, the same on all members")
}

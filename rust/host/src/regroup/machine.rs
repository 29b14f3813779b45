//! One attempt of a rank to meet the other members of its next group: events in, actions out.
//!
//! The member at position 0 leads. The others send it their list of members; when all lists have come
//! and are alike it says so to everybody, and a rank that hears that is done. The leader's own list
//! goes to those that are late: whoever was called with another one, and so waits for another leader,
//! learns of it by that. Whatever fails, fails on all that have come, in the leader's words: of ranks
//! that are missing only it knows. Pure: must not know links, clocks or handles' insides.

use std::collections::VecDeque;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::GroupRank;

use super::handle::{PresenceId, difference};

/// When the leader turns to those that have not come. Later than members of a healthy job come.
const CALL: Duration = Duration::from_millis(50);
/// How long a member whose time is over waits for the leader, which knows who is missing.
const PATIENCE: Duration = Duration::from_secs(1);

/// What members tell one another.
#[derive(Clone, Debug)]
pub(super) enum Word {
    /// the list that the sender was called with
    Proposal(Vec<PresenceId>),
    /// from the leader: all have come
    Settled,
    /// to the leader: the sender's time is over
    GaveUp,
    /// the sender has failed
    Failed(Error),
}

/// What the driver is to do.
#[derive(Debug)]
pub(super) enum Action {
    /// Send to the member at this position; report `unreachable` when that cannot be.
    Send(usize, Word),
    /// Call `settle` once all that came with the word in hand has been read: somebody may have taken
    /// back what it said.
    Settle,
    /// Send back where the word in hand came from.
    Answer(Word),
    /// It is over.
    End(Result<()>),
}

/// How far it is.
#[derive(Debug)]
enum Phase {
    /// the leader waits, and has not turned to anybody yet
    Expecting,
    /// as long as the limit allows
    Waiting,
    /// the leader has heard of all
    Complete,
    /// a member whose time is over waits for the leader
    Appealing(Duration),
    Ended,
}

/// One attempt. Times count from its start.
#[derive(Debug)]
pub(super) struct Round {
    ids: Vec<PresenceId>,
    me: usize,
    limit: Duration,
    phase: Phase,
    /// of the leader: who has come
    come: Vec<bool>,
    actions: VecDeque<Action>,
}

impl Round {
    /// Starts as the member at position `me`.
    pub(super) fn new(ids: Vec<PresenceId>, me: usize, limit: Duration) -> Self {
        let mut come = vec![false; ids.len()];
        come[me] = true;
        let mut round = Self {
            ids,
            me,
            limit,
            phase: Phase::Expecting,
            come,
            actions: VecDeque::new(),
        };
        if round.leads() {
            round.look();
        } else {
            round.phase = Phase::Waiting;
            let proposal = Word::Proposal(round.ids.clone());
            round.actions.push_back(Action::Send(0, proposal));
        }
        round
    }

    pub(super) fn ids(&self) -> &[PresenceId] {
        &self.ids
    }

    /// The next thing to do.
    pub(super) fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When `alarm` is due.
    pub(super) fn alarm_at(&self) -> Duration {
        match self.phase {
            Phase::Expecting => CALL.min(self.limit),
            Phase::Waiting | Phase::Complete => self.limit,
            Phase::Appealing(until) => until,
            Phase::Ended => Duration::ZERO,
        }
    }

    fn leads(&self) -> bool {
        self.me == 0
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    fn position(&self, id: PresenceId) -> Option<usize> {
        self.ids.iter().position(|member| *member == id)
    }

    /// Looks whether all have come.
    fn look(&mut self) {
        if self.come.iter().all(|come| *come) {
            self.phase = Phase::Complete;
            self.actions.push_back(Action::Settle);
        }
    }

    /// Of the leader: nobody has taken anything back.
    pub(super) fn settle(&mut self) {
        if matches!(self.phase, Phase::Complete) {
            for position in 1..self.ids.len() {
                self.actions
                    .push_back(Action::Send(position, Word::Settled));
            }
            self.end(Ok(()));
        }
    }

    fn end(&mut self, outcome: Result<()>) {
        if !self.is_over() {
            self.phase = Phase::Ended;
            self.actions.push_back(Action::End(outcome));
        }
    }

    /// Fails, and tells: the leader those that have come, a member the leader.
    fn fail(&mut self, error: Error) {
        if self.is_over() {
            return;
        }
        let told: Vec<usize> = if self.leads() {
            (1..self.ids.len())
                .filter(|rank| self.come[*rank])
                .collect()
        } else {
            vec![0]
        };
        for position in told {
            let word = Word::Failed(error.clone());
            self.actions.push_back(Action::Send(position, word));
        }
        self.end(Err(error));
    }

    /// `from` has said something about this attempt.
    pub(super) fn heard(&mut self, from: PresenceId, word: Word) {
        if self.is_over() {
            return;
        }
        let position = self.position(from);
        match word {
            Word::Proposal(theirs) => self.proposed(position, from, &theirs),
            Word::Settled if position == Some(0) => self.end(Ok(())),
            Word::GaveUp if self.leads() && position.is_some() => self.give_up(),
            // The leader passes it on; from anybody else it is an answer to this rank's own list.
            Word::Failed(error) if position == Some(0) => self.end(Err(error)),
            Word::Failed(error) if position.is_some() => self.fail(error),
            Word::Settled | Word::GaveUp | Word::Failed(_) => {}
        }
    }

    fn proposed(&mut self, position: Option<usize>, from: PresenceId, theirs: &[PresenceId]) {
        if theirs == self.ids {
            if let Some(position) = position.filter(|_| self.leads()) {
                self.come[position] = true;
                self.look();
            }
            return;
        }
        let error = mismatch(&self.ids, theirs, self.me, position, from);
        self.actions
            .push_back(Action::Answer(Word::Failed(error.clone())));
        // Who is not a member here cannot disturb those who are.
        if position.is_some() {
            self.fail(error);
        }
    }

    /// The process of the member at `position` is gone, or cannot be reached.
    pub(super) fn lost(&mut self, position: usize, cause: &Error) {
        if self.is_over() || !(self.leads() || position == 0) {
            return;
        }
        let error = Error::new(ErrorKind::PeerLost, "a member of the new group is gone")
            .got(format!("{cause}"))
            .expected(format!("position {position}, {}", self.ids[position]))
            .peers([rank(position)])
            .remedy("reconfigure with the handles of those that live, and with a new uuid");
        self.come[position] = false;
        self.fail(error);
    }

    /// Fails it from here.
    pub(super) fn abort(&mut self, error: Error) {
        self.fail(error);
    }

    /// The time of `alarm_at` has come.
    pub(super) fn alarm(&mut self, now: Duration) {
        match self.phase {
            _ if now < self.alarm_at() => {}
            Phase::Expecting if now < self.limit => {
                self.phase = Phase::Waiting;
                for position in self.missing() {
                    let proposal = Word::Proposal(self.ids.clone());
                    self.actions.push_back(Action::Send(position, proposal));
                }
            }
            Phase::Expecting | Phase::Waiting | Phase::Complete => self.time_out(now),
            Phase::Appealing(_) => self.give_up(),
            Phase::Ended => {}
        }
    }

    /// Its time is over, whatever the limit was.
    pub(super) fn time_out(&mut self, now: Duration) {
        match self.phase {
            Phase::Complete => self.settle(),
            Phase::Expecting | Phase::Waiting if self.leads() => self.give_up(),
            Phase::Expecting | Phase::Waiting => {
                self.phase = Phase::Appealing(now + PATIENCE);
                self.actions.push_back(Action::Send(0, Word::GaveUp));
            }
            Phase::Appealing(_) | Phase::Ended => {}
        }
    }

    /// Of the leader: positions of those that have not come.
    fn missing(&self) -> Vec<usize> {
        (0..self.ids.len())
            .filter(|rank| !self.come[*rank])
            .collect()
    }

    fn give_up(&mut self) {
        let missing = if self.leads() {
            self.missing()
        } else {
            vec![0]
        };
        let names: Vec<String> = missing
            .iter()
            .take(16)
            .map(|position| format!("position {position}, {}", self.ids[*position]))
            .collect();
        let error = Error::new(ErrorKind::Timeout, "members of the new group did not come")
            .got(format!("nothing of {}", names.join("; ")))
            .expected(format!(
                "all {} within {:.3} s",
                self.ids.len(),
                self.limit.as_secs_f64()
            ))
            .peers(missing.into_iter().map(rank))
            .remedy("reconfigure without them, or raise the time-out; with a new uuid");
        self.fail(error);
    }
}

/// The error of members that were called with different lists: `ours`, as on position `me`, and
/// `theirs`, as on `from`.
pub(super) fn mismatch(
    ours: &[PresenceId],
    theirs: &[PresenceId],
    me: usize,
    position: Option<usize>,
    from: PresenceId,
) -> Error {
    let (here, there) = difference(ours, theirs);
    let whose = position.map_or_else(|| from.to_string(), |position| format!("rank {position}"));
    let error = Error::new(
        ErrorKind::Mismatch,
        "members were called with different handles",
    )
    .got(format!("{there} on {whose}"))
    .expected(format!("{here} as on rank {me}"))
    .remedy("pass the same uuid and the same handles in the same order on all members");
    match position {
        Some(position) => error.peers([rank(position)]),
        None => error,
    }
}

fn rank(position: usize) -> GroupRank {
    GroupRank::new(u32::try_from(position).unwrap_or(u32::MAX))
}

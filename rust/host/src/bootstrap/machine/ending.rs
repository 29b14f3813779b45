//! How joining ends: the root's word for all, and what a rank does that cannot hear it. Must not
//! know sockets or threads.

use std::iter::successors;
use std::mem;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::GroupRank;

use super::upward::{Nearby, Upward};
use super::{Action, Lower, Machine, PATIENCE, Phase, root};
use crate::bootstrap::wire::{self, Message, Nonce};
use crate::bootstrap::{Member, Table, id_of};

impl Machine {
    /// This rank cannot go on; the others learn why.
    pub(in crate::bootstrap) fn fail(&mut self, error: Error) {
        let told = Error::new(
            match error.kind() {
                ErrorKind::Interrupted => ErrorKind::PeerLost,
                kind => kind,
            },
            format!(
                "rank {} failed while joining: {}",
                self.setup.rank,
                wire::shorten(error.what(), 4096)
            ),
        )
        .peers([GroupRank::new(self.setup.rank)]);
        self.send_up(&Message::Failure(told.clone()));
        self.end_and_tell(Err(error), &Message::Failure(told).encode());
    }

    /// On the root: ends joining if everything is known.
    pub(super) fn judge(&mut self, now: Duration) {
        let Upward::Root(root) = &mut self.upward else {
            return;
        };
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        match root.verdict(now) {
            None => {}
            Some(Err(error)) => self.end(Err(error)),
            Some(Ok(members)) => self.arrive(self.setup.nonce, members),
        }
    }

    /// All have come.
    pub(super) fn arrive(&mut self, seed: Nonce, members: Vec<Member>) {
        // Most ranks have nobody below them, and the table grows with the group.
        let told = if self.lower.is_empty() {
            Vec::new()
        } else {
            wire::table_bytes(&seed, &members)
        };
        let id = id_of(&seed, &self.setup.name);
        self.end_and_tell(Ok(Table { members, id }), &told);
    }

    /// The deadline has passed, here or below.
    pub(super) fn give_up(&mut self, now: Duration) {
        let error = match &self.upward {
            Upward::Root(root) => return self.end(Err(root.missing(self.setup.limit))),
            Upward::Joined { .. } => Error::new(
                ErrorKind::Timeout,
                "ranks did not come, and the root did not say which",
            )
            .peers([GroupRank::new(0)]),
            _ => self.nobody_above(),
        };
        match self.link_above() {
            Some(_) => self.appeal(now, error, |_| Message::GaveUp),
            None => self.end(Err(error)),
        }
    }

    /// The failure of a rank that found no rank to report to: all above it are missing, and those
    /// of its node that did not come to it.
    fn nobody_above(&self) -> Error {
        let nearest = self.tree.above(self.setup.rank).or(Some(0));
        let mut absent: Vec<u32> = successors(nearest, |rank| self.tree.above(*rank)).collect();
        if self.nearby == Nearby::Hosting {
            absent.extend(self.absent_nearby());
        }
        absent.sort_unstable();
        absent.dedup();
        let absent: Vec<GroupRank> = absent.into_iter().map(GroupRank::new).collect();
        let limit = self.setup.limit;
        let text = format!(
            "{} did not come to join within {limit:?}; see whether it was started and has the same \
             store, or raise the time-out",
            root::list(&absent)
        );
        Error::new(ErrorKind::Timeout, format!("rank {text}")).peers(absent)
    }

    pub(super) fn lost(&self, rank: u32) -> Error {
        Error::new(
            ErrorKind::PeerLost,
            format!("rank {rank} was lost while joining"),
        )
        .peers([GroupRank::new(rank)])
    }

    /// Lets the root decide about a failure; without an answer in time, `error` stands.
    pub(super) fn appeal(
        &mut self,
        now: Duration,
        error: Error,
        message: impl Fn(Error) -> Message,
    ) {
        match (&self.phase, &self.upward) {
            (Phase::Ended(_), _) => {}
            (_, Upward::Root(_)) => self.end(Err(error)),
            (Phase::Appealing { .. }, _) => self.send_up(&message(error)),
            (Phase::Gathering, _) => {
                self.send_up(&message(error.clone()));
                self.phase = Phase::Appealing {
                    fallback: error,
                    until: now + PATIENCE,
                };
            }
        }
    }

    /// Ends with a failure that the ranks below learn as it is.
    pub(super) fn end(&mut self, outcome: Result<Table>) {
        if let Err(error) = &outcome {
            let told = Message::Failure(error.clone()).encode();
            self.end_and_tell(outcome, &told);
        }
    }

    /// Ends; `told` is the message for those below.
    fn end_and_tell(&mut self, outcome: Result<Table>, told: &[u8]) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        for (link, lower) in mem::take(&mut self.lower) {
            if let Lower::Child { .. } = lower {
                self.actions.push_back(Action::Send {
                    link,
                    bytes: told.to_vec(),
                });
            }
            self.actions.push_back(Action::Close { link });
        }
        if let Some(link) = self.link_above() {
            self.actions.push_back(Action::Close { link });
        }
        self.phase = Phase::Ended(outcome);
    }
}

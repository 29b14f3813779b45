//! What the root knows of the ranks, and how joining ends for all of them. Must not know how words
//! travel.

use std::collections::BTreeMap;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::GroupRank;

use super::digest;
use crate::bootstrap::Member;
use crate::bootstrap::wire::{MAX_NAMED, Message};

/// How long the root listens on after the first rank that does not fit, to name all and to tell all.
const SETTLE: Duration = Duration::from_millis(300);

/// The root's list.
pub(super) struct Root {
    facts: String,
    members: Vec<Option<Member>>,
    missing: usize,
    /// ranks that believe something else, with what they believe
    differing: BTreeMap<u32, String>,
    /// ranks of which two have come
    twice: Vec<u32>,
    settles_at: Option<Duration>,
}

impl Root {
    /// Of `size` ranks, none of which has come, that are to believe `facts`.
    pub(super) fn new(size: usize, facts: String) -> Self {
        Self {
            facts,
            missing: size,
            members: vec![None; size],
            differing: BTreeMap::new(),
            twice: Vec::new(),
            settles_at: None,
        }
    }

    /// When the list of ranks that do not fit is complete enough.
    pub(super) fn settles_at(&self) -> Option<Duration> {
        self.settles_at
    }

    /// Notes a record or facts.
    pub(super) fn take(&mut self, now: Duration, message: Message) {
        match message {
            Message::Record { rank, facts, .. } if facts != digest(&self.facts) => {
                self.differing.entry(rank).or_default();
                self.settles_at.get_or_insert(now + SETTLE);
            }
            Message::Record { rank, member, .. } => match self.members.get_mut(rank as usize) {
                Some(slot @ None) => {
                    *slot = Some(member);
                    self.missing -= 1;
                }
                Some(Some(known)) if known.process != member.process => {
                    self.twice.push(rank);
                    self.settles_at.get_or_insert(now + SETTLE);
                }
                // Known already: it has dialled twice.
                Some(Some(_)) | None => {}
            },
            Message::Facts { rank, facts } if facts != self.facts => {
                self.differing.insert(rank, facts);
                self.settles_at.get_or_insert(now + SETTLE);
            }
            _ => {}
        }
    }

    /// How joining ends, as far as the ranks that came decide it.
    pub(super) fn verdict(&mut self, now: Duration) -> Option<Result<Vec<Member>>> {
        let settled = self.settles_at.is_some_and(|at| at <= now);
        match self.misfit() {
            Some(error) => (settled || self.missing == self.differing.len()).then_some(Err(error)),
            None => self.complete().map(Ok),
        }
    }

    /// The members, once all have come; hands them out once.
    fn complete(&mut self) -> Option<Vec<Member>> {
        (self.missing == 0).then(|| self.members.iter_mut().filter_map(Option::take).collect())
    }

    /// The failure when the deadline has passed.
    pub(super) fn missing(&self, limit: Duration) -> Error {
        if let Some(error) = self.misfit() {
            return error;
        }
        let size = self.members.len();
        let absent = (0..size).filter(|rank| self.members[*rank].is_none());
        let absent: Vec<GroupRank> = absent.map(|rank| GroupRank::new(rank as u32)).collect();
        let text = format!(
            "{} of {size} ranks did not come to join within {limit:?}: {}; see whether they were \
             started and have the same store, or raise the time-out",
            absent.len(),
            list(&absent),
        );
        Error::new(ErrorKind::Timeout, text).peers(absent.into_iter().take(MAX_NAMED))
    }

    /// The failure when ranks do not fit together.
    fn misfit(&self) -> Option<Error> {
        let twice = |rank: &u32| {
            let text = format!("two processes came to join as rank {rank}; give each its own rank");
            Error::new(ErrorKind::Mismatch, text).peers([GroupRank::new(*rank)])
        };
        let disagree = || (!self.differing.is_empty()).then(|| self.disagreement());
        self.twice.first().map(twice).or_else(disagree)
    }

    fn disagreement(&self) -> Error {
        let ranks: Vec<GroupRank> = self.differing.keys().copied().map(GroupRank::new).collect();
        // A rank below one that believes the same has sent no words of its own.
        let first = self.differing.iter().find(|(_, facts)| !facts.is_empty());
        let (rank, facts) = first.map_or((0, ""), |(rank, facts)| (*rank, facts.as_str()));
        let text = format!(
            "ranks {} disagree with rank 0 about the communicator: rank {rank} has {facts}; rank 0 \
             has {}",
            list(&ranks),
            self.facts,
        );
        Error::new(ErrorKind::Mismatch, text).peers(ranks.into_iter().take(MAX_NAMED))
    }
}

/// The first of `ranks`, in words.
pub(super) fn list(ranks: &[GroupRank]) -> String {
    let named: Vec<String> = ranks
        .iter()
        .take(MAX_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = if ranks.len() > MAX_NAMED { ", …" } else { "" };
    named.join(", ") + more
}

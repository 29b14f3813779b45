//! What went wrong, for whom, and what to do about it.
//!
//! One type serves every layer: the place that sees a failure names the kind and the facts it
//! knows, layers above add the facts they know, and nothing is overwritten once it is set.
//! Must not know who raises an error, nor how it reaches a client.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::ids::GroupRank;

/// The result of anything that can fail in Ferrocomm.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it is. Each kind leads to one communicator state, see `leaves_usable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An argument does not fit; nothing was moved.
    InvalidArgument,
    /// The operation, dtype, reduce op or backend is not supported; nothing was moved.
    Unsupported,
    /// The communicator or work is in a state that does not allow the call.
    State,
    /// A deadline passed.
    Timeout,
    /// A peer died or cannot be reached.
    PeerLost,
    /// Ranks called different operations, or one operation with different arguments.
    Mismatch,
    /// The communicator was aborted.
    Aborted,
    /// A connection or shared memory failed for another reason than the peer's death.
    Transport,
    /// The store reported an error.
    Store,
    /// The store's own time-out passed.
    StoreTimeout,
    /// The connection to the store was lost.
    StoreDisconnected,
    /// Memory, shared memory or descriptors ran short.
    Resources,
    /// The engine panicked.
    Panic,
    /// A point-to-point operation was cancelled by its caller.
    Cancelled,
    /// The client's interrupt check asked to stop waiting.
    Interrupted,
    /// The handle was inherited across a fork.
    Forked,
}

impl ErrorKind {
    /// The kind in words, as it opens every message.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::Unsupported => "not supported",
            Self::State => "wrong state",
            Self::Timeout => "time-out",
            Self::PeerLost => "peer lost",
            Self::Mismatch => "mismatch",
            Self::Aborted => "aborted",
            Self::Transport => "transport error",
            Self::Store => "store error",
            Self::StoreTimeout => "store time-out",
            Self::StoreDisconnected => "store connection lost",
            Self::Resources => "out of resources",
            Self::Panic => "engine panic",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Forked => "inherited across fork",
        }
    }
}

#[derive(Clone, Debug)]
struct Facts {
    kind: ErrorKind,
    what: Cow<'static, str>,
    communicator: Option<Arc<str>>,
    rank: Option<GroupRank>,
    peers: Vec<GroupRank>,
    operation: Option<&'static str>,
    sequence: Option<u64>,
    got: Option<String>,
    expected: Option<String>,
    remedy: Option<Cow<'static, str>>,
}

/// A failure with its facts. Cheap to move, cloned when several works fail for one cause.
#[derive(Clone)]
pub struct Error(Box<Facts>);

impl Error {
    /// A failure of `kind`; `what` is one short sentence in lower case, without a full stop.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Facts {
            kind,
            what: what.into(),
            communicator: None,
            rank: None,
            peers: Vec::new(),
            operation: None,
            sequence: None,
            got: None,
            expected: None,
            remedy: None,
        }))
    }

    /// Names the communicator, unless one is named already.
    #[must_use]
    pub fn communicator(mut self, name: &Arc<str>) -> Self {
        self.0.communicator.get_or_insert_with(|| name.clone());
        self
    }

    /// Names the rank that reports, unless one is named already.
    #[must_use]
    pub fn rank(mut self, rank: GroupRank) -> Self {
        self.0.rank.get_or_insert(rank);
        self
    }

    /// Names the ranks at fault, unless some are named already.
    #[must_use]
    pub fn peers(mut self, peers: impl IntoIterator<Item = GroupRank>) -> Self {
        if self.0.peers.is_empty() {
            self.0.peers.extend(peers);
        }
        self
    }

    /// Names the operation, unless one is named already.
    #[must_use]
    pub fn operation(mut self, name: &'static str) -> Self {
        self.0.operation.get_or_insert(name);
        self
    }

    /// Names the sequence number, unless one is named already.
    #[must_use]
    pub fn sequence(mut self, sequence: u64) -> Self {
        self.0.sequence.get_or_insert(sequence);
        self
    }

    /// Says what was given.
    #[must_use]
    pub fn got(mut self, got: impl fmt::Display) -> Self {
        self.0.got.get_or_insert_with(|| got.to_string());
        self
    }

    /// Says what would have been right.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.0.expected.get_or_insert_with(|| expected.to_string());
        self
    }

    /// Says what the user can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.0.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence alone, without kind and facts.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The rank that reports.
    pub fn reporter(&self) -> Option<GroupRank> {
        self.0.rank
    }

    /// The ranks at fault.
    pub fn peer_ranks(&self) -> &[GroupRank] {
        &self.0.peers
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        write!(f, "{}: {}", e.kind.name(), e.what)?;
        if let Some(got) = &e.got {
            write!(f, "; got {got}")?;
        }
        if let Some(expected) = &e.expected {
            write!(f, "; expected {expected}")?;
        }
        let mut facts = Vec::new();
        if let Some(name) = &e.communicator {
            facts.push(format!("communicator {name}"));
        }
        if let Some(rank) = e.rank {
            facts.push(format!("rank {rank}"));
        }
        match e.peers.as_slice() {
            [] => {}
            [peer] => facts.push(format!("peer {peer}")),
            peers => {
                let list: Vec<String> = peers.iter().map(ToString::to_string).collect();
                facts.push(format!("peers {}", list.join(", ")));
            }
        }
        if let Some(operation) = e.operation {
            facts.push(format!("operation {operation}"));
        }
        if let Some(sequence) = e.sequence {
            facts.push(format!("sequence {sequence}"));
        }
        if !facts.is_empty() {
            write!(f, " [{}]", facts.join(", "))?;
        }
        if let Some(remedy) = &e.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_carries_every_fact_once() {
        let error = Error::new(ErrorKind::Timeout, "ranks did not come")
            .peers([GroupRank::new(1), GroupRank::new(3)])
            .operation("all_reduce")
            .sequence(7)
            .rank(GroupRank::new(0))
            .rank(GroupRank::new(2))
            .communicator(&Arc::from("global"))
            .got("2 ranks")
            .expected("4 ranks")
            .remedy("raise the time-out");
        assert_eq!(
            error.to_string(),
            "time-out: ranks did not come; got 2 ranks; expected 4 ranks [communicator global, \
             rank 0, peers 1, 3, operation all_reduce, sequence 7]; raise the time-out"
        );
    }
}

//! Windows: memory of every rank that the others write to and read from on their own.
//!
//! A window is registered by all ranks together, and ended by all together; in between each rank acts
//! alone. A put does not signal. What one rank does to another takes effect in the order in which it
//! was issued: whoever has taken a signal of a rank finds what that rank put before it.
//! Must not know how memory is reached.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{Mode, Operation, Region, Stream};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::ids::GroupRank;
use crate::work::Work;

/// Whether this process can reach the memory of a rank's window by an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// it can: `Window::map` gives the address
    Unified,
    /// only through the operations of the window
    Separate,
}

/// What one rank does to another through a window. Offsets are bytes from the beginning of the other's
/// window, and lie within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are the operation's arguments by their usual names"
)]
pub enum OneSided {
    /// Complete when `source` may be used again.
    Put {
        source: Region,
        to: GroupRank,
        offset: usize,
        /// whether a signal follows, as `Signal` gives it
        signal: bool,
    },
    /// Complete when `target` holds the bytes.
    Get {
        target: Region,
        from: GroupRank,
        offset: usize,
    },
    /// Adds one to what `to` can take of this rank.
    Signal { to: GroupRank },
    /// Takes one signal of `from`, once there is one. Waits for the same rank are served in order.
    WaitSignal { from: GroupRank },
}

impl OneSided {
    /// Which operation it is.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Put { signal: false, .. } => Operation::Put,
            Self::Put { signal: true, .. } => Operation::PutSignal,
            Self::Get { .. } => Operation::Get,
            Self::Signal { .. } => Operation::Signal,
            Self::WaitSignal { .. } => Operation::WaitSignal,
        }
    }

    /// The other rank.
    pub fn peer(&self) -> GroupRank {
        match *self {
            Self::Put { to, .. } | Self::Signal { to } => to,
            Self::Get { from, .. } | Self::WaitSignal { from } => from,
        }
    }

    /// The memory of this rank it uses.
    pub fn region(&self) -> Region {
        match *self {
            Self::Put { source, .. } => source,
            Self::Get { target, .. } => target,
            Self::Signal { .. } | Self::WaitSignal { .. } => Region::EMPTY,
        }
    }

    /// Where in the other's window it begins, in bytes.
    pub fn offset(&self) -> usize {
        match *self {
            Self::Put { offset, .. } | Self::Get { offset, .. } => offset,
            Self::Signal { .. } | Self::WaitSignal { .. } => 0,
        }
    }
}

/// A checked request to a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowCall {
    /// what is asked
    pub task: OneSided,
    /// element type of its region
    pub dtype: Dtype,
    /// number of the call among its communicator's point-to-point operations, from 1
    pub sequence: u64,
    /// how long it may take, counted from its start
    pub timeout: Duration,
    /// who drives it
    pub mode: Mode,
}

/// A registration, or its end: a collective of the group.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// this rank's part; other ranks' may be longer or shorter. It stays valid until the window ends
    pub memory: Region,
    /// number of the collective on its communicator, the same on all ranks
    pub sequence: u64,
    /// how long it may take
    pub timeout: Duration,
    /// where the caller's own work is, for engines with streams
    pub stream: Stream,
}

/// A window of a group, open until `deregister`. Its works are waited for through its group.
///
/// Once the group fails or is aborted, all works of its windows fail; the memory is not touched any more
/// when they have.
pub trait Window: Send + Sync {
    /// Bytes of the window of `rank`, a rank of the group.
    fn bytes(&self, rank: GroupRank) -> usize;

    /// Whether this process reaches the window of `rank` by an address.
    fn access(&self, rank: GroupRank) -> Access;

    /// Where the window of `rank` lies in this process: its memory itself, not a copy. Valid as long as
    /// this object, also after `deregister`.
    ///
    /// # Errors
    /// `Unsupported`, where `access` is `Separate`.
    fn map(&self, rank: GroupRank) -> Result<Region>;

    /// Starts `call` for a caller whose own work is on `stream`; as `Group::issue_on`.
    ///
    /// # Errors
    /// The group's cause of failure; whatever keeps the call from starting.
    ///
    /// # Safety rule of the caller
    /// The call's region stays valid until the work is complete, and lies within the other's window.
    fn issue_on(&self, call: WindowCall, stream: Stream) -> Result<Arc<Work>>;

    /// Runs `call` on the caller's thread until it is over; `issued` as for `Group::run`.
    ///
    /// # Errors
    /// As `issue_on`, and how the call failed.
    fn run(&self, call: WindowCall, issued: &mut dyn FnMut()) -> Result<()>;

    /// Ends the window: a collective, which returns when nobody uses this rank's memory through the
    /// window any more. `end.memory` is the one that was registered. `issued` as for `Group::run`.
    ///
    /// # Errors
    /// What kept the ranks from agreeing; the window is over all the same.
    fn deregister(&self, end: Registration, issued: &mut dyn FnMut()) -> Result<()>;
}

//! Operations on their way, and their messages: what is known of each. Must not know what moves them.

use std::sync::Arc;
use std::time::Instant;

use ferrocomm_core::call::{Collective, Mode, Region, Source};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::work::Work;

use crate::asking::Asked;
use crate::frame::Fingerprint;
use crate::meeting::Meeting;
use crate::membership::Address;
use crate::program::Program;
use crate::regroup::PresenceId;
use crate::slab::Key;
use crate::windows::Pane;

/// A started transfer of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    Send(Key),
    Recv(Key),
    Done,
}

/// A message on its way out.
pub(crate) struct Send {
    pub(crate) op: Key,
    pub(crate) index: u32,
    pub(crate) comm: CommId,
    pub(crate) to: GroupRank,
    /// none: to the own rank
    pub(crate) link: Option<Key>,
    pub(crate) region: Region,
    /// bytes that were put into frames
    pub(crate) sent: usize,
    /// bytes of chunks that are in a stream
    pub(crate) gone: usize,
    /// the receiver's transfer, once granted
    pub(crate) granted: Option<u64>,
}

/// A message on its way in, or awaited.
pub(crate) struct Recv {
    pub(crate) op: Key,
    pub(crate) index: u32,
    pub(crate) comm: CommId,
    pub(crate) region: Region,
    pub(crate) got: usize,
    pub(crate) dtype: Dtype,
    pub(crate) from: Source,
    pub(crate) address: Address,
    /// the sender and its transfer, once granted
    pub(crate) granted: Option<(GroupRank, u64)>,
}

pub(crate) enum Course {
    /// a collective whose communicator has no shared memory yet
    Undecided {
        collective: Collective,
        dtype: Dtype,
    },
    Meeting(Box<Meeting>),
    Program {
        program: Program,
        at: usize,
        scratch: Vec<u8>,
        fingerprint: Fingerprint,
    },
    Points,
    /// a signal of a window
    Awaiting {
        pane: Arc<Pane>,
        from: GroupRank,
    },
    /// members of a group to come are met
    Regroup(PresenceId),
}

/// A call that is not complete.
pub(crate) struct Op {
    pub(crate) work: Arc<Work>,
    pub(crate) comm: CommId,
    pub(crate) sequence: u64,
    pub(crate) mode: Mode,
    pub(crate) timeout: std::time::Duration,
    pub(crate) deadline: Option<Instant>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) asked: Asked,
    pub(crate) body: Course,
}

//! What a client asks of a communicator, with the buffers it lends until the work is complete.
//!
//! A call that exists has been checked: roots and peers are ranks of the group, lists have one
//! region per rank, and regions hold whole elements. Only regions carry addresses, and only an
//! engine may turn one into memory.
//! Must not know engines, nor how a call is served.

use std::time::Duration;

use crate::dtype::Dtype;
use crate::ids::GroupRank;
use crate::reduce_op::ReduceOp;

/// The operations of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the operation of that name")]
pub enum Operation {
    Broadcast = 1,
    AllReduce = 2,
    Reduce = 3,
    AllGather = 4,
    ReduceScatter = 5,
    AllToAll = 6,
    Gather = 7,
    Scatter = 8,
    Barrier = 9,
    Send = 10,
    Recv = 11,
    Batch = 12,
    Split = 13,
    Put = 14,
    PutSignal = 15,
    Get = 16,
    Signal = 17,
    WaitSignal = 18,
    TensorRegister = 19,
    TensorDeregister = 20,
    Reconfigure = 21,
}

impl Operation {
    /// All of them, in order of their codes.
    pub const ALL: [Self; 21] = [
        Self::Broadcast,
        Self::AllReduce,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Barrier,
        Self::Send,
        Self::Recv,
        Self::Batch,
        Self::Split,
        Self::Put,
        Self::PutSignal,
        Self::Get,
        Self::Signal,
        Self::WaitSignal,
        Self::TensorRegister,
        Self::TensorDeregister,
        Self::Reconfigure,
    ];

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Batch => "batch",
            Self::Split => "split",
            Self::Put => "put",
            Self::PutSignal => "put_signal",
            Self::Get => "get",
            Self::Signal => "signal",
            Self::WaitSignal => "wait_signal",
            Self::TensorRegister => "tensor_register",
            Self::TensorDeregister => "tensor_deregister",
            Self::Reconfigure => "reconfigure",
        }
    }

    /// Whether it concerns this rank and one other, and fails without its communicator: no other rank
    /// waits for what it would have done.
    pub fn is_alone(self) -> bool {
        match self {
            Self::Send
            | Self::Recv
            | Self::Batch
            | Self::Put
            | Self::PutSignal
            | Self::Get
            | Self::Signal
            | Self::WaitSignal => true,
            Self::Broadcast
            | Self::AllReduce
            | Self::Reduce
            | Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter
            | Self::Barrier
            | Self::Split
            | Self::TensorRegister
            | Self::TensorDeregister
            | Self::Reconfigure => false,
        }
    }

    /// The operation with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|operation| *operation as u8 == code)
    }
}

/// A stretch of the client's memory: an address and a length in bytes. Zero bytes may have any
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// address of the first byte
    pub address: usize,
    /// length in bytes
    pub bytes: usize,
}

impl Region {
    /// No memory at all.
    pub const EMPTY: Self = Self {
        address: 0,
        bytes: 0,
    };

    /// `bytes` bytes from `offset` on; the caller keeps within the region.
    #[must_use]
    pub fn slice(self, offset: usize, bytes: usize) -> Self {
        debug_assert!(offset + bytes <= self.bytes);
        Self {
            address: self.address + offset,
            bytes,
        }
    }
}

/// One region per rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regions {
    /// Equal parts that lie one behind the other.
    Equal {
        /// the whole
        whole: Region,
        /// bytes per rank
        each: usize,
    },
    /// Any regions, in rank order.
    List(Vec<Region>),
}

impl Regions {
    /// The region of rank `rank`.
    pub fn of(&self, rank: usize) -> Region {
        match self {
            Self::Equal { whole, each } => whole.slice(rank * each, *each),
            Self::List(list) => list[rank],
        }
    }

    /// Bytes of all regions together.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Equal { whole, .. } => whole.bytes,
            Self::List(list) => list.iter().map(|region| region.bytes).sum(),
        }
    }
}

/// A collective: every rank of the communicator calls it, in the same order.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "fields are the operation's arguments by their usual names"
)]
pub enum Collective {
    Broadcast {
        buffer: Region,
        root: GroupRank,
    },
    /// `input` and `output` have the same length and may be the same region.
    AllReduce {
        input: Region,
        output: Region,
        op: ReduceOp,
    },
    /// `output` is there on the root alone; it may be `input`.
    Reduce {
        input: Region,
        output: Option<Region>,
        op: ReduceOp,
        root: GroupRank,
    },
    /// `outputs` of every rank agree in their lengths; `input` may be the own output.
    AllGather {
        input: Region,
        outputs: Regions,
    },
    /// `inputs` of every rank agree in their lengths; `output` may be the own input.
    ReduceScatter {
        inputs: Regions,
        output: Region,
        op: ReduceOp,
    },
    AllToAll {
        inputs: Regions,
        outputs: Regions,
    },
    /// `outputs` are there on the root alone.
    Gather {
        input: Region,
        outputs: Option<Regions>,
        root: GroupRank,
    },
    /// `inputs` are there on the root alone.
    Scatter {
        inputs: Option<Regions>,
        output: Region,
        root: GroupRank,
    },
    Barrier,
}

impl Collective {
    /// Which operation it is.
    #[inline(always)]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Broadcast { .. } => Operation::Broadcast,
            Self::AllReduce { .. } => Operation::AllReduce,
            Self::Reduce { .. } => Operation::Reduce,
            Self::AllGather { .. } => Operation::AllGather,
            Self::ReduceScatter { .. } => Operation::ReduceScatter,
            Self::AllToAll { .. } => Operation::AllToAll,
            Self::Gather { .. } => Operation::Gather,
            Self::Scatter { .. } => Operation::Scatter,
            Self::Barrier => Operation::Barrier,
        }
    }

    /// The root, for operations that have one.
    #[inline(always)]
    pub fn root(&self) -> Option<GroupRank> {
        match self {
            Self::Broadcast { root, .. }
            | Self::Reduce { root, .. }
            | Self::Gather { root, .. }
            | Self::Scatter { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// The reduce op, for operations that have one.
    #[inline(always)]
    pub fn reduce_op(&self) -> Option<&ReduceOp> {
        match self {
            Self::AllReduce { op, .. }
            | Self::Reduce { op, .. }
            | Self::ReduceScatter { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Bytes on which all ranks must agree; `None` where they need not (all_to_all).
    #[inline(always)]
    pub fn common_bytes(&self) -> Option<usize> {
        match self {
            Self::Broadcast { buffer, .. } => Some(buffer.bytes),
            Self::AllReduce { input, .. } | Self::Reduce { input, .. } => Some(input.bytes),
            Self::AllGather { outputs, .. } => Some(outputs.bytes()),
            Self::ReduceScatter { inputs, .. } => Some(inputs.bytes()),
            Self::Gather { input, .. } => Some(input.bytes),
            Self::Scatter { output, .. } => Some(output.bytes),
            Self::AllToAll { .. } => None,
            Self::Barrier => Some(0),
        }
    }

    /// Bytes of the client's payload on this rank, for counters: what it gives, or takes where it
    /// gives nothing.
    #[inline(always)]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Broadcast { buffer, .. } => buffer.bytes,
            Self::AllReduce { input, .. }
            | Self::Reduce { input, .. }
            | Self::AllGather { input, .. }
            | Self::Gather { input, .. } => input.bytes,
            Self::ReduceScatter { inputs, .. } | Self::AllToAll { inputs, .. } => inputs.bytes(),
            Self::Scatter { output, .. } => output.bytes,
            Self::Barrier => 0,
        }
    }
}

/// Whom a receive listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// this rank alone
    Rank(GroupRank),
    /// whichever sends first
    Any,
}

/// A send or a receive, matched by (peer, tag), first in first out.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "fields are the operation's arguments by their usual names"
)]
pub enum PointToPoint {
    Send {
        buffer: Region,
        to: GroupRank,
        tag: u32,
    },
    Recv {
        buffer: Region,
        from: Source,
        tag: u32,
    },
}

/// What is asked.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the variants are the types they hold")]
pub enum Task {
    Collective(Collective),
    PointToPoint(PointToPoint),
    /// One unit: complete when all of it is.
    Batch(Vec<(PointToPoint, Dtype)>),
}

impl Task {
    /// Which operation it is.
    #[inline(always)]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Collective(collective) => collective.operation(),
            Self::PointToPoint(PointToPoint::Send { .. }) => Operation::Send,
            Self::PointToPoint(PointToPoint::Recv { .. }) => Operation::Recv,
            Self::Batch(_) => Operation::Batch,
        }
    }
}

/// A stream of a device, by the number its driver knows it under; 0 is the device's default stream.
/// Engines without devices take no notice of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// Whether somebody waits for the call at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The caller waits right after; no other thread needs to drive the call.
    Sync,
    /// The engine drives the call while nobody waits for it.
    Async,
}

/// What goes with a task: how, when and for how long it is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// as in `Call`
    pub dtype: Dtype,
    /// as in `Call`
    pub sequence: u64,
    /// as in `Call`
    pub timeout: Duration,
    /// as in `Call`
    pub mode: Mode,
}

impl Conditions {
    /// The call of `task`, which is taken out: an empty batch is left in its place.
    pub fn call(&self, task: &mut Task) -> Call {
        let Self {
            dtype,
            sequence,
            timeout,
            mode,
        } = *self;
        Call {
            task: std::mem::replace(task, Task::Batch(Vec::new())),
            dtype,
            sequence,
            timeout,
            mode,
        }
    }
}

/// A checked request to a group.
#[derive(Clone, Debug)]
pub struct Call {
    /// what is asked
    pub task: Task,
    /// element type of its regions (`Byte` for a batch, whose parts carry their own)
    pub dtype: Dtype,
    /// number of the collective on its communicator, from 1; of the call, for point-to-point
    pub sequence: u64,
    /// how long it may take, counted from its start
    pub timeout: Duration,
    /// who drives it
    pub mode: Mode,
}

impl Call {
    /// What goes with its task.
    pub fn conditions(&self) -> Conditions {
        Conditions {
            dtype: self.dtype,
            sequence: self.sequence,
            timeout: self.timeout,
            mode: self.mode,
        }
    }
}

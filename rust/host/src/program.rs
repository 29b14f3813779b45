//! A collective as a list of steps for one rank: pure data, computed from rank, size and lengths.
//!
//! The progress engine runs programs; tests run them without any connection. A program must not
//! know links, locks or time.

use std::ops::Range;

use ferrocomm_core::call::Region;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduction::Reduction;

/// Memory a step works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// lent by the client
    Client(Region),
    /// a part of the program's own scratch memory
    Scratch {
        /// from its start, in bytes
        offset: usize,
        /// length in bytes
        bytes: usize,
    },
}

/// One input of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// stands in this place, apart from the output
    At(Place),
    /// stands in the output's place already
    Output,
}

/// One step. Steps run in order; `Send` and `Recv` only start a transfer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Starts sending `from`. `part` tells the messages of one pair and direction apart; the
    /// receiver names the same part and the same length.
    Send {
        to: GroupRank,
        part: u32,
        from: Place,
    },
    /// Starts receiving into `into`.
    Recv {
        from: GroupRank,
        part: u32,
        into: Place,
    },
    /// Waits for transfers, numbered from 0 in the order this program starts them. Until then
    /// their memory belongs to them.
    Wait(Range<u32>),
    /// Copies; the places have one length and do not overlap, or are the same place.
    Copy { from: Place, to: Place },
    /// Combines the operands, in rank order, into `output`.
    Reduce {
        reduction: Reduction,
        operands: Vec<Operand>,
        output: Place,
    },
}

/// The steps of one rank and the scratch memory they need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// bytes of scratch memory
    pub(crate) scratch: usize,
    /// the steps
    pub(crate) steps: Vec<Step>,
}

/// Sizes at which algorithms change: the same on all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// up to so many bytes every rank sends all it has to every other (one step, no second phase)
    pub(crate) one_shot: usize,
    /// larger reductions are cut into pieces of about so many bytes
    pub(crate) piece: usize,
    /// up to so many machines exchange with each other directly; more take turns
    pub(crate) direct: usize,
    /// from so many bytes on, what machines combine or hand on goes from neighbour to neighbour
    pub(crate) ring: usize,
}

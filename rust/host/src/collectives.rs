//! Collectives as programs: which rank moves and combines what, in which order.
//!
//! Pure: lengths in, steps out. Every rank computes its own program, and the programs of a group fit
//! because each message's sender and receiver derive its part and its length alike. A reduction
//! combines in rank order within a machine and in the order of machines between them, on every rank
//! alike or on one that hands out the result, so that all ranks hold the same bits.
//!
//! Where ranks share machines, they combine or collect among themselves first, and each exchanges its
//! share with one rank of every other machine, so that nothing crosses between machines twice and
//! every rank's connection carries something. Must not know links, locks, time or how memory is
//! reached.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod builder;
mod chain;
mod doubling;
mod gather;
mod halving;
mod lane;
mod pipeline;
mod reduce;
mod reduce_scatter;
mod ring;
mod scatter;
mod slices;
#[cfg(test)]
mod tests;
mod topology;

use ferrocomm_core::call::{Collective, Region, Regions};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::reduction::Reduction;

use crate::frame::Fingerprint;
use crate::program::{Limits, Program};
use builder::Builder;
pub(crate) use topology::Topology;

/// No slice is cut into more pieces than this.
const MAX_PIECES: usize = 4096;

/// What every algorithm knows of the ranks that take part in it, which it numbers from 0, and of the
/// call.
#[derive(Clone, Copy)]
struct Scene<'a> {
    /// this rank's number
    me: usize,
    size: usize,
    /// the ranks by number
    ranks: &'a [usize],
    topology: &'a Topology,
    dtype: Dtype,
    limits: &'a Limits,
}

impl<'a> Scene<'a> {
    /// The rank with this number.
    fn at(self, number: usize) -> usize {
        self.ranks[number]
    }

    /// This rank.
    fn rank(self) -> usize {
        self.ranks[self.me]
    }

    /// The machine of this rank.
    fn machine(self) -> usize {
        self.topology.seat(self.rank()).0
    }

    /// The same call among `ranks`, of which this is one.
    fn among<'b>(self, ranks: &'b [usize]) -> Scene<'b>
    where
        'a: 'b,
    {
        let own = self.rank();
        Scene {
            me: ranks.iter().position(|rank| *rank == own).unwrap_or(0),
            size: ranks.len(),
            ranks,
            ..self
        }
    }

    /// The same call among the ranks of this machine.
    fn at_home(self) -> Self {
        self.among(self.topology.ranks(self.machine()))
    }

    /// Whether parts of `bytes` bytes go between a root and another machine in one message. An
    /// exchange of nothing tells each rank that it is nothing.
    fn goes_together(self, bytes: usize) -> bool {
        let most = bytes * self.topology.columns();
        self.has_levels() && (1..=self.limits.one_shot).contains(&most)
    }

    /// Whether some ranks share a machine and others do not.
    fn has_levels(self) -> bool {
        (2..self.size).contains(&self.topology.machines())
    }

    /// The other ranks in the order in which this one sends: the next one first, so that at any
    /// moment the ranks of a group send to different ones.
    fn receivers(self) -> impl Iterator<Item = usize> {
        (1..self.size).map(move |step| (self.me + step) % self.size)
    }

    /// The other ranks in the order in which their messages are likely to come.
    fn senders(self) -> impl Iterator<Item = usize> {
        (1..self.size).map(move |step| (self.me + self.size - step) % self.size)
    }

    /// How to combine the inputs of the whole group.
    fn reduction(self, op: ReduceOp) -> Result<Reduction> {
        Reduction::new(op, self.dtype, self.size)
    }

    /// Length of the pieces into which slices of at most `longest` bytes are cut: whole elements of
    /// `element` bytes. Giant slices get longer pieces, so that a program stays small.
    fn piece(self, longest: usize, element: usize) -> usize {
        let usual = self.limits.piece / element;
        let least = longest.div_ceil(MAX_PIECES).div_ceil(element);
        usual.max(least).max(1) * element
    }
}

/// When a rank is done with a collective in which it only gives or only takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// with its own part
    Alone,
    /// when all have come
    Together,
}

/// Every so many collectives all ranks come to one point: who only gives runs ahead no further, so that
/// what it has sent stays bounded, and it hears of a rank that is gone.
const STEP: u64 = 64;

impl Ending {
    /// Of the collective with this number.
    pub(crate) fn of(sequence: u64) -> Self {
        if sequence.is_multiple_of(STEP) {
            Self::Together
        } else {
            Self::Alone
        }
    }
}

/// The program of `rank` in a group of this topology for `collective` on elements of `dtype`.
///
/// # Errors
/// `InvalidArgument` when regions do not fit each other, `Unsupported` when the reduction is not in
/// the table. Nothing has moved then.
pub(crate) fn program(
    collective: &Collective,
    dtype: Dtype,
    rank: GroupRank,
    topology: &Topology,
    limits: &Limits,
    ending: Ending,
) -> Result<Program> {
    let size = topology.everyone().len();
    let scene = Scene {
        me: rank.index(),
        size,
        ranks: topology.everyone(),
        topology,
        dtype,
        limits,
    };
    let mut builder = Builder::default();
    let b = &mut builder;
    match collective {
        Collective::Broadcast { buffer, root } => broadcast::build(b, scene, *buffer, root.index()),
        Collective::AllReduce { input, output, op } => {
            same_length(*input, *output)?;
            all_reduce::build(b, scene, *input, *output, scene.reduction(*op)?);
        }
        Collective::Reduce {
            input,
            output,
            op,
            root,
        } => {
            let output = on_root(scene.me, root.index(), output.as_ref())?.copied();
            if let Some(output) = output {
                same_length(*input, output)?;
            }
            reduce::build(
                b,
                scene,
                *input,
                output,
                scene.reduction(*op)?,
                root.index(),
            );
        }
        Collective::AllGather { input, outputs } => {
            same_length(*input, region_of(outputs, scene.me, size)?)?;
            all_gather::build(b, scene, *input, outputs);
        }
        Collective::ReduceScatter { inputs, output, op } => {
            same_length(region_of(inputs, scene.me, size)?, *output)?;
            reduce_scatter::build(b, scene, inputs, *output, scene.reduction(*op)?);
        }
        Collective::AllToAll { inputs, outputs } => {
            same_length(
                region_of(inputs, scene.me, size)?,
                region_of(outputs, scene.me, size)?,
            )?;
            all_to_all::build(b, scene, inputs, outputs);
        }
        Collective::Gather {
            input,
            outputs,
            root,
        } => {
            let outputs = on_root(scene.me, root.index(), outputs.as_ref())?;
            if let Some(outputs) = outputs {
                same_length(*input, region_of(outputs, scene.me, size)?)?;
            }
            gather::build(b, scene, *input, outputs, root.index());
        }
        Collective::Scatter {
            inputs,
            output,
            root,
        } => {
            let inputs = on_root(scene.me, root.index(), inputs.as_ref())?;
            if let Some(inputs) = inputs {
                same_length(region_of(inputs, scene.me, size)?, *output)?;
            }
            scatter::build(b, scene, inputs, *output, root.index());
        }
        Collective::Barrier => barrier::build(b, scene),
    }
    if ending == Ending::Together && collective.root().is_some() {
        b.wait_all();
        barrier::build(b, scene);
    }
    Ok(builder.finish())
}

/// What a rank calls, as it is compared with the calls of the others.
#[inline(always)]
pub(crate) fn fingerprint(collective: &Collective, dtype: Dtype) -> Fingerprint {
    Fingerprint {
        operation: collective.operation(),
        dtype,
        op: collective.reduce_op().map(Fingerprint::op),
        root: collective.root(),
        bytes: collective.common_bytes().map(|bytes| bytes as u64),
    }
}

pub(crate) fn same_length(given: Region, wanted: Region) -> Result<()> {
    if given.bytes == wanted.bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "input and output differ in length",
    )
    .got(format!("{} bytes of input", given.bytes))
    .expected(format!("{} bytes, as many as the output", wanted.bytes)))
}

/// The region of `rank`, after a look at how many there are.
pub(crate) fn region_of(regions: &Regions, rank: usize, size: usize) -> Result<Region> {
    let fits = match regions {
        Regions::Equal { whole, each } => whole.bytes == each * size,
        Regions::List(list) => list.len() == size,
    };
    if fits {
        return Ok(regions.of(rank));
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "the buffers are not one per rank",
    )
    .expected(format!("{size} buffers")))
}

/// What the root alone has; elsewhere nothing, whatever was passed.
pub(crate) fn on_root<T>(me: usize, root: usize, given: Option<&T>) -> Result<Option<&T>> {
    match given {
        _ if me != root => Ok(None),
        Some(given) => Ok(Some(given)),
        None => Err(Error::new(
            ErrorKind::InvalidArgument,
            "the root has no buffer for the group",
        )),
    }
}

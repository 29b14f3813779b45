//! A collective on an arena: rounds in which every rank puts what others need, waits for those it
//! needs, and takes what they have put.
//!
//! Whoever drives a meeting steps it: a step goes as far as it can without waiting. Every rank
//! derives the same number of rounds from what all know, so rounds need no negotiation. A round is
//! put only when everybody has posted the round before, which is also when fingerprints are
//! compared with the ranks a call did not wait for. Must not know locks of the engine, links or time.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod brief;
mod broadcast;
mod gather;
mod places;
mod position;
mod reduce;
mod reduce_scatter;
mod scatter;
#[cfg(test)]
mod tests;
mod way;

use std::cell::Cell;

use ferrocomm_core::call::{Collective, Region};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::reduction::Reduction;

pub(crate) use brief::Brief;
use position::agrees;
pub(crate) use position::{Position, Settled};
use way::{LOOKED_FROM, SETTLED, Way, share};

use crate::arena::{Arena, INLINE, Inline};
use crate::collectives::{self, on_root, region_of, same_length};
use crate::print::Print;
use crate::pulling;

/// Of so many bytes little is left in the caches when the last have come.
const LARGE: usize = 8 << 20;

/// Whom a rank waits for before it takes what a round brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    All,
    Only(usize),
    Nobody,
}

/// One round as a plan sees it.
struct Round<'a> {
    arena: &'a Arena,
    me: usize,
    /// on the arena, from 1
    number: u64,
    /// of the collective, from 0
    index: u64,
    /// what goes beside the flag is put together here
    inline: Option<&'a Cell<Inline>>,
    /// more is moved than caches hold
    is_large: bool,
    way: Way,
}

impl Round<'_> {
    /// Where this rank puts `bytes` bytes for the others.
    fn mine(&self, bytes: usize) -> *mut u8 {
        match self.inline {
            Some(inline) if bytes <= INLINE => inline.as_ptr().cast(),
            _ => self.arena.payload(self.me, self.number, bytes),
        }
    }

    /// Where this rank puts bytes for the next round. Nobody reads there any more once everybody has
    /// posted this round.
    fn ahead(&self, bytes: usize) -> *mut u8 {
        debug_assert!(bytes > INLINE, "what goes beside a flag is put with it");
        self.arena.payload(self.me, self.number + 1, bytes)
    }

    /// Puts addresses of this rank's memory, one per rank or one for all.
    fn put_addresses(&self, addresses: impl ExactSizeIterator<Item = u64>) {
        self.arena.announce(self.me);
        let place = self.mine(8 * addresses.len()).cast::<u64>();
        for (index, address) in addresses.enumerate() {
            // SAFETY: payloads are aligned to 8 and as long as was asked for; this rank alone writes
            // its own now.
            unsafe { place.add(index).write(address) }
        }
    }

    /// Address `index` of the `count` that `rank` has put.
    fn address_of(&self, rank: usize, index: usize, count: usize) -> u64 {
        debug_assert!(index < count);
        // SAFETY: as above; `rank` has posted and writes there no more.
        unsafe { self.of(rank, 8 * count).cast::<u64>().add(index).read() }
    }

    /// Where `bytes` bytes of `rank`, from an address that it has put, can be read in this process.
    /// `None`: they must be pulled. Valid until this is asked for `rank` again.
    fn direct(&self, rank: usize, address: u64, bytes: usize) -> Option<*const u8> {
        self.arena.view(rank, address, bytes)
    }

    /// Fills `to` with memory of `rank`, from an address that it has put.
    ///
    /// # Errors
    /// `PeerLost` when it is gone, `Transport` when the kernel refuses.
    ///
    /// # Safety
    /// `to` belongs to the running call.
    unsafe fn pull(&self, rank: usize, address: u64, to: Region) -> Result<()> {
        if let Some(from) = self.direct(rank, address, to.bytes) {
            // SAFETY: by the caller's promise; `rank` keeps what it has put an address of.
            unsafe { places::take(self, from, to) }
            return Ok(());
        }
        let (who, _) = self.arena.peer(rank);
        let peer = GroupRank::new(u32::try_from(rank).unwrap_or(u32::MAX));
        // SAFETY: by the caller's promise.
        unsafe { pulling::pull(who.pid, address, to) }.map_err(|error| error.peers([peer]))
    }

    /// Whether lines of this round are looked at, where ranks look: of one call in four or so, because
    /// those lines cost what the others are spared. By the number, which all know, and mixed, because
    /// calls of one kind take a fixed number of rounds.
    fn is_looked_at(&self) -> bool {
        const MIXED: u64 = 0x9e37_79b9_7f4a_7c15;
        self.way != Way::Chosen && self.index == 0 && self.number.wrapping_mul(MIXED) >> 62 == 0
    }

    /// Looks how near the rank is that has put `bytes` bytes at `from`.
    ///
    /// # Safety
    /// `from` is a payload of another rank of this round, which has posted.
    unsafe fn look(&self, from: *const u8, bytes: usize) {
        if self.is_looked_at() && bytes >= LOOKED_FROM {
            // SAFETY: by the caller's promise.
            unsafe { self.arena.near().look(from) }
        }
    }

    /// Where `rank` has put its bytes.
    fn of(&self, rank: usize, bytes: usize) -> *const u8 {
        self.arena.payload(rank, self.number, bytes)
    }
}

/// What a rank does in the rounds of one collective.
trait Plan {
    /// How many rounds there are, at least one. May grow in the first `take`.
    fn rounds(&self) -> u64;
    fn needs(&self, index: u64) -> Needs;
    /// Whether others wait for this rank alone.
    fn leads(&self, _index: u64) -> bool {
        false
    }
    fn put(&mut self, round: &Round<'_>);
    /// # Errors
    /// `Mismatch` when what a rank has put does not fit what this one expects.
    fn take(&mut self, round: &Round<'_>) -> Result<()>;
}

struct Barrier;

impl Plan for Barrier {
    fn rounds(&self) -> u64 {
        1
    }
    fn needs(&self, _: u64) -> Needs {
        Needs::All
    }
    fn put(&mut self, _: &Round<'_>) {}
    fn take(&mut self, _: &Round<'_>) -> Result<()> {
        Ok(())
    }
}

/// The plans, in one place: a call makes no allocation for its own.
enum Course {
    Broadcast(broadcast::Broadcast),
    AllReduce(all_reduce::AllReduce),
    Reduce(reduce::Reduce),
    AllGather(all_gather::AllGather),
    ReduceScatter(reduce_scatter::ReduceScatter),
    AllToAll(all_to_all::AllToAll),
    Gather(gather::Gather),
    Scatter(scatter::Scatter),
    Barrier(Barrier),
}

impl Course {
    /// # Errors
    /// `Unsupported` when the reduction is not in the table.
    fn new(collective: Collective, dtype: Dtype, scene: Scene) -> Result<Self> {
        let reduction = |op| Reduction::new(op, dtype, scene.ranks);
        Ok(match collective {
            Collective::Broadcast { buffer, root } => {
                Self::Broadcast(broadcast::Broadcast::new(scene, buffer, root.index()))
            }
            Collective::AllReduce { input, output, op } => Self::AllReduce(
                all_reduce::AllReduce::new(scene, input, output, reduction(op)?),
            ),
            Collective::Reduce {
                input,
                output,
                op,
                root,
            } => Self::Reduce(reduce::Reduce::new(
                scene,
                input,
                output,
                reduction(op)?,
                root.index(),
            )),
            Collective::AllGather { input, outputs } => {
                Self::AllGather(all_gather::AllGather::new(scene, input, outputs))
            }
            Collective::ReduceScatter { inputs, output, op } => Self::ReduceScatter(
                reduce_scatter::ReduceScatter::new(scene, inputs, output, reduction(op)?),
            ),
            Collective::AllToAll { inputs, outputs } => {
                Self::AllToAll(all_to_all::AllToAll::new(scene, inputs, outputs))
            }
            Collective::Gather {
                input,
                outputs,
                root,
            } => Self::Gather(gather::Gather::new(scene, input, outputs, root.index())),
            Collective::Scatter {
                inputs,
                output,
                root,
            } => Self::Scatter(scatter::Scatter::new(scene, inputs, output, root.index())),
            Collective::Barrier => Self::Barrier(Barrier),
        })
    }

    fn plan(&mut self) -> &mut dyn Plan {
        match self {
            Self::Broadcast(plan) => plan,
            Self::AllReduce(plan) => plan,
            Self::Reduce(plan) => plan,
            Self::AllGather(plan) => plan,
            Self::ReduceScatter(plan) => plan,
            Self::AllToAll(plan) => plan,
            Self::Gather(plan) => plan,
            Self::Scatter(plan) => plan,
            Self::Barrier(plan) => plan,
        }
    }
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Stepped {
    Done,
    /// waits for others; whether the step got further before
    Waiting(bool),
    Differs {
        rank: usize,
        theirs: Print,
        ours: Print,
    },
    Failed(Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Put,
    Take,
}

/// Whether a collective has its plan: who reads whom is known once everybody has posted the round
/// before its first.
enum Begun {
    No {
        collective: Collective,
        dtype: Dtype,
    },
    Yes(Course),
}

/// A collective on its way.
pub(crate) struct Meeting {
    begun: Begun,
    print: Print,
    is_large: bool,
    way: Way,
    index: u64,
    stage: Stage,
}

impl Meeting {
    /// `collective` on elements of `dtype`. The collective has passed `check`.
    pub(crate) fn new(collective: Collective, dtype: Dtype) -> Self {
        Self {
            print: Print::from(collectives::fingerprint(&collective, dtype)),
            is_large: collective.payload_bytes() >= LARGE,
            way: Way::Chosen,
            begun: Begun::No { collective, dtype },
            index: 0,
            stage: Stage::Put,
        }
    }

    /// `collective`, a `Brief` one, whose round this rank has posted.
    pub(crate) fn of_posted(collective: Collective, dtype: Dtype) -> Self {
        Self {
            stage: Stage::Take,
            ..Self::new(collective, dtype)
        }
    }

    /// Goes on as far as it can. `posted` is called after every post.
    pub(crate) fn step(
        &mut self,
        arena: &Arena,
        me: usize,
        position: &mut Position,
        mut posted: impl FnMut(u64, bool),
    ) -> Stepped {
        let mut moved = false;
        loop {
            match self.stage {
                Stage::Put => {
                    let number = position.next;
                    match position.settle(arena, me, number - 1) {
                        Settled::Yes => {}
                        Settled::Open => return Stepped::Waiting(moved),
                        Settled::Differs { rank, theirs, ours } => {
                            return Stepped::Differs { rank, theirs, ours };
                        }
                    }
                    if let Err(error) = self.begin(arena, me, position) {
                        return Stepped::Failed(error);
                    }
                    let inline = Cell::default();
                    let round = Round {
                        inline: Some(&inline),
                        ..self.round(arena, me, number)
                    };
                    let plan = match self.plan() {
                        Ok(plan) => plan,
                        Err(error) => return Stepped::Failed(error),
                    };
                    plan.put(&round);
                    let alone = plan.leads(round.index);
                    let remarks = arena.post(me, number, self.print, &inline.get());
                    position.posted(number, self.print, remarks);
                    posted(number, alone);
                    arena.fetch_ahead(me, number);
                    self.stage = Stage::Take;
                }
                Stage::Take => {
                    if let Err(error) = self.begin(arena, me, position) {
                        return Stepped::Failed(error);
                    }
                    let number = position.next - 1;
                    let round = self.round(arena, me, number);
                    let print = self.print;
                    let plan = match self.plan() {
                        Ok(plan) => plan,
                        Err(error) => return Stepped::Failed(error),
                    };
                    let settled = match plan.needs(round.index) {
                        Needs::All => position.settle(arena, me, number),
                        Needs::Only(rank) => agrees(arena, rank, number, print),
                        Needs::Nobody => Settled::Yes,
                    };
                    match settled {
                        Settled::Yes => {}
                        Settled::Open => return Stepped::Waiting(moved),
                        Settled::Differs { rank, theirs, ours } => {
                            return Stepped::Differs { rank, theirs, ours };
                        }
                    }
                    if let Err(error) = plan.take(&round) {
                        return Stepped::Failed(error);
                    }
                    if round.index + 1 == plan.rounds() {
                        return Stepped::Done;
                    }
                    self.index += 1;
                    self.stage = Stage::Put;
                }
            }
            moved = true;
        }
    }

    /// Makes the plan, when the first round is put.
    fn begin(&mut self, arena: &Arena, me: usize, position: &mut Position) -> Result<()> {
        if let Begun::No { collective, dtype } = &mut self.begun {
            let scene = Scene {
                me,
                ranks: arena.ranks(),
                slot: arena.slot_bytes(),
                near: position.all.near,
                looks: arena.near().looks(),
                direct: position.reads_directly(arena),
                direct_from: position.direct_from(arena),
            };
            self.way = Way::of(scene, share(collective, scene));
            let collective = std::mem::replace(collective, Collective::Barrier);
            self.begun = Begun::Yes(Course::new(collective, *dtype, scene)?);
        }
        Ok(())
    }

    fn plan(&mut self) -> Result<&mut dyn Plan> {
        match &mut self.begun {
            Begun::Yes(course) => Ok(course.plan()),
            Begun::No { .. } => Err(Error::new(ErrorKind::State, "a collective has no plan")),
        }
    }

    fn round<'a>(&self, arena: &'a Arena, me: usize, number: u64) -> Round<'a> {
        Round {
            arena,
            me,
            number,
            index: self.index,
            inline: None,
            is_large: self.is_large,
            way: self.way,
        }
    }

    /// The ranks without which the next step gets no further.
    pub(crate) fn missing(&mut self, arena: &Arena, me: usize, position: &Position) -> Vec<usize> {
        let (round, needs) = match self.stage {
            Stage::Put => (position.next - 1, Needs::All),
            Stage::Take => {
                let needs = match &mut self.begun {
                    Begun::Yes(course) => course.plan().needs(self.index),
                    Begun::No { .. } => Needs::All,
                };
                (position.next - 1, needs)
            }
        };
        (0..arena.ranks())
            .filter(|rank| match needs {
                Needs::All => *rank != me,
                Needs::Only(only) => *rank == only,
                Needs::Nobody => false,
            })
            .filter(|rank| !arena.posted(*rank, round))
            .collect()
    }
}

/// Whether the regions of `collective` fit each other and its reduction is in the table, for rank `me`
/// of `ranks`.
///
/// # Errors
/// `InvalidArgument` or `Unsupported`.
pub(crate) fn check(collective: &Collective, dtype: Dtype, me: usize, ranks: usize) -> Result<()> {
    let reduction = |op: &ReduceOp| Reduction::check(op, dtype);
    match collective {
        Collective::AllReduce { input, output, op } => {
            same_length(*input, *output)?;
            reduction(op)
        }
        Collective::Reduce {
            input,
            output,
            op,
            root,
        } => {
            if let Some(output) = on_root(me, root.index(), output.as_ref())? {
                same_length(*input, *output)?;
            }
            reduction(op)
        }
        Collective::AllGather { input, outputs } => {
            same_length(*input, region_of(outputs, me, ranks)?)
        }
        Collective::ReduceScatter { inputs, output, op } => {
            same_length(region_of(inputs, me, ranks)?, *output)?;
            reduction(op)
        }
        Collective::AllToAll { inputs, outputs } => same_length(
            region_of(inputs, me, ranks)?,
            region_of(outputs, me, ranks)?,
        ),
        Collective::Gather {
            input,
            outputs,
            root,
        } => match on_root(me, root.index(), outputs.as_ref())? {
            Some(outputs) => same_length(*input, region_of(outputs, me, ranks)?),
            None => Ok(()),
        },
        Collective::Scatter {
            inputs,
            output,
            root,
        } => match on_root(me, root.index(), inputs.as_ref())? {
            Some(inputs) => same_length(region_of(inputs, me, ranks)?, *output),
            None => Ok(()),
        },
        Collective::Broadcast { .. } | Collective::Barrier => Ok(()),
    }
}

/// What every plan knows of the group.
#[derive(Clone, Copy)]
struct Scene {
    me: usize,
    ranks: usize,
    /// bytes of a slot
    slot: usize,
    /// there are two ranks, which think each other near
    near: bool,
    /// they look at each other
    looks: bool,
    /// all ranks read the memory of all others
    direct: bool,
    /// from so many bytes on they do
    direct_from: usize,
}

impl Scene {
    /// The other ranks, the next one first: at any moment the ranks read from different ones.
    fn others(self) -> impl Iterator<Item = usize> {
        (1..self.ranks).map(move |step| (self.me + step) % self.ranks)
    }
}

//! What to ask of NCCL for a call: a list of steps, grouped when there are several.
//!
//! Pure: it must not know streams, communicators or the library.

use ferrocomm_core::call::{Collective, PointToPoint, Region, Regions, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::reductions::{Combine, Wire, combine};

/// One function of NCCL with its arguments. Counts are in elements of `wire`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the arguments by NCCL's names")]
pub(crate) enum Step {
    AllReduce {
        send: usize,
        recv: usize,
        count: usize,
    },
    Reduce {
        send: usize,
        recv: usize,
        count: usize,
        root: u32,
    },
    Broadcast {
        send: usize,
        recv: usize,
        count: usize,
        root: u32,
    },
    AllGather {
        send: usize,
        recv: usize,
        count: usize,
    },
    ReduceScatter {
        send: usize,
        recv: usize,
        count: usize,
    },
    AllToAll {
        send: usize,
        recv: usize,
        count: usize,
    },
    Send {
        buffer: usize,
        bytes: usize,
        peer: u32,
    },
    Recv {
        buffer: usize,
        bytes: usize,
        peer: u32,
    },
}

/// The steps of a call, and what they have in common.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) wire: Wire,
    pub(crate) combine: Option<Combine>,
    /// the steps are one unit even when there is one
    pub(crate) grouped: bool,
}

/// What the plan is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
    /// whether the library has `ncclAlltoAll`
    pub(crate) native_all_to_all: bool,
    /// memory of the device for one element, which a barrier combines
    pub(crate) token: usize,
}

/// The steps for `task`.
///
/// # Errors
/// `Unsupported` for what NCCL cannot do.
pub(crate) fn plan(task: &Task, dtype: Dtype, place: Place) -> Result<Plan> {
    match task {
        Task::Collective(collective) => place.collective(collective, dtype),
        Task::PointToPoint(part) => {
            let steps = message(part)?.into_iter().collect();
            Ok(Plan::moving(steps, Wire::BYTE, false))
        }
        Task::Batch(parts) => {
            let steps = parts.iter().map(|(part, _)| message(part));
            let steps: Vec<Option<Step>> = steps.collect::<Result<_>>()?;
            Ok(Plan::moving(
                steps.into_iter().flatten().collect(),
                Wire::BYTE,
                true,
            ))
        }
    }
}

impl Plan {
    fn moving(steps: Vec<Step>, wire: Wire, grouped: bool) -> Self {
        Self {
            grouped: grouped || steps.len() > 1,
            steps,
            wire,
            combine: None,
        }
    }

    fn combining(steps: Vec<Step>, (combine, wire): (Combine, Wire)) -> Self {
        Self {
            combine: Some(combine),
            ..Self::moving(steps, wire, false)
        }
    }
}

/// A send or receive of no bytes is nothing at all, on both sides.
fn message(part: &PointToPoint) -> Result<Option<Step>> {
    Ok(match *part {
        PointToPoint::Send { buffer, to, .. } => send(buffer, to.get()),
        PointToPoint::Recv {
            buffer,
            from: Source::Rank(from),
            ..
        } => recv(buffer, from.get()),
        PointToPoint::Recv {
            from: Source::Any, ..
        } => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "nccl cannot receive from whichever rank sends first",
            )
            .remedy("name the source"));
        }
    })
}

fn send(buffer: Region, peer: u32) -> Option<Step> {
    let Region { address, bytes } = buffer;
    (bytes > 0).then_some(Step::Send {
        buffer: address,
        bytes,
        peer,
    })
}

fn recv(buffer: Region, peer: u32) -> Option<Step> {
    let Region { address, bytes } = buffer;
    (bytes > 0).then_some(Step::Recv {
        buffer: address,
        bytes,
        peer,
    })
}

impl Place {
    fn ranks(self) -> impl Iterator<Item = (u32, usize)> {
        (0u32..).zip(0..self.size)
    }

    fn collective(self, collective: &Collective, dtype: Dtype) -> Result<Plan> {
        let moved = Wire::to_move(dtype);
        Ok(match collective {
            Collective::Broadcast { buffer, root } => {
                let step = Step::Broadcast {
                    send: buffer.address,
                    recv: buffer.address,
                    count: buffer.bytes / moved.size,
                    root: root.get(),
                };
                Plan::moving(some(step, buffer.bytes), moved, false)
            }
            Collective::AllReduce { input, output, op } => {
                let (combine, wire) = combine(*op, dtype)?;
                let step = Step::AllReduce {
                    send: input.address,
                    recv: output.address,
                    count: input.bytes / wire.size,
                };
                Plan::combining(some(step, input.bytes), (combine, wire))
            }
            Collective::Reduce {
                input,
                output,
                op,
                root,
            } => {
                let (combine, wire) = combine(*op, dtype)?;
                let step = Step::Reduce {
                    send: input.address,
                    // Not written elsewhere than on the root, but NCCL wants an address.
                    recv: output.unwrap_or(*input).address,
                    count: input.bytes / wire.size,
                    root: root.get(),
                };
                Plan::combining(some(step, input.bytes), (combine, wire))
            }
            Collective::AllGather { input, outputs } => self.all_gather(*input, outputs, moved),
            Collective::ReduceScatter { inputs, output, op } => {
                self.reduce_scatter(inputs, *output, *op, dtype)?
            }
            Collective::AllToAll { inputs, outputs } => self.all_to_all(inputs, outputs, moved),
            Collective::Gather {
                input,
                outputs,
                root,
            } => self.gather(*input, outputs.as_ref(), *root),
            Collective::Scatter {
                inputs,
                output,
                root,
            } => self.scatter(inputs.as_ref(), *output, *root),
            Collective::Barrier => {
                let step = Step::AllReduce {
                    send: self.token,
                    recv: self.token,
                    count: 1,
                };
                Plan::combining(vec![step], combine(ReduceOp::Max, Dtype::Uint8)?)
            }
        })
    }

    /// Parts that lie one behind the other in one call; else a broadcast per rank.
    fn all_gather(self, input: Region, outputs: &Regions, wire: Wire) -> Plan {
        if let Regions::Equal { whole, each } = outputs {
            let step = Step::AllGather {
                send: input.address,
                recv: whole.address,
                count: each / wire.size,
            };
            return Plan::moving(some(step, *each), wire, false);
        }
        let steps = self.ranks().filter_map(|(rank, index)| {
            let part = outputs.of(index);
            let own = rank == self.rank.get();
            (part.bytes > 0).then(|| Step::Broadcast {
                send: if own { input.address } else { part.address },
                recv: part.address,
                count: part.bytes / wire.size,
                root: rank,
            })
        });
        Plan::moving(steps.collect(), wire, true)
    }

    /// As `all_gather`, with a reduction per rank.
    fn reduce_scatter(
        self,
        inputs: &Regions,
        output: Region,
        op: ReduceOp,
        dtype: Dtype,
    ) -> Result<Plan> {
        let (combine, wire) = combine(op, dtype)?;
        if let Regions::Equal { whole, each } = inputs {
            let step = Step::ReduceScatter {
                send: whole.address,
                recv: output.address,
                count: each / wire.size,
            };
            return Ok(Plan::combining(some(step, *each), (combine, wire)));
        }
        let steps = self.ranks().filter_map(|(rank, index)| {
            let part = inputs.of(index);
            let own = rank == self.rank.get();
            (part.bytes > 0).then(|| Step::Reduce {
                send: part.address,
                recv: if own { output.address } else { part.address },
                count: part.bytes / wire.size,
                root: rank,
            })
        });
        let plan = Plan::combining(steps.collect(), (combine, wire));
        Ok(Plan {
            grouped: true,
            ..plan
        })
    }

    fn all_to_all(self, inputs: &Regions, outputs: &Regions, wire: Wire) -> Plan {
        if let (true, Regions::Equal { whole: from, each }, Regions::Equal { whole: to, .. }) =
            (self.native_all_to_all, inputs, outputs)
        {
            let step = Step::AllToAll {
                send: from.address,
                recv: to.address,
                count: each / wire.size,
            };
            return Plan::moving(some(step, *each), wire, false);
        }
        let steps = self
            .ranks()
            .flat_map(|(rank, index)| [send(inputs.of(index), rank), recv(outputs.of(index), rank)])
            .flatten();
        Plan::moving(steps.collect(), Wire::BYTE, true)
    }

    fn gather(self, input: Region, outputs: Option<&Regions>, root: GroupRank) -> Plan {
        let mut steps = Vec::new();
        // In place on the root, there is nothing to move for it.
        let in_place = outputs.is_some_and(|outputs| outputs.of(self.rank.index()) == input);
        if !in_place {
            steps.extend(send(input, root.get()));
        }
        if let Some(outputs) = outputs {
            for (rank, index) in self.ranks() {
                if !(in_place && rank == self.rank.get()) {
                    steps.extend(recv(outputs.of(index), rank));
                }
            }
        }
        Plan::moving(steps, Wire::BYTE, true)
    }

    fn scatter(self, inputs: Option<&Regions>, output: Region, root: GroupRank) -> Plan {
        let mut steps = Vec::new();
        let in_place = inputs.is_some_and(|inputs| inputs.of(self.rank.index()) == output);
        if let Some(inputs) = inputs {
            for (rank, index) in self.ranks() {
                if !(in_place && rank == self.rank.get()) {
                    steps.extend(send(inputs.of(index), rank));
                }
            }
        }
        if !in_place {
            steps.extend(recv(output, root.get()));
        }
        Plan::moving(steps, Wire::BYTE, true)
    }
}

/// The step, unless it would move no bytes, which every rank sees alike.
fn some(step: Step, bytes: usize) -> Vec<Step> {
    if bytes > 0 { vec![step] } else { Vec::new() }
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;

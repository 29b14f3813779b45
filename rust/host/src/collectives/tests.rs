//! Runs the programs of all ranks against a plain reference.
//!
//! The reference works on a copy of everybody's memory from before the call and says what all of it
//! must hold afterwards: outputs the result, everything else what it held.

mod interpreter;
mod machines;
mod reference;
mod waiting;

use ferrocomm_core::call::{Collective, Region, Regions};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;

use super::{Ending, Topology, program};
use crate::location::Location;
use crate::program::{Limits, Place, Step};
use crate::random::{Random, is_run};
use interpreter::Delivery;

const SIZES: [usize; 8] = [1, 2, 3, 4, 5, 7, 8, 16];
const COUNTS: [usize; 8] = [0, 1, 3, 16, 17, 50, 301, 1027];
const DTYPES: [Dtype; 4] = [Dtype::Int32, Dtype::Float32, Dtype::Float64, Dtype::Uint8];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max];
/// As the engine uses them.
const PRODUCTION: Limits = crate::core::LIMITS;
const LIMITS: Limits = Limits {
    one_shot: 64,
    piece: 100,
    direct: 2,
    ring: 500,
};

/// With slices of one piece.
const LONG_PIECES: Limits = Limits {
    piece: 1 << 16,
    ..LIMITS
};

/// One rank's memory while its call is put together.
struct Arena {
    bytes: Vec<u8>,
    dtype: Dtype,
    random: Random,
    /// makes an element of a number below 100
    element: fn(Dtype, u64) -> Vec<u8>,
}

impl Arena {
    fn new(dtype: Dtype, random: Random) -> Self {
        Self {
            bytes: Vec::new(),
            dtype,
            random,
            element: reference::element,
        }
    }

    /// `count` elements with contents, at an address nothing else is near.
    fn region(&mut self, count: usize) -> Region {
        let address = (self.bytes.len() + 64).next_multiple_of(64);
        self.bytes.resize(address, 0xee);
        for _ in 0..count {
            let element = (self.element)(self.dtype, self.random.below(100));
            self.bytes.extend(element);
        }
        Region {
            address,
            bytes: count * self.dtype.size(),
        }
    }

    /// One part per rank, behind one another or each on its own.
    fn regions(&mut self, counts: &[usize], equal: bool) -> Regions {
        if equal {
            let whole = self.region(counts.iter().sum());
            return Regions::Equal {
                whole,
                each: whole.bytes / counts.len(),
            };
        }
        Regions::List(counts.iter().map(|count| self.region(*count)).collect())
    }
}

/// Runs one collective on all ranks in every way of delivery; `call` puts together the call of a
/// rank.
fn check(
    size: usize,
    dtype: Dtype,
    random: &mut Random,
    call: impl FnMut(usize, &mut Arena) -> Collective,
) {
    check_on(&one_machine(size), dtype, random, reference::element, call);
}

fn one_machine(size: usize) -> Topology {
    Topology::of(vec![(1, Location::default()); size])
}

fn check_on(
    topology: &Topology,
    dtype: Dtype,
    random: &mut Random,
    element: fn(Dtype, u64) -> Vec<u8>,
    mut call: impl FnMut(usize, &mut Arena) -> Collective,
) {
    let size = topology.everyone().len();
    let mut memories = Vec::new();
    let mut calls = Vec::new();
    for rank in 0..size {
        let mut arena = Arena::new(dtype, random.fork());
        arena.element = element;
        calls.push(call(rank, &mut arena));
        memories.push(arena.bytes);
    }
    let expected = reference::after(&calls, &memories, dtype);
    let limits = [LIMITS, LONG_PIECES][random.below(2) as usize];
    let ending = [Ending::Alone, Ending::Together][random.below(2) as usize];
    let programs: Vec<_> = calls
        .iter()
        .enumerate()
        .map(|(rank, call)| {
            let rank = GroupRank::new(rank as u32);
            program(call, dtype, rank, topology, &limits, ending)
        })
        .collect::<Result<_, _>>()
        .unwrap();
    for delivery in [Delivery::InOrder, Delivery::Rendezvous, Delivery::Buffered] {
        let seed = random.next();
        let context = format!(
            "seed {seed:#x}, {delivery:?}, {ending:?}, {limits:?}, {topology:?}, {dtype:?}, {:?}",
            calls[0]
        );
        let memories = interpreter::run(&programs, memories.clone(), delivery, seed)
            .unwrap_or_else(|problem| panic!("{problem}; {context}"));
        for (rank, (got, expected)) in memories.iter().zip(&expected).enumerate() {
            let wrong = got
                .iter()
                .zip(expected)
                .position(|(got, expected)| got != expected);
            assert_eq!(wrong, None, "memory of rank {rank}; {context}");
        }
    }
}

fn every_case(mut case: impl FnMut(usize, usize, Dtype, &mut Random)) {
    let mut random = Random::of_now();
    let mut number = 0;
    for size in SIZES {
        for count in COUNTS {
            for dtype in DTYPES {
                if is_run(number) {
                    case(size, count, dtype, &mut random);
                }
                number += 1;
            }
        }
    }
}

fn rank(index: usize) -> GroupRank {
    GroupRank::new(index as u32)
}

#[test]
fn all_reduce_in_and_out_of_place() {
    every_case(|size, count, dtype, random| {
        for op in OPS {
            for in_place in [false, true] {
                check(size, dtype, random, |_, arena| {
                    let input = arena.region(count);
                    let output = if in_place { input } else { arena.region(count) };
                    Collective::AllReduce { input, output, op }
                });
            }
        }
    });
}

#[test]
fn all_reduce_whose_input_and_output_overlap() {
    every_case(|size, count, dtype, random| {
        check(size, dtype, random, |_, arena| {
            let whole = arena.region(count + 1);
            let element = dtype.size();
            let input = whole.slice(0, count * element);
            let output = whole.slice(element, count * element);
            Collective::AllReduce {
                input,
                output,
                op: ReduceOp::Sum,
            }
        });
    });
}

#[test]
fn all_reduce_gives_all_ranks_the_same_bits() {
    // Addends whose sum depends on the order; the reference adds in rank order.
    let values = [1e16_f64, 1.0, -1e16, 3.0, 1e-3, 7e15, -7e15];
    let mut random = Random::of_now();
    for size in [2, 3, 5, 7] {
        for count in [1, 100] {
            check(size, Dtype::Float64, &mut random, |rank, arena| {
                let input = arena.region(count);
                for element in arena.bytes[input.address..].chunks_exact_mut(8) {
                    element.copy_from_slice(&values[rank].to_ne_bytes());
                }
                Collective::AllReduce {
                    input,
                    output: input,
                    op: ReduceOp::Sum,
                }
            });
        }
    }
}

#[test]
fn reduce_to_any_root() {
    every_case(|size, count, dtype, random| {
        for in_place in [false, true] {
            let root = random.below(size as u64) as usize;
            let op = OPS[random.below(3) as usize];
            check(size, dtype, random, |me, arena| {
                let input = arena.region(count);
                let output = if in_place { input } else { arena.region(count) };
                let output = (me == root).then_some(output);
                Collective::Reduce {
                    input,
                    output,
                    op,
                    root: rank(root),
                }
            });
        }
    });
}

#[test]
fn broadcast_from_any_root() {
    every_case(|size, count, dtype, random| {
        for root in [0, size - 1, random.below(size as u64) as usize] {
            check(size, dtype, random, |_, arena| Collective::Broadcast {
                buffer: arena.region(count),
                root: rank(root),
            });
        }
    });
}

/// Counts that differ from rank to rank, some of them zero.
fn uneven(size: usize, count: usize, random: &mut Random) -> Vec<usize> {
    (0..size)
        .map(|_| {
            if random.below(3) == 0 {
                0
            } else {
                random.below(count as u64 + 1) as usize
            }
        })
        .collect()
}

#[test]
fn all_gather_of_equal_and_unequal_parts() {
    every_case(|size, count, dtype, random| {
        for (equal, in_place) in [(true, false), (true, true), (false, false), (false, true)] {
            let counts = if equal {
                vec![count; size]
            } else {
                uneven(size, count, random)
            };
            check(size, dtype, random, |me, arena| {
                let outputs = arena.regions(&counts, equal);
                let input = if in_place {
                    outputs.of(me)
                } else {
                    arena.region(counts[me])
                };
                Collective::AllGather { input, outputs }
            });
        }
    });
}

#[test]
fn all_gather_whose_input_lies_among_the_outputs() {
    every_case(|size, count, dtype, random| {
        check(size, dtype, random, |me, arena| {
            let outputs = arena.regions(&vec![count; size], true);
            Collective::AllGather {
                input: outputs.of((me + 1) % size),
                outputs,
            }
        });
    });
}

#[test]
fn reduce_scatter_of_equal_and_unequal_parts() {
    every_case(|size, count, dtype, random| {
        for (equal, in_place) in [(true, false), (true, true), (false, false), (false, true)] {
            let counts = if equal {
                vec![count; size]
            } else {
                uneven(size, count, random)
            };
            let op = OPS[random.below(3) as usize];
            check(size, dtype, random, |me, arena| {
                let inputs = arena.regions(&counts, equal);
                let output = if in_place {
                    inputs.of(me)
                } else {
                    arena.region(counts[me])
                };
                Collective::ReduceScatter { inputs, output, op }
            });
        }
    });
}

#[test]
fn reduce_scatter_whose_output_is_another_input() {
    every_case(|size, count, dtype, random| {
        check(size, dtype, random, |me, arena| {
            let inputs = arena.regions(&vec![count; size], true);
            let output = inputs.of((me + 1) % size);
            Collective::ReduceScatter {
                inputs,
                output,
                op: ReduceOp::Sum,
            }
        });
        check(size, dtype, random, |_, arena| {
            let one = arena.region(count);
            let inputs = Regions::List(vec![one; size]);
            Collective::ReduceScatter {
                inputs,
                output: one,
                op: ReduceOp::Sum,
            }
        });
    });
}

#[test]
fn all_to_all_of_equal_and_unequal_parts() {
    every_case(|size, count, dtype, random| {
        for (equal, in_place) in [(true, false), (false, false), (true, true)] {
            let counts: Vec<Vec<usize>> = (0..size)
                .map(|_| {
                    if equal {
                        vec![count; size]
                    } else {
                        uneven(size, count, random)
                    }
                })
                .collect();
            check(size, dtype, random, |me, arena| {
                let inputs = arena.regions(&counts[me], equal);
                let back: Vec<usize> = counts.iter().map(|row| row[me]).collect();
                let outputs = if in_place {
                    inputs.clone()
                } else {
                    arena.regions(&back, equal)
                };
                Collective::AllToAll { inputs, outputs }
            });
        }
    });
}

#[test]
fn gather_and_scatter_with_any_root() {
    every_case(|size, count, dtype, random| {
        let root = random.below(size as u64) as usize;
        for shift in [None, Some(0), Some(1)] {
            // `shift`: the rank's own part lies among the root's parts, in place or elsewhere.
            check(size, dtype, random, |me, arena| {
                let parts = arena.regions(&vec![count; size], shift.is_some());
                let own = match shift {
                    Some(shift) if me == root => parts.of((me + shift) % size),
                    _ => arena.region(count),
                };
                let outputs = (me == root).then_some(parts);
                Collective::Gather {
                    input: own,
                    outputs,
                    root: rank(root),
                }
            });
            check(size, dtype, random, |me, arena| {
                let parts = arena.regions(&vec![count; size], shift.is_some());
                let own = match shift {
                    Some(shift) if me == root => parts.of((me + shift) % size),
                    _ => arena.region(count),
                };
                let inputs = (me == root).then_some(parts);
                Collective::Scatter {
                    inputs,
                    output: own,
                    root: rank(root),
                }
            });
        }
    });
}

#[test]
fn the_next_piece_is_on_its_way_while_one_is_combined() {
    let input = Region {
        address: 64,
        bytes: 2000,
    };
    let call = Collective::AllReduce {
        input,
        output: input,
        op: ReduceOp::Sum,
    };
    let program = program(
        &call,
        Dtype::Float32,
        rank(0),
        &one_machine(2),
        &LIMITS,
        Ending::Alone,
    )
    .unwrap();
    let mut receives = 0;
    let mut combined = 0;
    for step in &program.steps {
        match step {
            Step::Recv {
                into: Place::Scratch { .. },
                ..
            } => receives += 1,
            Step::Reduce { .. } => {
                combined += 1;
                assert_eq!(receives, (combined + 1).min(11), "at piece {combined}");
            }
            _ => {}
        }
    }
    assert_eq!(combined, 11);
}

#[test]
fn a_program_of_many_gigabytes_stays_small() {
    let input = Region {
        address: 1 << 20,
        bytes: 1 << 40,
    };
    let call = Collective::AllReduce {
        input,
        output: input,
        op: ReduceOp::Sum,
    };
    let limits = Limits {
        one_shot: 4096,
        piece: 65536,
        ..LIMITS
    };
    let program = program(
        &call,
        Dtype::Float32,
        rank(0),
        &one_machine(2),
        &limits,
        Ending::Alone,
    )
    .unwrap();
    assert!(
        program.steps.len() < 100_000,
        "{} steps",
        program.steps.len()
    );
}

#[test]
fn regions_that_do_not_fit_are_refused() {
    let region = |bytes| Region { address: 64, bytes };
    let parts = |count| Regions::List(vec![region(8); count]);
    let op = ReduceOp::Sum;
    let root = rank(1);
    let calls = [
        Collective::AllReduce {
            input: region(8),
            output: region(4),
            op,
        },
        Collective::Reduce {
            input: region(8),
            output: Some(region(4)),
            op,
            root,
        },
        Collective::Reduce {
            input: region(8),
            output: None,
            op,
            root,
        },
        Collective::AllGather {
            input: region(4),
            outputs: parts(3),
        },
        Collective::AllGather {
            input: region(8),
            outputs: parts(2),
        },
        Collective::ReduceScatter {
            inputs: parts(3),
            output: region(4),
            op,
        },
        Collective::AllToAll {
            inputs: parts(3),
            outputs: parts(4),
        },
        Collective::Gather {
            input: region(8),
            outputs: None,
            root,
        },
        Collective::Scatter {
            inputs: None,
            output: region(8),
            root,
        },
    ];
    for call in calls {
        let outcome = program(
            &call,
            Dtype::Int32,
            rank(1),
            &one_machine(3),
            &LIMITS,
            Ending::Alone,
        );
        assert!(outcome.is_err(), "{call:?}");
    }
}

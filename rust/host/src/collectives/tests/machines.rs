//! The programs of groups whose ranks are on several machines.

use ferrocomm_core::call::{Collective, Region, Regions};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;

use super::interpreter::{self, Delivery};
use super::{Arena, DTYPES, LIMITS, OPS, check_on, one_machine, rank, reference, uneven};
use crate::collectives::{Ending, Topology, program};
use crate::location::Location;
use crate::program::{Limits, Place, Program, Step};
use crate::random::{Random, is_run};

/// Ranks of each machine.
const SHAPES: [&[usize]; 14] = [
    &[1, 1],
    &[1, 1, 1],
    &[1, 1, 1, 1],
    &[1, 1, 1, 1, 1],
    &[1, 1, 1, 1, 1, 1, 1],
    &[2, 2],
    &[4, 4],
    &[2, 2, 2, 2],
    &[3, 3, 3],
    &[1, 3],
    &[4, 1, 2],
    &[2, 3, 1, 2],
    &[1, 1, 3, 1, 2],
    &[2, 1, 2, 1, 2, 1],
];
/// Around every change of algorithm of `LIMITS`.
const COUNTS: [usize; 8] = [0, 1, 3, 9, 16, 50, 120, 1027];

/// Machines hold ranks that follow one another.
fn blocks(shape: &[usize]) -> Topology {
    let names = (0..).zip(shape);
    Topology::of(names.flat_map(|(name, count)| vec![(name, Location::default()); *count]))
}

/// The same numbers of ranks, dealt to the machines in turn.
fn dealt(shape: &[usize]) -> Topology {
    let most = shape.iter().copied().max().unwrap_or(0);
    let turn = |turn: usize| {
        let machines = (0..).zip(shape);
        machines
            .filter(move |(_, count)| turn < **count)
            .map(|(name, _)| name)
    };
    // Every second machine stands in another rack, so that machines are not in the order of ranks.
    let rack = |name: u64| Location([1, 2 + name as u32 % 2, 0]);
    Topology::of((0..most).flat_map(turn).map(|name| (name, rack(name))))
}

fn every_shape(mut case: impl FnMut(&Topology, usize, Dtype, &mut Random)) {
    let mut random = Random::of_now();
    let mut turn = 0;
    let mut number = 0;
    for shape in SHAPES {
        for topology in [blocks(shape), dealt(shape)] {
            for count in COUNTS {
                // Two dtypes in turn, so that each meets every shape and size class over the run.
                for dtype in [DTYPES[turn % DTYPES.len()], HALVES[turn % HALVES.len()]] {
                    if is_run(number) {
                        case(&topology, count, dtype, &mut random);
                    }
                    number += 1;
                }
                turn += 1;
            }
            turn += 1;
        }
    }
}

const HALVES: [Dtype; 2] = [Dtype::Float16, Dtype::Bfloat16];

fn size(topology: &Topology) -> usize {
    topology.everyone().len()
}

#[test]
fn all_reduce_in_and_out_of_place() {
    every_shape(|topology, count, dtype, random| {
        for op in OPS {
            for in_place in [false, true] {
                check_on(topology, dtype, random, reference::whole, |_, arena| {
                    let input = arena.region(count);
                    let output = if in_place { input } else { arena.region(count) };
                    Collective::AllReduce { input, output, op }
                });
            }
        }
    });
}

#[test]
fn reduce_to_any_root() {
    every_shape(|topology, count, dtype, random| {
        for in_place in [false, true] {
            let root = random.below(size(topology) as u64) as usize;
            let op = OPS[random.below(3) as usize];
            check_on(topology, dtype, random, reference::whole, |me, arena| {
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
    every_shape(|topology, count, dtype, random| {
        for _ in 0..3 {
            let root = rank(random.below(size(topology) as u64) as usize);
            check_on(topology, dtype, random, reference::whole, |_, arena| {
                Collective::Broadcast {
                    buffer: arena.region(count),
                    root,
                }
            });
        }
    });
}

#[test]
fn all_gather_of_equal_and_unequal_parts() {
    every_shape(|topology, count, dtype, random| {
        for (equal, in_place) in [(true, false), (true, true), (false, false), (false, true)] {
            let counts = if equal {
                vec![count; size(topology)]
            } else {
                uneven(size(topology), count, random)
            };
            check_on(topology, dtype, random, reference::whole, |me, arena| {
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
fn reduce_scatter_of_equal_and_unequal_parts() {
    every_shape(|topology, count, dtype, random| {
        for (equal, in_place) in [(true, false), (true, true), (false, false), (false, true)] {
            let counts = if equal {
                vec![count; size(topology)]
            } else {
                uneven(size(topology), count, random)
            };
            let op = OPS[random.below(3) as usize];
            check_on(topology, dtype, random, reference::whole, |me, arena| {
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
fn all_to_all_gather_and_scatter() {
    every_shape(|topology, count, dtype, random| {
        let size = size(topology);
        let root = random.below(size as u64) as usize;
        check_on(topology, dtype, random, reference::whole, |_, arena| {
            Collective::AllToAll {
                inputs: arena.regions(&vec![count; size], true),
                outputs: arena.regions(&vec![count; size], false),
            }
        });
        check_on(topology, dtype, random, reference::whole, |me, arena| {
            Collective::Gather {
                input: arena.region(count),
                outputs: (me == root).then(|| arena.regions(&vec![count; size], false)),
                root: rank(root),
            }
        });
        check_on(topology, dtype, random, reference::whole, |me, arena| {
            Collective::Scatter {
                inputs: (me == root).then(|| arena.regions(&vec![count; size], true)),
                output: arena.region(count),
                root: rank(root),
            }
        });
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for shape in SHAPES {
        let topology = blocks(shape);
        let programs = programs(&topology, Dtype::Byte, &LIMITS, |_| Collective::Barrier);
        for absent in 0..size(&topology) {
            let finished = interpreter::finished_without(&programs, absent);
            assert_eq!(finished, Vec::<usize>::new(), "{shape:?}, {absent} absent");
        }
    }
}

fn programs(
    topology: &Topology,
    dtype: Dtype,
    limits: &Limits,
    call: impl Fn(usize) -> Collective,
) -> Vec<Program> {
    (0..size(topology))
        .map(|me| program(&call(me), dtype, rank(me), topology, limits, Ending::Alone).unwrap())
        .collect()
}

#[test]
fn all_ranks_hold_the_same_bits_in_every_run() {
    // Sums of these depend on the order.
    let mut random = Random::of_now();
    for shape in SHAPES {
        let topology = blocks(shape);
        for (dtype, op) in [
            (Dtype::Float32, ReduceOp::Sum),
            (Dtype::Float64, ReduceOp::Average),
            (Dtype::Float32, ReduceOp::PremulSum(0.3)),
        ] {
            for count in [1, 9, 40, 120, 500] {
                let mut memories = Vec::new();
                let mut regions = Vec::new();
                for _ in 0..size(&topology) {
                    let mut arena = Arena::new(dtype, random.fork());
                    regions.push(arena.region(count));
                    memories.push(arena.bytes);
                }
                let programs = programs(&topology, dtype, &LIMITS, |me| Collective::AllReduce {
                    input: regions[me],
                    output: regions[me],
                    op,
                });
                let mut results = Vec::new();
                for delivery in [Delivery::InOrder, Delivery::Buffered, Delivery::Rendezvous] {
                    let after =
                        interpreter::run(&programs, memories.clone(), delivery, random.next());
                    for (memory, region) in after.unwrap().iter().zip(&regions) {
                        results.push(memory[region.address..][..region.bytes].to_vec());
                    }
                }
                assert!(
                    results.iter().all(|result| *result == results[0]),
                    "{op} on {count} of {dtype} on {shape:?}"
                );
            }
        }
    }
}

#[test]
fn halves_are_rounded_once_however_many_machines_there_are() {
    // 2048 and then ones, each of which would be lost in float16.
    for shape in SHAPES {
        let topology = blocks(shape);
        let ones = size(&topology) - 1;
        let mut memories = Vec::new();
        for me in 0..=ones {
            let value = half::f16::from_f32(if me == 0 { 2048.0 } else { 1.0 });
            memories.push(value.to_ne_bytes().repeat(300));
        }
        for bytes in [2, 20, 240, 600] {
            let input = Region { address: 0, bytes };
            let programs = programs(&topology, Dtype::Float16, &LIMITS, |_| {
                Collective::AllReduce {
                    input,
                    output: input,
                    op: ReduceOp::Sum,
                }
            });
            let expected = half::f16::from_f32(2048.0 + ones as f32).to_ne_bytes();
            let after = interpreter::run(&programs, memories.clone(), Delivery::InOrder, 5);
            for memory in after.unwrap() {
                assert!(memory[..bytes].chunks(2).all(|half| half == expected));
            }
        }
    }
}

/// How many messages a program sends, and how many of their bytes, to ranks of other machines.
fn crossing(topology: &Topology, me: usize, program: &Program) -> (usize, usize) {
    let mut sum = (0, 0);
    for step in &program.steps {
        if let Step::Send { to, from, .. } = step
            && topology.seat(to.index()).0 != topology.seat(me).0
        {
            let (Place::Client(Region { bytes, .. }) | Place::Scratch { bytes, .. }) = from;
            sum = (sum.0 + 1, sum.1 + bytes);
        }
    }
    sum
}

fn all_reduce_of(bytes: usize) -> Collective {
    let input = Region {
        address: 1 << 20,
        bytes,
    };
    Collective::AllReduce {
        input,
        output: input,
        op: ReduceOp::Sum,
    }
}

const COARSE: Limits = Limits {
    one_shot: 1024,
    piece: 4096,
    direct: 2,
    ring: 1 << 20,
};

#[test]
fn recursive_doubling_sends_a_message_per_doubling() {
    for exponent in 2..7 {
        let topology = blocks(&vec![1; 1 << exponent]);
        let programs = programs(&topology, Dtype::Float32, &COARSE, |_| all_reduce_of(64));
        for (me, program) in programs.iter().enumerate() {
            let expected = (exponent, exponent * 64);
            assert_eq!(crossing(&topology, me, program), expected);
        }
    }
}

#[test]
fn recursive_halving_gives_the_far_ones_the_least() {
    let topology = blocks(&[1; 8]);
    let programs = programs(&topology, Dtype::Float32, &COARSE, |_| all_reduce_of(8192));
    for (me, program) in programs.iter().enumerate() {
        let sent: Vec<(usize, usize)> = program
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Send {
                    to,
                    from: Place::Client(region),
                    ..
                } => Some((to.index() ^ me, region.bytes)),
                _ => None,
            })
            .collect();
        let expected = [
            (1, 4096),
            (2, 2048),
            (4, 1024),
            (4, 1024),
            (2, 2048),
            (1, 4096),
        ];
        assert_eq!(sent, expected);
    }
}

#[test]
fn a_ring_talks_to_the_next_machine_alone_and_sends_each_byte_twice_at_most() {
    let machines = 5;
    let bytes = 5 << 20;
    let topology = blocks(&vec![1; machines]);
    let programs = programs(&topology, Dtype::Float32, &COARSE, |_| all_reduce_of(bytes));
    for (me, program) in programs.iter().enumerate() {
        for step in &program.steps {
            match step {
                Step::Send { to, .. } => assert_eq!(to.index(), (me + 1) % machines),
                Step::Recv { from, .. } => assert_eq!(from.index(), (me + machines - 1) % machines),
                _ => {}
            }
        }
        let (_, sent) = crossing(&topology, me, program);
        assert_eq!(sent, 2 * bytes * (machines - 1) / machines);
    }
}

#[test]
fn every_rank_carries_its_share_between_machines_and_no_more() {
    let (machines, local, bytes) = (4, 4, 16 << 20);
    let topology = blocks(&vec![local; machines]);
    let region = |bytes| Region {
        address: 1 << 30,
        bytes,
    };
    let size = machines * local;
    let whole = Regions::Equal {
        whole: region(bytes),
        each: bytes / size,
    };
    let outside = bytes / local * (machines - 1) / machines;
    for (call, most) in [
        (all_reduce_of(bytes), 2 * outside),
        (
            Collective::AllGather {
                input: region(bytes / size),
                outputs: whole.clone(),
            },
            outside,
        ),
        (
            Collective::ReduceScatter {
                inputs: whole,
                output: region(bytes / size),
                op: ReduceOp::Sum,
            },
            outside,
        ),
        (
            Collective::Broadcast {
                buffer: region(bytes),
                root: rank(5),
            },
            bytes / local,
        ),
        (
            Collective::Reduce {
                input: region(bytes),
                output: Some(region(bytes)),
                op: ReduceOp::Sum,
                root: rank(5),
            },
            bytes / local,
        ),
    ] {
        for me in 0..size {
            let program = program(
                &call,
                Dtype::Float32,
                rank(me),
                &topology,
                &COARSE,
                Ending::Alone,
            )
            .unwrap();
            let (_, sent) = crossing(&topology, me, &program);
            assert!(sent <= most, "{sent} of {most} bytes from {me}: {call:?}");
        }
    }
}

#[test]
fn small_messages_cross_once_per_doubling_whatever_a_machine_holds() {
    let topology = blocks(&[4; 4]);
    let programs = programs(&topology, Dtype::Float32, &COARSE, |_| all_reduce_of(64));
    for (me, program) in programs.iter().enumerate() {
        assert_eq!(crossing(&topology, me, program), (2, 2 * 64));
    }
}

#[test]
fn lengths_beyond_four_gigabytes_lose_no_byte() {
    let bytes = (9 << 30) + 52;
    for shape in [&[1_usize, 1][..], &[1; 4], &[2, 2], &[2, 1, 2, 1]] {
        let topology = blocks(shape);
        let programs = programs(&topology, Dtype::Float32, &super::PRODUCTION, |_| {
            all_reduce_of(bytes)
        });
        for program in &programs {
            let mut written: Vec<(usize, usize)> = Vec::new();
            for step in &program.steps {
                let (Step::Recv { into: place, .. } | Step::Reduce { output: place, .. }) = step
                else {
                    continue;
                };
                match place {
                    Place::Client(region) => written.push((region.address, region.bytes)),
                    Place::Scratch { offset, bytes } => {
                        assert!(offset + bytes <= program.scratch);
                    }
                }
            }
            // Everything is written, and nothing outside.
            written.sort_unstable();
            let mut end = 1 << 20;
            for (start, length) in written {
                assert!(start <= end, "a hole before {start}");
                end = end.max(start + length);
            }
            assert_eq!(end, (1 << 20) + bytes);
            assert!(program.steps.len() < 200_000, "{}", program.steps.len());
        }
        fits(&programs);
    }
}

/// Whether each message is received with the length it is sent with.
fn fits(programs: &[Program]) {
    let mut lengths = std::collections::HashMap::new();
    let length = |place: &Place| match place {
        Place::Client(region) => region.bytes,
        Place::Scratch { bytes, .. } => *bytes,
    };
    for (me, program) in programs.iter().enumerate() {
        for step in &program.steps {
            if let Step::Send { to, part, from } = step {
                lengths.insert((me, to.index(), *part), length(from));
            }
        }
    }
    for (me, program) in programs.iter().enumerate() {
        for step in &program.steps {
            if let Step::Recv { from, part, into } = step {
                let sent = lengths.remove(&(from.index(), me, *part));
                assert_eq!(sent, Some(length(into)), "from {from} to {me}, part {part}");
            }
        }
    }
    assert!(
        lengths.is_empty(),
        "{} messages nobody takes",
        lengths.len()
    );
}

#[test]
fn machines_that_are_one_change_nothing() {
    let topology = one_machine(4);
    let program = &programs(&topology, Dtype::Float32, &LIMITS, |_| all_reduce_of(400))[0];
    assert_eq!(crossing(&topology, 0, program), (0, 0));
}

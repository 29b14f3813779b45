use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Collective, Region, Regions};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;

use super::*;
use crate::allocator::Allocator;
use crate::budget::Budget;
use crate::choosing::{Choice, NEVER, WORTH_A_CALL};
use crate::cores;
use crate::pulling::Readable;
use crate::random::{Random, rounds};

const LIMIT: Duration = Duration::from_secs(60);

/// Ranks that have introduced themselves read directly what is worth a system call.
const DIRECT: Choice = Choice {
    direct_from: WORTH_A_CALL,
    ..Choice::DEFAULT
};

/// Runs `program` as every rank of an arena of `ranks` ranks, each on a mapping of its own, where
/// copies are made as `choice` says.
fn on_ranks(ranks: usize, choice: Choice, program: impl Fn(&mut Rank) + Send + Sync + 'static) {
    let (first, fd) = Arena::create(ranks, choice, &Budget::of_machine()).unwrap();
    let mut arenas = vec![first];
    arenas.extend((1..ranks).map(|_| Arena::open(&fd, ranks).unwrap()));
    let program = Arc::new(program);
    let threads: Vec<_> = arenas
        .into_iter()
        .enumerate()
        .map(|(me, arena)| {
            let program = program.clone();
            thread::spawn(move || {
                program(&mut Rank {
                    arena,
                    me,
                    position: Position::new(),
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

struct Rank {
    arena: Arena,
    me: usize,
    position: Position,
}

impl Rank {
    fn run(&mut self, collective: Collective, dtype: Dtype) {
        check(&collective, dtype, self.me, self.arena.ranks()).unwrap();
        let mut meeting = Meeting::new(collective, dtype);
        let begun = Instant::now();
        loop {
            match meeting.step(&self.arena, self.me, &mut self.position, |_, _| {}) {
                Stepped::Done => return,
                Stepped::Waiting(_) => {
                    let missing = meeting.missing(&self.arena, self.me, &self.position);
                    assert!(
                        begun.elapsed() < LIMIT,
                        "rank {} waits in round {} for {missing:?}",
                        self.me,
                        self.position.next - 1
                    );
                    thread::yield_now();
                }
                other => panic!("rank {}: {other:?}", self.me),
            }
        }
    }
}

fn region<T>(list: &mut [T]) -> Region {
    Region {
        address: list.as_mut_ptr() as usize,
        bytes: size_of_val(list),
    }
}

#[test]
fn sums_are_right_at_every_cut() {
    for (ranks, past_caches_from) in [(2, 0), (2, NEVER), (3, 2048), (5, 0), (8, 2048)] {
        let choice = Choice {
            past_caches_from,
            direct_from: NEVER,
        };
        on_ranks(ranks, choice, move |rank| {
            let mut random = Random::new(rank.me as u64 + 1);
            for round in 0..rounds(30_u64, 3) {
                for count in [1, 10, 11, 1000, 4097, 16_384, 65_536, 100_001] {
                    if random.below(4) == 0 {
                        thread::sleep(Duration::from_micros(random.below(300)));
                    }
                    let value = |rank: usize, at: usize| (rank + at % 7) as f32 + round as f32;
                    let mut input: Vec<f32> = (0..count).map(|at| value(rank.me, at)).collect();
                    let mut output = vec![0_f32; count];
                    rank.run(
                        Collective::AllReduce {
                            input: region(&mut input),
                            output: region(&mut output),
                            op: ReduceOp::Sum,
                        },
                        Dtype::Float32,
                    );
                    for (at, got) in output.iter().enumerate() {
                        let expected: f32 = (0..ranks).map(|rank| value(rank, at)).sum();
                        assert_eq!(*got, expected, "rank {} at {at} of {count}", rank.me);
                    }
                }
            }
        });
    }
}

/// Numbers in shared memory or in ordinary one.
enum Numbers<'a> {
    Shared(&'a Allocator, Region),
    Ordinary(Vec<f32>),
}

impl<'a> Numbers<'a> {
    fn new(shared: Option<&'a Allocator>, count: usize) -> Self {
        let Some(allocator) = shared else {
            return Self::Ordinary(vec![0.0; count]);
        };
        let bytes = count * size_of::<f32>();
        let address = allocator.allocate(bytes).unwrap().as_ptr() as usize;
        Self::Shared(allocator, Region { address, bytes })
    }

    fn region(&mut self) -> Region {
        match self {
            Self::Shared(_, region) => *region,
            Self::Ordinary(list) => region(list),
        }
    }

    fn all(&mut self) -> &mut [f32] {
        let region = self.region();
        // SAFETY: the block or list is this value's, initialised by `fill` or from the start.
        unsafe { std::slice::from_raw_parts_mut(region.address as *mut f32, region.bytes / 4) }
    }

    fn fill(&mut self, value: impl Fn(usize) -> f32) {
        for (at, number) in self.all().iter_mut().enumerate() {
            *number = value(at);
        }
    }
}

impl Drop for Numbers<'_> {
    fn drop(&mut self) {
        if let Self::Shared(allocator, region) = self {
            allocator.release(region.address).unwrap();
        }
    }
}

impl Rank {
    /// Says how this rank is read; from the second round on ranks read directly.
    fn introduce(&mut self) {
        self.arena
            .introduce(self.me, Readable::own(), true, cores::own());
        self.run(Collective::Barrier, Dtype::Byte);
    }
}

#[test]
fn what_a_peer_allocated_is_read_where_it_lies() {
    on_ranks(2, DIRECT, |rank| {
        rank.introduce();
        let allocator = Allocator::new(Budget::of_machine());
        for round in 0..3_u8 {
            let mut numbers = Numbers::new(Some(&allocator), 1 << 20);
            numbers.fill(|at| at as f32 + f32::from(round));
            let place = numbers.region();
            let mut addresses = [0_u64; 2];
            addresses[rank.me] = place.address as u64;
            rank.arena.announce(rank.me);
            let own = region(&mut addresses[rank.me..=rank.me]);
            rank.run(
                Collective::AllGather {
                    input: own,
                    outputs: Regions::Equal {
                        whole: region(&mut addresses),
                        each: 8,
                    },
                },
                Dtype::Byte,
            );
            let other = 1 - rank.me;
            let view = rank.arena.view(other, addresses[other], place.bytes);
            let view = view.expect("the block is mapped");
            assert_ne!(view as u64, addresses[other]);
            // SAFETY: the other rank keeps its block until the barrier below.
            let seen = unsafe { std::slice::from_raw_parts(view.cast::<f32>(), 1 << 20) };
            assert!(seen == numbers.all());
            assert!(rank.arena.view(other, 8, 8).is_none());
            rank.run(Collective::Barrier, Dtype::Byte);
        }
    });
}

#[test]
fn collectives_are_right_wherever_the_tensors_of_each_rank_lie() {
    for (ranks, choice) in [(2, DIRECT), (3, DIRECT), (5, DIRECT), (3, Choice::DEFAULT)] {
        on_ranks(ranks, choice, move |rank| {
            rank.introduce();
            let allocator = Allocator::new(Budget::of_machine());
            let me = rank.me;
            // All ranks, none, or some; now the input, now the output: once through takes six rounds.
            for round in 0..rounds(12_usize, 6) {
                let from = |kind: usize| {
                    let shared = !(round / 2 + kind + me * (round % 2)).is_multiple_of(3);
                    shared.then_some(&allocator)
                };
                for count in [1000, 40_000, 100_001] {
                    let value = |rank: usize, at: usize| (rank * 3 + at % 7 + round) as f32;
                    let mut input = Numbers::new(from(0), count);
                    let mut output = Numbers::new(from(1), count);
                    let mut all = Numbers::new(from(2), count * ranks);
                    input.fill(|at| value(me, at));
                    let (sum, gathered) = (output.region(), all.region());
                    rank.run(
                        Collective::AllReduce {
                            input: input.region(),
                            output: sum,
                            op: ReduceOp::Sum,
                        },
                        Dtype::Float32,
                    );
                    rank.run(
                        Collective::AllGather {
                            input: input.region(),
                            outputs: Regions::Equal {
                                whole: gathered,
                                each: count * 4,
                            },
                        },
                        Dtype::Float32,
                    );
                    for (at, sum) in output.all().iter().enumerate() {
                        let expected: f32 = (0..ranks).map(|rank| value(rank, at)).sum();
                        assert_eq!(*sum, expected, "rank {me} at {at} of {count}");
                    }
                    for (at, got) in all.all().iter().enumerate() {
                        assert_eq!(*got, value(at / count, at % count), "rank {me} at {at}");
                    }
                    let root = round % ranks;
                    rank.run(
                        Collective::Broadcast {
                            buffer: input.region(),
                            root: GroupRank::new(u32::try_from(root).unwrap()),
                        },
                        Dtype::Float32,
                    );
                    for (at, got) in input.all().iter().enumerate() {
                        assert_eq!(*got, value(root, at), "rank {me} at {at} of {count}");
                    }
                }
            }
        });
    }
}

/// Six collectives of `count` numbers, each checked, after which rank `me` thinks of the other as
/// `thought` says.
fn run_as_pair(rank: &mut Rank, count: usize, mut thought: impl FnMut() -> bool) {
    let me = rank.me;
    let value = |rank: usize, at: usize| (rank * 5 + at % 11) as f32;
    let mut run = |rank: &mut Rank, collective| {
        rank.arena.near().pretend(thought());
        rank.run(collective, Dtype::Float32);
    };
    let mut input: Vec<f32> = (0..2 * count).map(|at| value(me, at)).collect();
    let mut output = vec![0_f32; 2 * count];
    let sum = |at| value(0, at) + value(1, at);
    let each = 4 * count;
    let (whole, part) = (region(&mut input), region(&mut input[..count]));
    let op = ReduceOp::Sum;
    run(
        rank,
        Collective::AllReduce {
            input: whole,
            output: region(&mut output),
            op,
        },
    );
    assert!((0..2 * count).all(|at| output[at] == sum(at)), "{count}");
    run(
        rank,
        Collective::ReduceScatter {
            inputs: Regions::Equal { whole, each },
            output: region(&mut output[..count]),
            op,
        },
    );
    assert!((0..count).all(|at| output[at] == sum(me * count + at)));
    run(
        rank,
        Collective::AllGather {
            input: part,
            outputs: Regions::Equal {
                whole: region(&mut output),
                each,
            },
        },
    );
    assert!((0..2 * count).all(|at| output[at] == value(at / count, at % count)));
    run(
        rank,
        Collective::AllToAll {
            inputs: Regions::Equal { whole, each },
            outputs: Regions::Equal {
                whole: region(&mut output),
                each,
            },
        },
    );
    assert!((0..2 * count).all(|at| output[at] == value(at / count, me * count + at % count)));
    let root = GroupRank::new(1);
    run(
        rank,
        Collective::Reduce {
            input: whole,
            output: (me == 1).then(|| region(&mut output)),
            op,
            root,
        },
    );
    assert!(me == 0 || (0..2 * count).all(|at| output[at] == sum(at)));
    run(
        rank,
        Collective::Broadcast {
            buffer: whole,
            root,
        },
    );
    assert!((0..2 * count).all(|at| input[at] == value(1, at)));
}

#[test]
fn pairs_are_right_whatever_each_thinks_of_the_distance() {
    const SOME: usize = SETTLED / size_of::<f32>();
    for thought in ["near", "far", "now this, now that"] {
        on_ranks(2, Choice::DEFAULT, move |rank| {
            let mut random = Random::new(rank.me as u64 + 7);
            for count in [1000, SOME - 1, SOME, SOME + 3, 2 * SOME, 5 * SOME / 2 + 1] {
                for _ in 0..rounds(3, 1) {
                    run_as_pair(rank, count, || match thought {
                        "near" => true,
                        "far" => false,
                        _ => random.below(2) == 0,
                    });
                }
            }
        });
    }
}

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Collective, Region};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;

use super::*;
use crate::budget::Budget;
use crate::random::Random;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `program` as every rank of an arena of `ranks` ranks, each on a mapping of its own.
fn on_ranks(ranks: usize, program: impl Fn(&mut Rank) + Send + Sync + 'static) {
    let (first, fd) = Arena::create(ranks, &Budget::of_machine()).unwrap();
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
    for ranks in [2, 3, 5, 8] {
        on_ranks(ranks, move |rank| {
            let mut random = Random::new(rank.me as u64 + 1);
            for round in 0..30_u64 {
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

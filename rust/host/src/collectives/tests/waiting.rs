//! Which ranks a rank waits for.

use ferrocomm_core::call::{Collective, Region, Regions};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;

use super::{Arena, LIMITS, SIZES, check, interpreter, one_machine, rank};
use crate::collectives::{Ending, STEP, program};
use crate::program::Step;
use crate::random::Random;

#[test]
fn who_only_gives_runs_ahead_of_a_missing_rank_until_the_next_step() {
    let nothing = Region::EMPTY;
    for size in SIZES.into_iter().filter(|size| *size > 1) {
        let gather = |me: usize| Collective::Gather {
            input: nothing,
            outputs: (me == 0).then(|| Regions::List(vec![nothing; size])),
            root: rank(0),
        };
        let programs = |ending| -> Vec<_> {
            let program = |me| {
                let topology = one_machine(size);
                program(
                    &gather(me),
                    Dtype::Byte,
                    rank(me),
                    &topology,
                    &LIMITS,
                    ending,
                )
                .unwrap()
            };
            (0..size).map(program).collect()
        };
        for absent in 0..size {
            let finished =
                |sequence| interpreter::finished_without(&programs(Ending::of(sequence)), absent);
            let others: Vec<_> = (1..size).filter(|rank| *rank != absent).collect();
            assert_eq!(finished(STEP - 1), others, "{size} ranks, {absent} absent");
            assert_eq!(finished(STEP), [], "{size} ranks, {absent} absent");
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    let mut random = Random::of_now();
    for size in SIZES {
        check(size, Dtype::Byte, &mut random, |_, _| Collective::Barrier);
        let programs: Vec<_> = (0..size)
            .map(|me| {
                program(
                    &Collective::Barrier,
                    Dtype::Byte,
                    rank(me),
                    &one_machine(size),
                    &LIMITS,
                    Ending::Alone,
                )
                .unwrap()
            })
            .collect();
        for absent in 0..size {
            let finished = interpreter::finished_without(&programs, absent);
            assert_eq!(
                finished,
                Vec::<usize>::new(),
                "{size} ranks, {absent} absent"
            );
        }
    }
}

#[test]
fn zero_elements_still_meet() {
    // Where every rank knows that there is nothing, every rank still hears from another one.
    let mut arena = Arena::new(Dtype::Int32, Random::of_now());
    let none = Region::EMPTY;
    let parts = arena.regions(&[0; 4], true);
    let root = rank(0);
    let calls = [
        Collective::Broadcast { buffer: none, root },
        Collective::AllReduce {
            input: none,
            output: none,
            op: ReduceOp::Sum,
        },
        Collective::Reduce {
            input: none,
            output: Some(none),
            op: ReduceOp::Sum,
            root,
        },
        Collective::AllGather {
            input: none,
            outputs: parts.clone(),
        },
        Collective::ReduceScatter {
            inputs: parts.clone(),
            output: none,
            op: ReduceOp::Sum,
        },
        Collective::Gather {
            input: none,
            outputs: Some(parts.clone()),
            root,
        },
        Collective::Scatter {
            inputs: Some(parts),
            output: none,
            root,
        },
    ];
    for call in calls {
        for me in 0..4 {
            let program = program(
                &call,
                Dtype::Int32,
                rank(me),
                &one_machine(4),
                &LIMITS,
                Ending::Alone,
            )
            .unwrap();
            let moves = |step: &Step| matches!(step, Step::Send { .. } | Step::Recv { .. });
            assert!(program.steps.iter().any(moves), "{call:?} on rank {me}");
        }
    }
}

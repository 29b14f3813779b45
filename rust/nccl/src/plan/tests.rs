use super::*;
use ferrocomm_nccl_sys::sys::{ncclDataType_t, ncclRedOp_t};

const PLACE: Place = Place {
    rank: GroupRank::new(1),
    size: 3,
    native_all_to_all: true,
    token: 8,
};

fn at(address: usize, bytes: usize) -> Region {
    Region { address, bytes }
}

fn planned(collective: Collective, dtype: Dtype) -> Plan {
    plan(&Task::Collective(collective), dtype, PLACE).expect("supported")
}

fn list(parts: &[(usize, usize)]) -> Regions {
    Regions::List(
        parts
            .iter()
            .map(|(address, bytes)| at(*address, *bytes))
            .collect(),
    )
}

fn equal(address: usize, each: usize) -> Regions {
    Regions::Equal {
        whole: at(address, 3 * each),
        each,
    }
}

#[test]
fn an_all_reduce_is_one_step_in_elements() {
    let plan = planned(
        Collective::AllReduce {
            input: at(64, 40),
            output: at(128, 40),
            op: ReduceOp::Average,
        },
        Dtype::Float32,
    );
    assert_eq!(
        plan.steps,
        [Step::AllReduce {
            send: 64,
            recv: 128,
            count: 10
        }]
    );
    assert_eq!(plan.combine, Some(Combine::Plain(ncclRedOp_t::ncclAvg)));
    assert_eq!(plan.wire.dtype, ncclDataType_t::ncclFloat32);
    assert!(!plan.grouped);
}

#[test]
fn a_complex_number_counts_as_two() {
    let plan = planned(
        Collective::AllReduce {
            input: at(64, 32),
            output: at(64, 32),
            op: ReduceOp::Sum,
        },
        Dtype::Complex64,
    );
    assert!(matches!(plan.steps[..], [Step::AllReduce { count: 8, .. }]));
}

#[test]
fn unequal_lists_are_a_broadcast_or_a_reduction_per_rank() {
    let plan = planned(
        Collective::AllGather {
            input: at(8, 16),
            outputs: list(&[(100, 8), (200, 16), (0, 0)]),
        },
        Dtype::Float64,
    );
    assert!(plan.grouped);
    assert_eq!(
        plan.steps,
        [
            Step::Broadcast {
                send: 100,
                recv: 100,
                count: 1,
                root: 0
            },
            Step::Broadcast {
                send: 8,
                recv: 200,
                count: 2,
                root: 1
            },
        ]
    );
    let plan = planned(
        Collective::ReduceScatter {
            inputs: list(&[(100, 8), (200, 16), (0, 0)]),
            output: at(8, 16),
            op: ReduceOp::Max,
        },
        Dtype::Int64,
    );
    assert!(plan.grouped);
    assert_eq!(
        plan.steps,
        [
            Step::Reduce {
                send: 100,
                recv: 100,
                count: 1,
                root: 0
            },
            Step::Reduce {
                send: 200,
                recv: 8,
                count: 2,
                root: 1
            },
        ]
    );
}

#[test]
fn equal_parts_use_the_native_calls_where_they_are() {
    let collective = Collective::AllToAll {
        inputs: equal(300, 8),
        outputs: equal(600, 8),
    };
    let plan = planned(collective.clone(), Dtype::Int16);
    assert_eq!(
        plan.steps,
        [Step::AllToAll {
            send: 300,
            recv: 600,
            count: 8
        }]
    );
    let old = Place {
        native_all_to_all: false,
        ..PLACE
    };
    let plan = super::plan(&Task::Collective(collective), Dtype::Int16, old).expect("supported");
    assert!(plan.grouped);
    assert_eq!(plan.steps.len(), 6);
}

#[test]
fn a_root_that_gathers_in_place_moves_nothing_for_itself() {
    let collective = |input| Collective::Gather {
        input,
        outputs: Some(list(&[(100, 8), (200, 8), (300, 8)])),
        root: GroupRank::new(1),
    };
    let plan = planned(collective(at(200, 8)), Dtype::Uint8);
    assert_eq!(
        plan.steps,
        [
            Step::Recv {
                buffer: 100,
                bytes: 8,
                peer: 0
            },
            Step::Recv {
                buffer: 300,
                bytes: 8,
                peer: 2
            },
        ]
    );
    assert_eq!(planned(collective(at(16, 8)), Dtype::Uint8).steps.len(), 4);
}

#[test]
fn messages_of_no_bytes_are_left_out_and_any_source_is_refused() {
    let parts = vec![
        (
            PointToPoint::Send {
                buffer: Region::EMPTY,
                to: GroupRank::new(0),
                tag: 0,
            },
            Dtype::Int8,
        ),
        (
            PointToPoint::Recv {
                buffer: at(64, 4),
                from: Source::Rank(GroupRank::new(2)),
                tag: 7,
            },
            Dtype::Float32,
        ),
    ];
    let plan = super::plan(&Task::Batch(parts), Dtype::Byte, PLACE).expect("supported");
    assert!(plan.grouped);
    assert!(matches!(
        plan.steps[..],
        [Step::Recv {
            bytes: 4,
            peer: 2,
            ..
        }]
    ));
    let any = PointToPoint::Recv {
        buffer: at(64, 4),
        from: Source::Any,
        tag: 0,
    };
    let error = super::plan(&Task::PointToPoint(any), Dtype::Int8, PLACE).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn nothing_to_move_is_no_step() {
    let plan = planned(
        Collective::AllGather {
            input: Region::EMPTY,
            outputs: Regions::Equal {
                whole: Region::EMPTY,
                each: 0,
            },
        },
        Dtype::Float32,
    );
    assert!(plan.steps.is_empty());
}

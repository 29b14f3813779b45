//! Sends and receives of two engines, in the orders in which the one may overtake the other.

use std::time::Duration;

use ferrocomm_core::call::{Mode, Task};
use ferrocomm_core::error::ErrorKind;
use ferrocomm_core::group::Group;

use super::*;
use crate::testing::{LONG, groups, region, run};

fn pair() -> [HostGroup; 2] {
    groups(2).try_into().ok().expect("there are two")
}

fn call(point: PointToPoint, mode: Mode, timeout: Duration) -> Call {
    Call {
        task: Task::PointToPoint(point),
        dtype: Dtype::Byte,
        sequence: 1,
        timeout,
        mode,
    }
}

fn send(group: &HostGroup, bytes: &mut [u8], tag: u32) -> Result<()> {
    let to = GroupRank::new(1 - group.rank().get());
    let buffer = region(bytes);
    let point = PointToPoint::Send { buffer, to, tag };
    run(group, call(point, Mode::Sync, LONG))
}

fn receiving(group: &HostGroup, bytes: &mut [u8], tag: u32) -> PointToPoint {
    let from = Source::Rank(GroupRank::new(1 - group.rank().get()));
    let buffer = region(bytes);
    PointToPoint::Recv { buffer, from, tag }
}

fn receive(group: &HostGroup, bytes: &mut [u8], tag: u32) -> Result<()> {
    let point = receiving(group, bytes, tag);
    run(group, call(point, Mode::Sync, LONG))
}

#[test]
fn messages_of_every_length_come_as_they_were_sent() {
    let [one, other] = pair();
    let lengths = [
        0,
        1,
        8,
        4096,
        8192,
        8193,
        EAGER - 1,
        EAGER,
        EAGER + 1,
        3 << 20,
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (round, length) in lengths.into_iter().cycle().take(200).enumerate() {
                let mut bytes: Vec<u8> = (0..length).map(|at| (at + round) as u8).collect();
                send(&one, &mut bytes, 3).unwrap();
                receive(&one, &mut bytes, 4).unwrap();
            }
        });
        for (round, length) in lengths.into_iter().cycle().take(200).enumerate() {
            let mut bytes = vec![0; length];
            receive(&other, &mut bytes, 3).unwrap();
            assert!((0..length).all(|at| bytes[at] == (at + round) as u8));
            send(&other, &mut bytes, 4).unwrap();
        }
    });
}

#[test]
fn messages_that_came_early_are_taken_in_order_and_by_tag() {
    let [one, other] = pair();
    for number in 0..100_u8 {
        send(&one, &mut [number], u32::from(number % 3)).unwrap();
    }
    for tag in [2, 0, 1] {
        for number in (0..100_u8).filter(|number| u32::from(number % 3) == tag) {
            let mut got = [0];
            receive(&other, &mut got, tag).unwrap();
            assert_eq!(got, [number]);
        }
    }
}

#[test]
fn a_receive_that_was_posted_before_is_served_first() {
    let [one, other] = pair();
    let (mut first, mut second) = ([0], [0]);
    let point = receiving(&other, &mut first, 9);
    let work = other.issue(call(point, Mode::Async, LONG)).unwrap();
    send(&one, &mut [1], 9).unwrap();
    send(&one, &mut [2], 9).unwrap();
    receive(&other, &mut second, 9).unwrap();
    other.wait(&work, None).unwrap();
    assert_eq!((first, second), ([1], [2]));
    assert_eq!(work.source(), Some(GroupRank::new(0)));
}

#[test]
fn a_receive_of_what_is_there_is_over_at_once_and_names_its_source() {
    let [one, other] = pair();
    let mut got = [0; 2];
    send(&one, &mut [0], 1).unwrap();
    receive(&other, &mut got[..1], 1).unwrap();
    send(&one, &mut [5, 6], 1).unwrap();
    let point = receiving(&other, &mut got, 1);
    let work = other.issue(call(point, Mode::Async, LONG)).unwrap();
    assert!(work.is_complete());
    assert_eq!(work.source(), Some(GroupRank::new(0)));
    assert_eq!(got, [5, 6]);
}

#[test]
fn a_message_of_another_length_or_dtype_is_a_mismatch() {
    for early in [false, true] {
        let [one, other] = pair();
        let mut got = [0; 8];
        send(&one, &mut [0], 1).unwrap();
        receive(&other, &mut got[..1], 1).unwrap();
        send(&one, &mut [1, 2], 1).unwrap();
        if early {
            other.progress().with(|core| core.poll());
        }
        let error = receive(&other, &mut got, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    }
}

#[test]
fn a_receive_nobody_answers_ends_with_its_time() {
    let [one, other] = pair();
    let mut got = [0; 8];
    send(&one, &mut [0], 1).unwrap();
    receive(&other, &mut got[..1], 1).unwrap();
    for micros in [10, 1000] {
        let point = receiving(&other, &mut got, 1);
        let call = call(point, Mode::Sync, Duration::from_micros(micros));
        let error = run(&other, call).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.peer_ranks(), [GroupRank::new(0)]);
    }
    // The next one is served.
    send(&one, &mut [9], 1).unwrap();
    receive(&other, &mut got[..1], 1).unwrap();
    assert_eq!(got[0], 9);
}

#[test]
fn a_receive_that_spins_ends_when_its_communicator_is_aborted() {
    let [one, other] = pair();
    let mut got = [0; 8];
    send(&one, &mut [0], 1).unwrap();
    receive(&other, &mut got[..1], 1).unwrap();
    let point = receiving(&other, &mut got, 1);
    let mut call = call(point, Mode::Sync, LONG);
    let conditions = call.conditions();
    let mut issued = || other.abort();
    let error = other
        .run(&mut call.task, &conditions, &mut issued)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
}

#[test]
fn what_nobody_waits_for_ends_although_others_end_meanwhile() {
    let [one, other] = pair();
    let rounds = 2_000;
    for round in 0..rounds {
        let mut got = [0];
        let point = receiving(&other, &mut got, 1);
        let received = other.issue(call(point, Mode::Async, LONG)).unwrap();
        send(&one, &mut [round as u8], 1).unwrap();
        // The next receive is issued while the engine's thread is still busy with the end of this one.
        let begun = std::time::Instant::now();
        while !received.is_complete() {
            assert!(begun.elapsed() < LONG, "round {round}: nobody drives");
            std::thread::yield_now();
        }
        assert_eq!(got[0], round as u8);
    }
}

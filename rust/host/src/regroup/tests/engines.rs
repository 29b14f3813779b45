//! Engines in one process whose members meet and get groups.

use std::sync::Arc;

use ferrocomm_core::error::ErrorKind;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reconfigure::{Handles, Presence, Reconfiguration, Request};

use crate::engine::HostEngine;
use crate::testing::{LONG, barrier, engines, sum};

/// One rank of a job in this process.
struct Rank {
    presence: Arc<dyn Presence>,
    group: Option<Arc<dyn Group>>,
    // Last: the engine outlives what is in it.
    engine: Arc<HostEngine>,
}

fn job(count: usize) -> Vec<Rank> {
    let name = Arc::from("job");
    let rank = |(rank, engine): (i32, Arc<HostEngine>)| Rank {
        presence: engine.presence(&name, rank).unwrap(),
        group: None,
        engine,
    };
    (0..).zip(engines(count)).map(rank).collect()
}

fn request(uuid: i64, handles: &[String]) -> Request {
    Request {
        uuid,
        handles: Handles::Ordered(handles.to_vec()),
        timeout: LONG,
        hints: Vec::new(),
    }
}

fn handles(ranks: &[&mut Rank]) -> Vec<String> {
    ranks.iter().map(|rank| rank.presence.handle()).collect()
}

fn begin(rank: &Rank, request: Request) -> Arc<dyn Reconfiguration> {
    rank.presence.reconfigure(request, None).unwrap()
}

/// All of them meet; each then has its group.
fn meet(uuid: i64, ranks: &mut [&mut Rank]) {
    let handles = handles(ranks);
    let begun: Vec<_> = ranks
        .iter()
        .map(|rank| begin(rank, request(uuid, &handles)))
        .collect();
    for (rank, begun) in ranks.iter_mut().zip(begun) {
        begun.wait(begun.work(), Some(LONG)).unwrap();
        rank.group = Some(begun.group().unwrap());
    }
}

/// The sum over all ranks of `1 << rank`, on every rank.
fn sum_bits(ranks: &[&mut Rank], sequence: u64) {
    let size = ranks.len();
    std::thread::scope(|scope| {
        for rank in ranks {
            let group = rank.group.clone().unwrap();
            scope.spawn(move || {
                let mut value = [1 << group.rank().get()];
                assert_eq!(group.size(), size);
                sum(&*group, sequence, &mut value);
                assert_eq!(value[0], (1 << size) - 1);
            });
        }
    });
}

#[test]
fn groups_follow_one_another_and_each_works() {
    let mut job = job(4);
    let [a, b, c, d] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b, c]);
    sum_bits(&[a, b, c], 1);
    // Shrink, grow with another order, one alone, all.
    meet(2, &mut [a, c]);
    sum_bits(&[a, c], 1);
    meet(3, &mut [d, c, b, a]);
    sum_bits(&[d, c, b, a], 1);
    assert_eq!(d.group.as_ref().unwrap().rank(), GroupRank::new(0));
    meet(4, &mut [b]);
    sum_bits(&[b], 1);
    meet(5, &mut [a, b, c, d]);
    sum_bits(&[a, b, c, d], 1);
}

#[test]
fn a_set_begins_with_the_survivors_on_all_members() {
    let mut job = job(3);
    let [a, b, c] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [c, b]);
    let handles = handles(&[a, b, c]);
    let begun: Vec<_> = [&*a, &*b, &*c]
        .iter()
        .enumerate()
        .map(|(turn, rank)| {
            let mut handles = handles.clone();
            handles.rotate_left(turn);
            let request = Request {
                handles: Handles::Unordered(handles),
                ..request(2, &[])
            };
            begin(rank, request)
        })
        .collect();
    let ranks: Vec<u32> = begun
        .iter()
        .map(|begun| {
            begun.wait(begun.work(), Some(LONG)).unwrap();
            begun.group().unwrap().rank().get()
        })
        .collect();
    assert_eq!(ranks, [2, 1, 0]);
}

#[test]
fn what_was_pending_on_the_old_group_fails() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b]);
    let old = a.group.clone().unwrap();
    let work = old.issue(barrier(1)).unwrap();
    meet(2, &mut [a, b]);
    let error = old.wait(&work, Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    sum_bits(&[a, b], 1);
}

#[test]
fn an_attempt_that_is_aborted_fails_elsewhere_too_and_another_may_follow() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    let handles = handles(&[a, b]);
    let waits = begin(b, request(1, &handles));
    waits.abort();
    let error = waits.wait(waits.work(), Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    // The leader comes afterwards, and reads what was said before.
    let late = begin(a, request(1, &handles));
    let error = late.wait(late.work(), Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    meet(2, &mut [a, b]);
    sum_bits(&[a, b], 1);
}

#[test]
fn a_group_that_a_member_gave_up_just_before_fails_at_once() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    let handles = handles(&[a, b]);
    let waits = begin(b, request(1, &handles));
    let late = begin(a, request(1, &handles));
    late.wait(late.work(), Some(LONG)).unwrap();
    let group = late.group().unwrap();
    // The leader's word is on its way, or has come: then there was nothing left to give up.
    waits.abort();
    if waits
        .work()
        .outcome()
        .is_some_and(|outcome| outcome.is_ok())
    {
        return;
    }
    let pending = group.issue(barrier(1)).unwrap();
    while pending.outcome().is_none() {
        a.engine.step();
        b.engine.step();
    }
    let error = group.wait(&pending, Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert_eq!(error.peer_ranks(), [GroupRank::new(1)], "{error}");
}

#[test]
fn a_member_that_has_seen_the_uuid_refuses_it_for_all() {
    let mut job = job(3);
    let [a, b, c] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b]);
    for leader_first in [true, false] {
        let mut handles = handles(&[a, b, c]);
        if !leader_first {
            handles.reverse();
        }
        // Before the newcomer comes, or afterwards; nobody drives those that refuse.
        let uuid = if leader_first { 1 } else { -1 };
        let list = Handles::Ordered(handles.clone());
        let begun = if leader_first {
            a.presence.refuse(uuid, &list);
            begin(c, request(uuid, &handles))
        } else {
            let begun = begin(c, request(uuid, &handles));
            b.presence.refuse(uuid, &list);
            begun
        };
        let error = begun.wait(begun.work(), Some(LONG)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains("used before"), "{error}");
    }
}

#[test]
fn a_handle_of_a_communicator_that_is_gone_is_named() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    let handles = handles(&[a, b]);
    b.presence.leave();
    let begun = begin(a, request(1, &handles));
    // Somebody has to drive the other engine, as its program would.
    let ended = std::sync::atomic::AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let (b, ended) = (&*b, &ended);
        let driver = scope.spawn(move || {
            while !ended.load(std::sync::atomic::Ordering::Acquire) {
                b.engine.step();
                std::thread::yield_now();
            }
        });
        let error = begun.wait(begun.work(), Some(LONG)).unwrap_err();
        ended.store(true, std::sync::atomic::Ordering::Release);
        driver.join().unwrap();
        error
    });
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    assert_eq!(error.peer_ranks(), [GroupRank::new(1)], "{error}");
}

#[test]
fn a_process_that_is_gone_is_named() {
    let mut job = job(3);
    let gone = job.remove(1);
    let mut handles: Vec<String> = job.iter().map(|rank| rank.presence.handle()).collect();
    handles.insert(1, gone.presence.handle());
    drop(gone);
    let begun: Vec<_> = job
        .iter()
        .map(|rank| begin(rank, request(1, &handles)))
        .collect();
    for begun in begun {
        let error = begun.wait(begun.work(), Some(LONG)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        let text = error.to_string();
        assert!(text.contains("position 1, ferrocomm:1:"), "{text}");
    }
}

#[test]
fn what_cannot_be_asked_changes_nothing() {
    let mut job = job(3);
    let [a, b, c] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b]);
    let handles = handles(&[b, c]);
    let refused = |handles: Handles| {
        let request = Request {
            handles,
            ..request(2, &[])
        };
        a.presence.reconfigure(request, None).err().unwrap().kind()
    };
    let kind = refused(Handles::Ordered(handles.clone()));
    assert_eq!(
        kind,
        ErrorKind::InvalidArgument,
        "its own handle is missing"
    );
    let kind = refused(Handles::Ordered(vec!["nonsense".into()]));
    assert_eq!(kind, ErrorKind::InvalidArgument);
    let other = a.presence.handle().replace(":1:", ":9:");
    assert_eq!(refused(Handles::Ordered(vec![other])), ErrorKind::Mismatch);
    sum_bits(&[a, b], 1);
}

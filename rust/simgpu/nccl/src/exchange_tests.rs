//! Collectives and messages between threads, each with an own view of the memory, as processes
//! have.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

use super::*;
use crate::arena::{self, Address};
use crate::dtype::Combine;

#[derive(Default)]
struct Quiet {
    stop: AtomicBool,
}

impl Watch for Quiet {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
    fn lost(&self, rank: usize) {
        panic!("rank {rank} is lost");
    }
}

/// Runs a function as every rank, and gives what each returned.
fn on_ranks<T: Send + 'static>(
    ranks: usize,
    run: impl Fn(&Arena, &Quiet) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (_file, address) = arena::found().unwrap();
    let run = Arc::new(run);
    let start = |rank: usize| {
        let run = run.clone();
        thread::spawn(move || {
            let quiet = Quiet::default();
            let arena = Arena::open(address, rank, ranks, 7).unwrap();
            arena.wait_for_all(&quiet).unwrap();
            run(&arena, &quiet)
        })
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

const SUM: Reduction = Reduction::Plain(Combine::Sum);

fn call(kind: Kind, send: &[u64], recv: &mut [u64], count: usize, root: usize) -> Collective {
    Collective {
        kind,
        send: send.as_ptr() as usize,
        recv: recv.as_mut_ptr() as usize,
        count,
        dtype: DataType::Uint64,
        reduction: SUM,
        root,
    }
}

/// What each of three ranks has after a collective on `send` elements of its own.
fn run(kind: Kind, send: usize, recv: usize, count: usize, root: usize) -> Vec<Vec<u64>> {
    on_ranks(3, move |arena, quiet| {
        let own: Vec<u64> = (0..send)
            .map(|index| (100 * arena.rank + index) as u64)
            .collect();
        let mut result = vec![9; recv];
        collective(arena, quiet, &call(kind, &own, &mut result, count, root)).unwrap();
        result
    })
}

#[test]
fn each_collective_gives_what_its_definition_says() {
    assert_eq!(
        run(Kind::AllReduce, 2, 2, 2, 0),
        [[300, 303], [300, 303], [300, 303]]
    );
    assert_eq!(run(Kind::Reduce, 1, 1, 1, 1), [[9], [300], [9]]);
    assert_eq!(
        run(Kind::Broadcast, 2, 2, 2, 2),
        [[200, 201], [200, 201], [200, 201]]
    );
    let gathered = [0, 1, 100, 101, 200, 201];
    assert_eq!(
        run(Kind::AllGather, 2, 6, 2, 0),
        [gathered, gathered, gathered]
    );
    assert_eq!(run(Kind::Gather, 2, 6, 2, 2), [[9; 6], [9; 6], gathered]);
    assert_eq!(run(Kind::ReduceScatter, 3, 1, 1, 0), [[300], [303], [306]]);
    assert_eq!(
        run(Kind::Scatter, 6, 2, 2, 1),
        [[100, 101], [102, 103], [104, 105]]
    );
    let turned = [[0, 100, 200], [1, 101, 201], [2, 102, 202]];
    assert_eq!(run(Kind::AlltoAll, 3, 3, 1, 0), turned);
}

#[test]
fn a_collective_larger_than_what_is_shown_at_a_time_is_whole() {
    let count = SLOT / 8 + 1001;
    let results = on_ranks(2, move |arena, quiet| {
        let own: Vec<u64> = (0..count as u64)
            .map(|index| index + arena.rank as u64)
            .collect();
        let mut result = vec![0; count];
        collective(
            arena,
            quiet,
            &call(Kind::AllReduce, &own, &mut result, count, 0),
        )
        .unwrap();
        result
    });
    for result in results {
        assert!(
            result
                .iter()
                .enumerate()
                .all(|(index, sum)| *sum == 2 * index as u64 + 1)
        );
    }
}

#[test]
fn a_collective_may_work_in_place() {
    let results = on_ranks(2, |arena, quiet| {
        let mut own = vec![1 + arena.rank as u64, 10];
        let at = own.as_mut_ptr() as usize;
        let reduce = Collective {
            kind: Kind::ReduceScatter,
            send: at,
            recv: at + 8 * arena.rank,
            count: 1,
            dtype: DataType::Uint64,
            reduction: SUM,
            root: 0,
        };
        collective(arena, quiet, &reduce).unwrap();
        own[arena.rank]
    });
    assert_eq!(results, [3, 20]);
}

#[test]
fn ranks_that_call_different_things_are_told() {
    let results = on_ranks(2, |arena, quiet| {
        let own = [1, 2];
        let mut result = [0, 0];
        let count = 1 + arena.rank;
        collective(
            arena,
            quiet,
            &call(Kind::AllReduce, &own, &mut result, count, 0),
        )
    });
    for result in results {
        assert!(matches!(result, Err(Unfinished::Mismatch(text)) if text.contains("AllReduce")));
    }
}

fn message(sends: bool, buffer: &mut [u8], peer: usize) -> Transfer {
    Transfer {
        sends,
        at: buffer.as_mut_ptr() as usize,
        bytes: buffer.len(),
        peer,
    }
}

#[test]
fn messages_in_both_directions_and_larger_than_a_box_arrive_in_order() {
    let results = on_ranks(2, |arena, quiet| {
        let peer = 1 - arena.rank;
        let mut large = vec![arena.rank as u8 + 1; 3 * BOX + 5];
        let mut small = vec![arena.rank as u8 + 11; 4];
        let (mut first, mut second) = (vec![0; large.len()], vec![0; small.len()]);
        let all = [
            message(true, &mut large, peer),
            message(true, &mut small, peer),
            message(false, &mut first, peer),
            message(false, &mut second, peer),
        ];
        transfers(arena, quiet, &all).unwrap();
        (first.iter().all(|byte| *byte == peer as u8 + 1), second)
    });
    assert_eq!(results, [(true, vec![12; 4]), (true, vec![11; 4])]);
}

#[test]
fn a_rank_sends_to_itself() {
    let results = on_ranks(1, |arena, quiet| {
        let (mut out, mut back) = ([5u8, 6], [0u8; 2]);
        transfers(
            arena,
            quiet,
            &[message(true, &mut out, 0), message(false, &mut back, 0)],
        )
        .unwrap();
        back
    });
    assert_eq!(results, [[5, 6]]);
}

#[test]
fn a_message_of_another_size_than_expected_is_told() {
    let results = on_ranks(2, |arena, quiet| {
        let mut bytes = vec![0; 8 + arena.rank];
        transfers(
            arena,
            quiet,
            &[message(arena.rank == 0, &mut bytes, 1 - arena.rank)],
        )
    });
    assert_eq!(results[0], Ok(()));
    assert!(matches!(&results[1], Err(Unfinished::Mismatch(text)) if text.contains("9 bytes")));
}

#[test]
fn a_stopped_rank_stops_waiting_for_those_that_do_not_come() {
    let results = on_ranks(2, |arena, quiet| {
        if arena.rank == 1 {
            return Err(Unfinished::Stopped);
        }
        quiet.stop.store(true, Ordering::Release);
        let mut result = [0];
        collective(
            arena,
            quiet,
            &call(Kind::AllReduce, &[1], &mut result, 1, 0),
        )
    });
    assert_eq!(results[0], Err(Unfinished::Stopped));
}

#[test]
fn a_rank_joins_once_and_with_the_number_that_others_know() {
    let (_file, address) = arena::found().unwrap();
    let _first = Arena::open(address, 0, 2, 7).unwrap();
    let text = |outcome: crate::failure::Outcome<Arena>| outcome.err().unwrap().text;
    assert!(text(Arena::open(address, 0, 2, 7)).contains("joined already"));
    assert!(text(Arena::open(address, 1, 3, 7)).contains("join 2 ranks"));
    assert!(text(Arena::open(address, 1, 2, 8)).contains("different lists"));
}

#[test]
fn notes_reach_every_rank_that_asks() {
    let results = on_ranks(3, |arena, quiet| {
        (1..=40u64)
            .map(|turn| {
                let mut text = [0; arena::NOTE];
                text[0] = turn as u8 + arena.rank as u8;
                arena.post(turn, &text);
                let all = arena.collect(turn, &[0, 1, 2], quiet).unwrap();
                all.iter().map(|text| text[0]).collect::<Vec<_>>()
            })
            .enumerate()
            .all(|(index, got)| {
                let turn = index as u8 + 1;
                got == [turn, turn + 1, turn + 2]
            })
    });
    assert_eq!(results, [true, true, true]);
}

/// Set in a process that a test starts: its rank, and where the memory is.
const PLACE: &str = "SIMGPU_TEST_PLACE";

fn as_process(rank: usize, address: Address) -> Child {
    let place: Vec<u8> = [&[rank as u8][..], &address.to_bytes()].concat();
    let text: String = place.iter().map(|byte| format!("{byte:02x}")).collect();
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "exchange::tests::what_a_process_does",
            "--nocapture",
        ])
        .env(PLACE, text)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// One rank of three, in a process of its own; without a place there is nothing to do.
#[test]
fn what_a_process_does() {
    let Ok(text) = std::env::var(PLACE) else {
        return;
    };
    let bytes: Vec<u8> = (0..text.len() / 2)
        .map(|index| u8::from_str_radix(&text[2 * index..][..2], 16).unwrap())
        .collect();
    let quiet = Quiet::default();
    let arena = Arena::open(
        Address::from_bytes(&bytes[1..]).unwrap(),
        bytes[0].into(),
        3,
        7,
    );
    let arena = arena.unwrap();
    arena.wait_for_all(&quiet).unwrap();
    let mut result = [0];
    let own = [1 + arena.rank as u64];
    collective(
        &arena,
        &quiet,
        &call(Kind::AllReduce, &own, &mut result, 1, 0),
    )
    .unwrap();
    assert_eq!(result, [6]);
}

#[test]
fn ranks_are_processes_and_find_each_other_without_a_name() {
    let (_file, address) = arena::found().unwrap();
    let mut others: Vec<_> = [1, 2]
        .into_iter()
        .map(|rank| as_process(rank, address))
        .collect();
    let quiet = Quiet::default();
    let arena = Arena::open(address, 0, 3, 7).unwrap();
    arena.wait_for_all(&quiet).unwrap();
    let mut result = [0];
    collective(
        &arena,
        &quiet,
        &call(Kind::AllReduce, &[1], &mut result, 1, 0),
    )
    .unwrap();
    assert_eq!(result, [6]);
    for other in &mut others {
        assert!(other.wait().unwrap().success());
    }
}

/// Ends its wait when it is told that a rank is gone.
#[derive(Default)]
struct Mourning {
    lost: AtomicUsize,
}

impl Watch for Mourning {
    fn stopped(&self) -> bool {
        self.lost.load(Ordering::Acquire) > 0
    }
    fn lost(&self, rank: usize) {
        self.lost.store(rank, Ordering::Release);
    }
}

#[test]
fn a_rank_whose_process_is_killed_is_told() {
    let (_file, address) = arena::found().unwrap();
    let mut other = as_process(1, address);
    let arena = Arena::open(address, 0, 3, 7).unwrap();
    // It is in when it has said so, and waits for a third rank that nobody starts.
    let quiet = Quiet::default();
    arena.wait(&quiet, || arena.has_joined(1)).unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    let mourning = Mourning::default();
    assert_eq!(arena.wait(&mourning, || false), Err(Stopped));
    assert_eq!(mourning.lost.load(Ordering::Acquire), 1);
}

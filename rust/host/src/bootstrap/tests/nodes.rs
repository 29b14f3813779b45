//! Joining with real sockets where ranks of a machine meet: what they ask of the store, and who is at
//! the door.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};

use super::*;
use crate::bootstrap::machine::Meeting;

/// A job that no other run of the tests on this machine has.
fn job(local: u32) -> Neighbours {
    Neighbours::new(local, &format!("tests of process {}", std::process::id()))
}

/// Joins as each of `ranks` with its hint; outcomes, and the number of requests of all together.
fn join_hinted(
    hints: &[(usize, Option<u32>)],
    size: usize,
    name: &str,
    limit: Duration,
    store: &Memory,
) -> (Vec<Result<Table>>, usize) {
    let counted = store.handle();
    let outcomes = thread::scope(|scope| {
        let threads: Vec<_> = hints
            .iter()
            .map(|&(rank, local)| {
                let store = counted.clone();
                scope.spawn(move || join_near(rank, size, name, limit, &store, local.map(job)))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    (outcomes, counted.requests.load(Ordering::Relaxed))
}

fn assert_one_table(outcomes: &[Result<Table>]) {
    let table = outcomes[0].as_ref().unwrap();
    let members: Vec<Member> = (0..outcomes.len()).map(member).collect();
    assert_eq!(table.members, members);
    for outcome in outcomes {
        assert_eq!(outcome.as_ref().unwrap(), table);
    }
}

fn all(size: usize, local: u32) -> Vec<(usize, Option<u32>)> {
    (0..size).map(|rank| (rank, Some(local))).collect()
}

/// Where the first ranks of this machine meet.
fn meeting(local: u32, size: usize, name: &str) -> UnixAddress {
    let circle = Circle {
        name,
        rank: 0,
        size,
        generation: 0,
        machine: member(0).machine,
    };
    let Meeting { name, .. } = job(local).meeting(&circle).unwrap();
    let name = format!("ferrocomm-join-{:032x}", u128::from_be_bytes(name));
    UnixAddress::from_abstract_name(name).unwrap()
}

/// Connects as soon as somebody hosts the meeting.
fn visit(address: &UnixAddress) -> UnixStream {
    let end = Instant::now() + LONG;
    loop {
        match UnixStream::connect_addr(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::yield_now();
    }
}

#[test]
fn ranks_of_one_machine_need_no_request_when_nobody_is_late() {
    let store = Memory::default();
    let start = Instant::now();
    let (outcomes, requests) = join_hinted(&all(8, 8), 8, "one machine", LONG, &store);
    assert_one_table(&outcomes);
    // On a machine so busy that a thread takes a second to start, it is late.
    let most = if start.elapsed() < Duration::from_millis(900) {
        0
    } else {
        20
    };
    assert!(requests <= most, "{requests} requests");
    assert_eq!(store.keys(), Vec::<String>::new());
}

#[test]
fn several_nodes_need_three_requests_each() {
    let store = Memory::default();
    let start = Instant::now();
    let (outcomes, requests) = join_hinted(&all(32, 8), 32, "four nodes", LONG, &store);
    assert_one_table(&outcomes);
    if start.elapsed() < Duration::from_millis(900) {
        assert_eq!(requests, 5);
    }
    assert_eq!(store.keys(), Vec::<String>::new());
}

#[test]
fn ranks_with_different_hints_or_none_join_all_the_same() {
    let store = Memory::default();
    let hints: Vec<_> = [
        Some(4),
        Some(4),
        None,
        Some(2),
        Some(8),
        None,
        Some(4),
        Some(2),
    ]
    .into_iter()
    .enumerate()
    .collect();
    let (outcomes, _) = join_hinted(&hints, 8, "hints", LONG, &store);
    assert_one_table(&outcomes);
    assert_eq!(store.keys(), Vec::<String>::new());
}

#[test]
fn a_member_that_never_comes_is_named() {
    let store = Memory::default();
    let limit = Duration::from_secs(3);
    for missing in [0, 5] {
        let mut hints = all(8, 8);
        hints.remove(missing);
        let (outcomes, _) = join_hinted(&hints, 8, "never comes", limit, &store);
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert_eq!(
                error.peer_ranks(),
                [GroupRank::new(missing as u32)],
                "{error}"
            );
        }
        assert_eq!(store.keys(), Vec::<String>::new());
    }
    // The attempt can be repeated by all.
    assert_one_table(&join_hinted(&all(8, 8), 8, "never comes", LONG, &store).0);
}

#[test]
fn a_node_can_be_joined_again_and_again() {
    let store = Memory::default();
    for _ in 0..20 {
        let (outcomes, _) = join_hinted(&all(4, 4), 4, "node again", LONG, &store);
        assert_one_table(&outcomes);
    }
}

#[test]
fn strangers_at_the_meeting_are_sent_away() {
    let store = Memory::default();
    thread::scope(|scope| {
        let joins = |rank: usize| {
            let store = store.handle();
            scope.spawn(move || join_near(rank, 2, "visited", LONG, &store, Some(job(2))))
        };
        let host = joins(1);
        let address = meeting(2, 2, "visited");
        let mut kept = Vec::new();
        // A short message, one with a huge length, the beginning of a hello, silence.
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 4096],
            b"ferrojo\x02",
            b"",
        ] {
            let mut stranger = visit(&address);
            stranger.write_all(bytes).unwrap();
            kept.push(stranger);
        }
        for stranger in &mut kept[..2] {
            stranger
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let ending = stranger.read(&mut [0; 16]).map_err(|error| error.kind());
            let dropped = matches!(ending, Ok(0) | Err(std::io::ErrorKind::ConnectionReset));
            assert!(dropped, "{ending:?}");
        }
        assert!(joins(0).join().unwrap().is_ok());
        assert!(host.join().unwrap().is_ok());
    });
}

#[test]
fn a_meeting_point_that_somebody_holds_sends_ranks_to_the_store() {
    let store = Memory::default();
    // It accepts by its backlog, and says nothing.
    let squatter = UnixListener::bind_addr(&meeting(2, 2, "held")).unwrap();
    let limit = Duration::from_secs(8);
    let (outcomes, _) = join_hinted(&all(2, 2), 2, "held", limit, &store);
    assert_one_table(&outcomes);
    drop(squatter);
}

/// Runs `body` as another user, if this test may become one.
fn as_another_user<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    const NOBODY: libc::c_long = 65534;
    // The C library would change all threads; the kernel changes the calling one.
    let run = || {
        // SAFETY: takes plain numbers, and changes this thread alone, which ends below.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) } == 0;
        changed.then(body)
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn another_user_can_neither_join_nor_stand_in_the_way() {
    let store = Memory::default();
    let address = meeting(2, 2, "other user");
    thread::scope(|scope| {
        let host = {
            let store = store.handle();
            scope.spawn(move || join_near(1, 2, "other user", LONG, &store, Some(job(2))))
        };
        drop(visit(&address));
        let ending = as_another_user(|| {
            let mut stranger = UnixStream::connect_addr(&address).unwrap();
            stranger
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            stranger.read(&mut [0; 16]).map_err(|error| error.kind())
        });
        match ending {
            None => eprintln!("skipped: only root can become another user"),
            // Long before a silent one of the same user would be.
            Some(ending) => assert!(
                matches!(ending, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)),
                "{ending:?}"
            ),
        }
        assert!(join_near(0, 2, "other user", LONG, &store.handle(), Some(job(2))).is_ok());
        assert!(host.join().unwrap().is_ok());
    });
    let address = meeting(2, 2, "taken");
    let Some(squatter) = as_another_user(|| UnixListener::bind_addr(&address).unwrap()) else {
        return eprintln!("skipped: only root can become another user");
    };
    let limit = Duration::from_secs(8);
    assert_one_table(&join_hinted(&all(2, 2), 2, "taken", limit, &store).0);
    drop(squatter);
}

/// Run by hand: how long joining takes, with and without meeting.
#[test]
#[ignore = "measures"]
fn measure_joining() {
    for size in [2, 8] {
        for local in [None, Some(size as u32)] {
            let mut times: Vec<Duration> = (0..101)
                .map(|_| {
                    let store = Memory::default();
                    let hints: Vec<_> = (0..size).map(|rank| (rank, local)).collect();
                    let start = Instant::now();
                    let (outcomes, _) = join_hinted(&hints, size, "measured", LONG, &store);
                    assert_one_table(&outcomes);
                    start.elapsed()
                })
                .collect();
            times.sort_unstable();
            let (least, middle) = (times[0], times[50]);
            println!("{size} ranks, hint {local:?}: least {least:?}, median {middle:?}");
        }
    }
}

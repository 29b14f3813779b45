//! Joining with real sockets: threads are ranks, over a store in memory that counts requests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::interrupt;

use crate::location::Location;

use super::*;

mod nodes;

type Values = HashMap<String, Vec<u8>>;

/// A store in memory; each rank has its own handle, which counts its requests.
#[derive(Clone, Default)]
struct Memory {
    shared: Arc<(Mutex<Values>, Condvar)>,
    requests: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Memory {
    /// The same store for another rank.
    fn handle(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            ..Self::default()
        }
    }

    fn keys(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().keys().cloned().collect()
    }

    fn request(&self) -> Result<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Store, "the disk is full"));
        }
        Ok(())
    }
}

impl Store for Memory {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.request()?;
        self.shared
            .0
            .lock()
            .unwrap()
            .insert(key.into(), value.into());
        self.shared.1.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.request()?;
        let values = self.shared.0.lock().unwrap();
        let waiting = |values: &mut Values| !values.contains_key(key);
        let (values, _) = self
            .shared
            .1
            .wait_timeout_while(values, timeout, waiting)
            .unwrap();
        let late = || Error::new(ErrorKind::StoreTimeout, "no such key in time");
        values.get(key).cloned().ok_or_else(late)
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.request()?;
        self.shared.0.lock().unwrap().remove(key);
        Ok(())
    }
}

fn member(rank: usize) -> Member {
    Member {
        process: ProcessId((rank as u128 + 1).to_be_bytes()),
        machine: 1,
        location: Location::default(),
        unix: format!("rank-{rank}"),
        addresses: vec![SocketAddr::from(([127, 0, 0, 1], 1 + rank as u16))],
        nonce: [rank as u8; 16],
    }
}

fn join_as(rank: usize, size: usize, name: &str, limit: Duration, store: &Memory) -> Result<Table> {
    join_near(rank, size, name, limit, store, None)
}

fn join_near(
    rank: usize,
    size: usize,
    name: &str,
    limit: Duration,
    store: &Memory,
    neighbours: Option<Neighbours>,
) -> Result<Table> {
    let request = JoinRequest {
        name,
        rank: GroupRank::new(rank as u32),
        size,
        deadline: Deadline::after(limit),
        facts: "version 1",
        me: member(rank),
        advertise: IpAddr::V4(Ipv4Addr::LOCALHOST),
        neighbours,
    };
    join(&request, store)
}

/// Joins as each of `ranks`, in a thread each; outcomes and numbers of requests, in their order.
fn join_all(
    ranks: &[usize],
    size: usize,
    name: &str,
    limit: Duration,
    store: &Memory,
) -> Vec<(Result<Table>, usize)> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|&rank| {
                let store = store.handle();
                scope.spawn(move || {
                    let outcome = join_as(rank, size, name, limit, &store);
                    (outcome, store.requests.load(Ordering::Relaxed))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn ranks_join_with_at_most_three_requests_each() {
    for size in [1, 2, 5, 17, 33, 64] {
        let store = Memory::default();
        let ranks: Vec<usize> = (0..size).collect();
        let joined = join_all(&ranks, size, "requests", LONG, &store);
        let table = joined[0].0.as_ref().unwrap();
        assert_eq!(
            table.members,
            ranks.iter().map(|rank| member(*rank)).collect::<Vec<_>>()
        );
        for (rank, (outcome, requests)) in joined.iter().enumerate() {
            assert_eq!(outcome.as_ref().unwrap(), table);
            let most = if size == 1 { 0 } else { 3 };
            assert!(
                *requests <= most,
                "rank {rank} of {size}: {requests} requests"
            );
        }
        assert_eq!(store.keys(), Vec::<String>::new());
    }
}

#[test]
fn a_name_can_be_joined_again_and_again() {
    let store = Memory::default();
    let size = 3;
    let ids: Vec<Vec<CommId>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let store = store.handle();
                scope.spawn(move || {
                    (0..30)
                        .map(|_| join_as(rank, size, "again", LONG, &store).unwrap().id)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(ids.iter().all(|of_rank| *of_rank == ids[0]));
    let mut distinct = ids[0].clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 30);
    assert_eq!(store.keys(), Vec::<String>::new());
}

#[test]
fn a_missing_rank_is_named_when_the_deadline_passes() {
    let store = Memory::default();
    let limit = Duration::from_secs(2);
    let start = Instant::now();
    // Rank 1 has children, who find the root without it.
    let ranks: Vec<usize> = (0..20).filter(|rank| *rank != 1).collect();
    let failed = join_all(&ranks, 20, "missing", limit, &store);
    // Generous: the machine may be busy.
    assert!(start.elapsed() < limit * 6, "took {:?}", start.elapsed());
    for (rank, (outcome, _)) in ranks.iter().zip(failed) {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "rank {rank}: {error}");
        assert_eq!(
            error.peer_ranks(),
            [GroupRank::new(1)],
            "rank {rank}: {error}"
        );
    }
    assert_eq!(store.keys(), Vec::<String>::new());
    // The attempt can be repeated by all.
    let ranks: Vec<usize> = (0..20).collect();
    assert!(
        join_all(&ranks, 20, "missing", LONG, &store)
            .iter()
            .all(|(joined, _)| joined.is_ok())
    );
}

#[test]
fn an_interrupted_rank_tells_the_others() {
    const NAME: &str = "interrupted rank";
    /// Looks of the rank at the check before it says stop: it waits for the third rank by then.
    const LOOKS: usize = 15;
    let looks = AtomicUsize::new(0);
    let check = move || {
        thread::current().name() == Some(NAME) && looks.fetch_add(1, Ordering::Relaxed) >= LOOKS
    };
    let store = Memory::default();
    let root = {
        let store = store.handle();
        thread::spawn(move || join_as(0, 3, "interrupted", LONG, &store))
    };
    store.get("ferrocomm/interrupted/0/0/0", LONG).unwrap();
    interrupt::set_check(Some(Arc::new(check)));
    let stopped = {
        let store = store.handle();
        let join = move || join_as(1, 3, "interrupted", LONG, &store);
        thread::Builder::new()
            .name(NAME.into())
            .spawn(join)
            .unwrap()
    };
    let error = stopped.join().unwrap().unwrap_err();
    interrupt::set_check(None);
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let error = root.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    assert_eq!(error.peer_ranks(), [GroupRank::new(1)], "{error}");
    assert!(error.what().contains("interrupted"), "{error}");
}

#[test]
fn a_store_that_fails_is_reported_in_its_words() {
    let store = Memory::default();
    store.broken.store(true, Ordering::Relaxed);
    for rank in [0, 1] {
        let error = join_as(rank, 2, "broken", LONG, &store).unwrap_err();
        assert_eq!(
            (error.kind(), error.what()),
            (ErrorKind::Store, "the disk is full")
        );
    }
}

#[test]
fn strangers_at_the_door_are_sent_away() {
    let store = Memory::default();
    thread::scope(|scope| {
        let root = {
            let store = store.handle();
            scope.spawn(move || join_as(0, 2, "strangers", LONG, &store))
        };
        let value = store.get("ferrocomm/strangers/0/0/0", LONG).unwrap();
        let (_, _, address) = wire::read_key_value(&value).unwrap();
        let mut kept = Vec::new();
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"ferrojo\x01",
            b"",
            &[0xff; 4096],
        ] {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(bytes).unwrap();
            kept.push(stranger);
        }
        // The first is dropped at its first wrong byte, long before a silent one would be.
        kept[0]
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let ending = kept[0].read(&mut [0; 16]).map_err(|error| error.kind());
        let dropped = matches!(ending, Ok(0) | Err(std::io::ErrorKind::ConnectionReset));
        assert!(dropped, "{ending:?}");
        assert!(join_as(1, 2, "strangers", LONG, &store.handle()).is_ok());
        assert!(root.join().unwrap().is_ok());
    });
}

#[test]
fn requests_that_cannot_be_met_are_refused() {
    let store = Memory::default();
    let error = join_as(2, 2, "refused", LONG, &store).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = join_as(0, 2, &"long".repeat(1000), LONG, &store).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(store.requests.load(Ordering::Relaxed), 0);
}

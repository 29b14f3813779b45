use super::*;
use std::sync::Condvar;
use std::time::Instant;

/// A store in memory that counts.
#[derive(Default)]
struct Memory {
    values: Mutex<(HashMap<String, Vec<u8>>, usize)>,
    changed: Condvar,
}

impl Store for Memory {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut values = self.values.lock().expect("no panic");
        values.0.insert(key.into(), value.into());
        values.1 += 1;
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let until = Instant::now() + timeout;
        let mut values = self.values.lock().expect("no panic");
        values.1 += 1;
        loop {
            if let Some(value) = values.0.get(key) {
                return Ok(value.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(ErrorKind::StoreTimeout, "no such key"));
            }
            values = self.changed.wait_timeout(values, left).expect("no panic").0;
        }
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.values.lock().expect("no panic").0.remove(key);
        Ok(())
    }
}

/// A meeting of `rank` in round 1, whatever this process did before.
fn meeting<'a>(store: &'a Memory, rank: usize, size: usize, limit: Duration) -> Meeting<'a> {
    Meeting {
        store,
        prefix: "test/1".into(),
        rank,
        size,
        deadline: Deadline::after(limit),
    }
}

#[test]
fn every_rank_gets_the_ids_of_all_roots_for_one_request() {
    const SIZE: usize = 300;
    let store = Memory::default();
    let roots = roots(SIZE, true);
    assert_eq!(roots, 3);
    let all: Vec<Vec<Id>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..SIZE)
            .map(|rank| {
                let store = &store;
                scope.spawn(move || {
                    let meeting = meeting(store, rank, SIZE, Duration::from_secs(60));
                    let byte = u8::try_from(rank % 251).expect("below 251");
                    meeting
                        .ids(roots, || Ok([byte; ID_BYTES]))
                        .expect("all came")
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("no panic"))
            .collect()
    });
    assert_eq!(all[0], [[0; ID_BYTES], [100; ID_BYTES], [200; ID_BYTES]]);
    assert!(all.iter().all(|ids| *ids == all[0]));
    // A word and a fetch per rank, and a few per root.
    let requests = store.values.lock().expect("no panic").1;
    assert!(requests <= 2 * SIZE + 2 * roots, "{requests} requests");
}

#[test]
fn a_time_out_names_who_did_not_come_and_why() {
    let store = Memory::default();
    let limit = Duration::from_millis(30);
    let failed = Error::new(ErrorKind::Unsupported, "no NVIDIA driver is installed");
    meeting(&store, 2, 4, limit).decline(&failed);
    let error = meeting(&store, 1, 4, limit)
        .ids(1, || Ok([0; ID_BYTES]))
        .expect_err("rank 0 is not there");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let text = error.to_string();
    assert!(text.contains("peers 0, 2, 3"), "{text}");
    assert!(text.contains("no NVIDIA driver is installed"), "{text}");
}

#[test]
fn one_root_serves_small_groups_and_libraries_that_know_no_more() {
    assert_eq!(roots(1, true), 1);
    assert_eq!(roots(128, true), 1);
    assert_eq!(roots(129, true), 2);
    assert_eq!(roots(96_000, true), 750);
    assert_eq!(roots(96_000, false), 1);
}

#[test]
fn a_communicator_that_is_made_again_meets_elsewhere() {
    let store = Memory::default();
    let deadline = Deadline::after(Duration::from_secs(1));
    let rank = GroupRank::new(0);
    let one = Meeting::new(&store, "made twice", rank, 1, deadline);
    let two = Meeting::new(&store, "made twice", rank, 1, deadline);
    assert_ne!(one.prefix, two.prefix);
}

#[test]
fn a_group_may_have_the_name_of_an_earlier_one_that_had_fewer_ranks() {
    let store = Memory::default();
    let deadline = Deadline::after(Duration::from_secs(60));
    let meet = |rank, size| {
        Meeting::new(
            &store,
            "of some, then of all",
            GroupRank::new(rank),
            size,
            deadline,
        )
    };
    // Rank 0 was in a group of one; rank 1 was not.
    let earlier = meet(0, 1);
    let (one, other) = (meet(0, 2), meet(1, 2));
    assert_eq!(one.prefix, other.prefix);
    assert_ne!(one.prefix, earlier.prefix);
}

//! What must hold however ranks, store and network behave.

use super::*;
use crate::bootstrap::wire;

/// Runs `test` with `count` seeds, with few under a sanitizer, and names the one that fails.
pub(super) fn with_seeds(count: u64, test: impl Fn(u64, &mut Random)) {
    let mut seeds = Random::of_now();
    for _ in 0..rounds(count, 3) {
        let seed = seeds.next();
        let run = std::panic::AssertUnwindSafe(|| test(seed, &mut Random::new(seed)));
        let outcome = std::panic::catch_unwind(run);
        assert!(outcome.is_ok(), "seed {seed:#x}");
    }
}

fn some_size(random: &mut Random) -> u32 {
    [2, 3, 16, 17, 18, 33, 100, 273, 300][random.below(9) as usize]
}

pub(super) fn numbers(ranks: &[GroupRank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.get()).collect()
}

/// All outcomes are this one failure.
pub(super) fn assert_failed(outcomes: &[(usize, Result<Table>)], kind: ErrorKind, peers: &[u32]) {
    let texts: Vec<String> = outcomes
        .iter()
        .map(|(_, outcome)| outcome.as_ref().unwrap_err().to_string())
        .collect();
    for ((node, outcome), text) in outcomes.iter().zip(&texts) {
        let error = outcome.as_ref().unwrap_err();
        assert_eq!((error.kind(), text), (kind, &texts[0]), "node {node}");
        assert_eq!(numbers(error.peer_ranks()), peers, "node {node}: {text}");
    }
}

pub(super) fn assert_joined(outcomes: &[(usize, Result<Table>)]) {
    let table = outcomes[0].1.as_ref().unwrap();
    for (node, outcome) in outcomes {
        assert_eq!(outcome.as_ref().unwrap(), table, "node {node}");
    }
    assert_eq!(table.members.len(), outcomes.len());
}

#[test]
fn all_ranks_get_one_table() {
    with_seeds(60, |seed, random| {
        let size = [1, some_size(random)][usize::from(random.below(10) > 0)];
        let mut simulation = Simulation::new(seed, size, ms(800));
        simulation.run();
        for node in &simulation.nodes {
            // Started within one look at the store, each needs one.
            assert!(node.looks <= 1, "{} looks", node.looks);
        }
        let outcomes = simulation.outcomes();
        assert_joined(&outcomes);
        let table = outcomes[0].1.as_ref().unwrap();
        for (rank, got) in table.members.iter().enumerate() {
            assert_eq!(got, &member(rank));
        }
    });
}

#[test]
fn ranks_that_start_late_are_waited_for() {
    with_seeds(30, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, LIMIT.mul_f64(0.7));
        simulation.run();
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn ranks_below_a_late_one_find_another_way() {
    // Rank 1 comes when its children have turned to rank 0; all still join.
    let mut simulation = Simulation::new(5, 40, ms(100));
    simulation.withhold(1);
    simulation.nodes[1].rank = u32::MAX;
    simulation.add(1, 40, LIMIT.mul_f64(0.9));
    // In the place of the one withheld.
    simulation.run();
    let outcomes = simulation.outcomes();
    assert_joined(&outcomes);
}

#[test]
fn missing_ranks_are_named_exactly() {
    with_seeds(60, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, ms(100));
        let mut missing: Vec<u32> = (0..1 + random.below(5))
            .map(|_| 1 + random.below(u64::from(size) - 1) as u32)
            .collect();
        missing.sort_unstable();
        missing.dedup();
        missing
            .iter()
            .for_each(|rank| simulation.withhold(*rank as usize));
        simulation.run();
        let outcomes = simulation.outcomes();
        assert_eq!(outcomes.len(), size as usize - missing.len());
        assert_failed(&outcomes, ErrorKind::Timeout, &missing);
    });
}

#[test]
fn a_missing_root_is_named() {
    with_seeds(20, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, ms(100));
        simulation.withhold(0);
        simulation.run();
        assert_failed(&simulation.outcomes(), ErrorKind::Timeout, &[0]);
    });
}

#[test]
fn a_rank_that_dies_is_named_by_all_that_had_come() {
    with_seeds(60, |seed, random| {
        let size = some_size(random).max(17);
        let mut simulation = Simulation::new(seed, size, ms(50));
        // The last rank comes too late to save anything, and keeps joining open until then.
        simulation.withhold(size as usize - 1);
        let dying = 1 + random.below(u64::from(size) - 2) as u32;
        simulation.at(ms(500), Event::Die(dying as usize));
        simulation.run();
        let mut outcomes = simulation.outcomes();
        outcomes.retain(|(node, _)| *node != dying as usize);
        assert_failed(&outcomes, ErrorKind::PeerLost, &[dying]);
    });
}

#[test]
fn a_parent_that_dies_before_it_is_found_is_the_only_one_missing() {
    let mut simulation = Simulation::new(3, 60, ms(50));
    simulation.withhold(2);
    // It has left its key behind.
    let dead = wire::key_value(&[9; 16], 1, address_of(59_999));
    simulation.store.insert(2, dead);
    simulation.run();
    let outcomes = simulation.outcomes();
    assert_eq!(outcomes.len(), 59);
    assert_failed(&outcomes, ErrorKind::Timeout, &[2]);
}

#[test]
fn stale_keys_do_no_harm() {
    with_seeds(30, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, ms(900));
        for rank in 0..size {
            // Of a rank that is gone, of one that lives with another nonce, or no key at all.
            let value = match random.below(3) {
                0 => wire::key_value(&[9; 16], 1, address_of(59_999)),
                1 => wire::key_value(&[9; 16], 1, address_of(0)),
                _ => b"left over".to_vec(),
            };
            simulation.store.insert(rank, value);
        }
        simulation.run();
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn strangers_do_no_harm() {
    with_seeds(30, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, ms(500));
        for _ in 0..200 {
            let node = random.below(u64::from(size.min(20))) as usize;
            let bytes = match random.below(4) {
                0 => Vec::new(),
                1 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                2 => b"ferrojo\x01".to_vec(),
                _ => vec![0xff; 1 << 16],
            };
            let at = ms(random.below(600));
            simulation.at(at, Event::Stray { node, bytes });
        }
        simulation.run();
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn ranks_that_believe_something_else_are_named_in_one_text() {
    with_seeds(60, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, ms(100));
        let mut differing: Vec<u32> = (0..1 + random.below(4))
            .map(|_| 1 + random.below(u64::from(size) - 1) as u32)
            .collect();
        differing.sort_unstable();
        differing.dedup();
        for rank in &differing {
            simulation.setup(*rank as usize).facts = format!("{size} ranks, version 2");
        }
        simulation.run();
        let outcomes = simulation.outcomes();
        assert_failed(&outcomes, ErrorKind::Mismatch, &differing);
        let text = outcomes[0].1.as_ref().unwrap_err().to_string();
        assert!(
            text.contains("version 1") && text.contains("version 2"),
            "{text}"
        );
    });
}

#[test]
fn a_rank_with_another_size_is_named() {
    let mut simulation = Simulation::new(4, 4, ms(100));
    simulation.withhold(2);
    simulation.add(2, 8, ms(50));
    simulation.run();
    assert_failed(&simulation.outcomes(), ErrorKind::Mismatch, &[2]);
}

#[test]
fn two_processes_with_one_rank_are_told() {
    let mut simulation = Simulation::new(7, 5, ms(10));
    simulation.withhold(4);
    simulation.add(3, 5, ms(5));
    simulation.run();
    assert_failed(&simulation.outcomes(), ErrorKind::Mismatch, &[3]);
}

#[test]
fn the_failure_of_one_rank_is_everybodys() {
    with_seeds(60, |seed, random| {
        let size = some_size(random);
        let mut simulation = Simulation::new(seed, size, ms(50));
        let failing = random.below(u64::from(size)) as usize;
        let absent = if failing == size as usize - 1 {
            0
        } else {
            size as usize - 1
        };
        // One is missing, so that joining is open when the failure comes; not the root, who tells.
        if absent == 0 {
            return;
        }
        simulation.withhold(absent);
        let error = Error::new(ErrorKind::Store, "the store is full");
        simulation.at(ms(400), Event::Fail(failing, error));
        simulation.run();
        for (node, outcome) in simulation.outcomes() {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Store, "node {node}: {error}");
            assert!(
                error.what().contains("the store is full"),
                "node {node}: {error}"
            );
            if node != failing {
                assert_eq!(numbers(error.peer_ranks()), [failing as u32], "node {node}");
            }
        }
    });
}

#[test]
fn thousands_of_ranks_join() {
    let mut simulation = Simulation::new(11, rounds(3000, 600), ms(900));
    simulation.run();
    assert_joined(&simulation.outcomes());
}

//! What must hold where the ranks of a machine meet, or believe that they could.

use super::scenarios::{assert_failed, assert_joined, numbers, with_seeds};
use super::*;

/// How long ranks may take that need not wait for anybody: far below three quarters of the limit,
/// after which ranks turn to others.
const SOON: Duration = Duration::from_secs(8);

impl Simulation {
    /// Ranks in nodes of `local`, each on a machine of its own.
    fn of_nodes(seed: u64, local: u32, nodes: u32, spread: Duration) -> Self {
        let size = local * nodes;
        let mut simulation = Self::new(seed, size, spread);
        for rank in 0..size {
            simulation.place(rank as usize, local, u64::from(rank / local));
        }
        simulation
    }

    /// Puts a process on a machine where it believes to find nodes of `local` ranks.
    fn place(&mut self, node: usize, local: u32, computer: u64) {
        let rank = self.nodes[node].rank;
        self.nodes[node].computer = computer;
        let mut name = [local as u8; 16];
        name[..4].copy_from_slice(&(rank / local).to_be_bytes());
        self.setup(node).meeting = (local > 1).then_some(Meeting { local, name });
    }

    /// Requests of the store: a key that is set is also removed.
    fn requests(&self, nodes: impl Iterator<Item = usize>) -> usize {
        let requests = |node: usize| self.nodes[node].looks + 2 * self.nodes[node].published;
        nodes.map(requests).sum()
    }

    fn slowest(&self) -> Duration {
        self.nodes.iter().map(|node| node.ended).max().unwrap()
    }
}

/// Ranks per node and nodes.
fn some_shape(random: &mut Random) -> (u32, u32) {
    [(2, 1), (8, 1), (2, 9), (8, 4), (3, 20), (4, 40), (16, 18)][random.below(7) as usize]
}

#[test]
fn four_machines_of_eight_ranks_need_five_requests() {
    with_seeds(30, |seed, _| {
        let mut simulation = Simulation::of_nodes(seed, 8, 4, ms(700));
        simulation.run();
        // The root's node sets and removes its key; the others look at it.
        for (node, expected) in [2, 1, 1, 1].into_iter().enumerate() {
            assert_eq!(
                simulation.requests(8 * node..8 * node + 8),
                expected,
                "node {node}"
            );
        }
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn a_machine_needs_at_most_three_requests_and_one_alone_needs_none() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(700));
        simulation.run();
        let most = if nodes == 1 { 0 } else { 3 };
        for node in 0..nodes as usize {
            let first = node * local as usize;
            let requests = simulation.requests(first..first + local as usize);
            assert!(
                requests <= most,
                "node {node} of {nodes}: {requests} requests"
            );
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
fn ranks_of_a_node_that_start_late_are_waited_for() {
    with_seeds(40, |seed, random| {
        let (local, nodes) = some_shape(random);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, LIMIT.mul_f64(0.7));
        simulation.run();
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn a_hint_that_is_wrong_costs_no_more_than_requests() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = local * nodes;
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(100));
        let way = random.below(4);
        for rank in 0..size {
            let computer = match way {
                // Dealt out in turn; one per machine; nodes torn in two; anywhere.
                0 => u64::from(rank % nodes.max(2)),
                1 => u64::from(rank),
                2 => u64::from(rank / local * 2 + rank % 2),
                _ => random.below(3),
            };
            simulation.place(rank as usize, local, computer);
        }
        simulation.run();
        assert!(
            simulation.slowest() < SOON,
            "took {:?}",
            simulation.slowest()
        );
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn ranks_that_count_nodes_in_different_ways_meet() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = local * nodes;
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(100));
        let divisors: Vec<u32> = (1..=local).filter(|way| local % way == 0).collect();
        for node in 0..nodes {
            // One node has no hint, or a smaller one; with some luck each rank has its own.
            let together = random.below(4) > 0;
            let mut way = divisors[random.below(divisors.len() as u64) as usize];
            for rank in node * local..(node + 1) * local {
                if !together {
                    way = divisors[random.below(divisors.len() as u64) as usize];
                }
                simulation.place(rank as usize, way, u64::from(node));
            }
        }
        simulation.run();
        assert_eq!(size as usize, simulation.nodes.len());
        assert!(
            simulation.slowest() < SOON,
            "took {:?}",
            simulation.slowest()
        );
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn machines_of_different_sizes_join_soon() {
    // Ten machines of eight ranks, which divide the size, and twenty of six, which do not.
    with_seeds(20, |seed, _| {
        let mut simulation = Simulation::of_nodes(seed, 1, 200, ms(100));
        (0..80).for_each(|rank| simulation.place(rank, 8, rank as u64 / 8));
        simulation.run();
        assert!(
            simulation.slowest() < SOON,
            "took {:?}",
            simulation.slowest()
        );
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn missing_ranks_of_nodes_are_named_exactly() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = local * nodes;
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(100));
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
fn a_missing_root_is_named_with_those_that_did_not_come_to_its_machine() {
    let mut simulation = Simulation::of_nodes(6, 8, 1, ms(100));
    [0, 5]
        .into_iter()
        .for_each(|rank| simulation.withhold(rank));
    simulation.run();
    assert_failed(&simulation.outcomes(), ErrorKind::Timeout, &[0, 5]);
    with_seeds(20, |seed, random| {
        let (local, nodes) = some_shape(random);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(100));
        simulation.withhold(0);
        simulation.run();
        assert_failed(&simulation.outcomes(), ErrorKind::Timeout, &[0]);
    });
}

#[test]
fn a_rank_of_a_node_that_dies_is_named_by_all_that_had_come() {
    with_seeds(40, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = (local * nodes) as usize;
        if size < 3 {
            return;
        }
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(50));
        simulation.withhold(size - 1);
        let dying = random.below(size as u64 - 1) as usize;
        simulation.at(ms(500), Event::Die(dying));
        simulation.run();
        let mut outcomes = simulation.outcomes();
        outcomes.retain(|(node, _)| *node != dying);
        assert_failed(&outcomes, ErrorKind::PeerLost, &[dying as u32]);
    });
}

#[test]
fn a_rank_that_dies_while_its_node_meets_is_named() {
    with_seeds(40, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = u64::from(local * nodes);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(10));
        let dying = random.below(size) as usize;
        let at = ms(random.below(15));
        simulation.at(at, Event::Die(dying));
        simulation.run();
        let mut outcomes = simulation.outcomes();
        outcomes.retain(|(node, _)| *node != dying);
        // It may have died when it had the table. Ranks that come when the root has ended over it
        // miss the root.
        for (node, outcome) in outcomes {
            if let Err(error) = outcome {
                let kind = error.kind();
                assert!(
                    matches!(kind, ErrorKind::PeerLost | ErrorKind::Timeout),
                    "node {node}: {error}"
                );
                let named = numbers(error.peer_ranks());
                let is_late = kind == ErrorKind::Timeout && named.contains(&0);
                assert!(
                    is_late || named.contains(&(dying as u32)),
                    "node {node}: {error}"
                );
            }
        }
    });
}

#[test]
fn a_process_that_stands_still_is_left_and_does_no_harm() {
    with_seeds(40, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = u64::from(local * nodes);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(10));
        for _ in 0..1 + random.below(3) {
            let node = random.below(size) as usize;
            let from = delay(&mut simulation.random, ms(20));
            simulation.at(from, Event::Sleep(node, ms(6000 + random.below(5000))));
        }
        simulation.run();
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn whoever_takes_the_meeting_point_only_costs_time() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(100));
        for rank in (0..local * nodes).step_by(local as usize) {
            if random.below(2) == 0 {
                continue;
            }
            let name = simulation.setup(rank as usize).meeting.unwrap().name;
            // Hangs up on everybody, or says nothing.
            let squatter = simulation.nodes.len();
            simulation.add(rank, local * nodes, Duration::ZERO);
            simulation.withhold(squatter);
            simulation.nodes[squatter].silent = random.below(2) == 0;
            let computer = u64::from(rank / local);
            simulation.hosts.insert((computer, name), squatter);
        }
        simulation.run();
        assert!(
            simulation.slowest() < SOON,
            "took {:?}",
            simulation.slowest()
        );
        assert_joined(&simulation.outcomes());
    });
}

#[test]
fn strangers_at_meetings_do_no_harm() {
    with_seeds(40, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = u64::from(local * nodes);
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(500));
        for _ in 0..300 {
            let node = random.below(size) as usize;
            let bytes = match random.below(4) {
                0 => Vec::new(),
                1 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                2 => b"ferrojo\x02".to_vec(),
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
fn ranks_of_nodes_that_believe_something_else_are_named_in_one_text() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = local * nodes;
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(100));
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
fn a_rank_of_a_node_with_another_size_is_named() {
    // It comes to another meeting, and finds the others through the store.
    let mut simulation = Simulation::of_nodes(4, 4, 1, ms(100));
    simulation.withhold(2);
    let other = simulation.add(2, 8, ms(50));
    simulation.place(other, 4, 0);
    simulation.setup(other).meeting.as_mut().unwrap().name = [9; 16];
    simulation.run();
    assert!(
        simulation.slowest() < SOON,
        "took {:?}",
        simulation.slowest()
    );
    assert_failed(&simulation.outcomes(), ErrorKind::Mismatch, &[2]);
}

#[test]
fn two_processes_with_one_rank_of_a_node_are_told() {
    with_seeds(40, |seed, random| {
        let mut simulation = Simulation::of_nodes(seed, 4, 3, ms(10));
        let twice = random.below(11) as u32;
        simulation.withhold(twice as usize + 1);
        let again = simulation.add(twice, 12, ms(5));
        let here = [twice / 4, 99][random.below(2) as usize];
        simulation.place(again, 4, u64::from(here));
        simulation.run();
        let outcomes = simulation.outcomes();
        for (node, outcome) in &outcomes {
            let error = outcome.as_ref().unwrap_err();
            // Two roots have no one above them who could tell.
            let told = matches!(error.kind(), ErrorKind::Mismatch);
            assert!(told || twice == 0, "node {node}: {error}");
        }
    });
}

#[test]
fn the_failure_of_one_rank_of_a_node_is_everybodys() {
    with_seeds(30, |seed, random| {
        let (local, nodes) = some_shape(random);
        let size = (local * nodes) as usize;
        if size < 3 {
            return;
        }
        let mut simulation = Simulation::of_nodes(seed, local, nodes, ms(50));
        let failing = random.below(size as u64 - 1) as usize;
        simulation.withhold(size - 1);
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
fn a_thousand_ranks_join_in_nodes() {
    let mut simulation = Simulation::of_nodes(11, 8, 150, ms(700));
    simulation.run();
    let requests = simulation.requests(0..1200);
    // One look each but the root, and ten inner nodes that set and remove a key.
    assert_eq!(requests, 149 + 2 * 10);
    assert_joined(&simulation.outcomes());
}

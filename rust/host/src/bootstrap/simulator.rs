//! Ranks, store and network in one thread and in virtual time, driving the shipping protocol.
//!
//! Bytes of one direction of a connection keep their order and are cut at random; everything else
//! is delayed at random. A seed decides all of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{GroupRank, ProcessId};

use super::machine::{Action, Link, Machine, Setup, is_inner};
use super::{Member, Table, wire};

const LIMIT: Duration = Duration::from_secs(20);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn delay(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.below(longest.as_nanos() as u64 + 1))
    }
}

/// One end of a connection; strangers have no machine.
type End = (usize, Link);

#[derive(Debug)]
enum Event {
    Start(usize),
    Die(usize),
    Fail(usize, Error),
    Tick(usize),
    /// a look at the store ends
    Look {
        node: usize,
        rank: u32,
        until: Duration,
    },
    Dial {
        node: usize,
        link: Link,
        address: SocketAddr,
    },
    Dialed(End),
    Bytes(End, Vec<u8>),
    Closed(End),
    /// somebody connects to this node, says this and stays
    Stray {
        node: usize,
        bytes: Vec<u8>,
    },
}

struct Node {
    setup: Option<Setup>,
    machine: Option<Machine>,
    started: Duration,
    over: bool,
    rank: u32,
    looks: usize,
    /// what the other end of each connection is, and when what was sent last arrives
    peers: HashMap<Link, (Option<End>, Duration)>,
}

struct Simulation {
    random: Random,
    now: Duration,
    count: u64,
    events: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    bodies: Vec<Option<Event>>,
    nodes: Vec<Node>,
    store: HashMap<u32, Vec<u8>>,
}

fn address_of(node: usize) -> SocketAddr {
    let [_, a, b, c] = (node as u32).to_be_bytes();
    SocketAddr::from(([10, a, b, c], 1))
}

fn node_at(address: SocketAddr) -> usize {
    let std::net::IpAddr::V4(ip) = address.ip() else {
        panic!("the simulator uses IPv4")
    };
    let [_, a, b, c] = ip.octets();
    u32::from_be_bytes([0, a, b, c]) as usize
}

fn member(node: usize) -> Member {
    Member {
        process: ProcessId((node as u128).to_be_bytes()),
        machine: node as u64 / 8,
        unix: format!("node-{node}"),
        addresses: vec![address_of(node)],
        nonce: [node as u8; 16],
    }
}

impl Simulation {
    /// `size` ranks that start within `spread`.
    fn new(seed: u64, size: u32, spread: Duration) -> Self {
        let mut simulation = Self {
            random: Random(seed | 1),
            now: Duration::ZERO,
            count: 0,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            nodes: Vec::new(),
            store: HashMap::new(),
        };
        for rank in 0..size {
            let at = simulation.random.delay(spread);
            simulation.add(rank, size, at);
        }
        simulation
    }

    /// Adds a process that joins as `rank` at `at`.
    fn add(&mut self, rank: u32, size: u32, at: Duration) -> usize {
        let node = self.nodes.len();
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.random.next().to_le_bytes());
        let setup = Setup {
            rank,
            size,
            facts: format!("{size} ranks, version 1"),
            name: "test".into(),
            member: member(node),
            nonce,
            listening: is_inner(rank, size).then(|| address_of(node)),
            limit: LIMIT,
        };
        self.nodes.push(Node {
            setup: Some(setup),
            machine: None,
            started: at,
            over: false,
            rank,
            looks: 0,
            peers: HashMap::new(),
        });
        self.at(at, Event::Start(node));
        node
    }

    fn setup(&mut self, node: usize) -> &mut Setup {
        self.nodes[node].setup.as_mut().unwrap()
    }

    /// This rank never starts.
    fn withhold(&mut self, node: usize) {
        self.nodes[node].setup = None;
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.events
            .push(Reverse((time, self.count, self.bodies.len())));
        self.count += 1;
        self.bodies.push(Some(event));
    }

    fn soon(&mut self, event: Event) {
        let at = self.now + self.random.delay(ms(2));
        self.at(at, event);
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        while let Some(Reverse((time, _, body))) = self.events.pop() {
            self.now = time;
            let event = self.bodies[body].take().unwrap();
            self.handle(event);
            assert!(
                self.count < 20_000_000,
                "the simulation does not come to rest"
            );
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Start(node) => {
                if let Some(setup) = self.nodes[node].setup.take() {
                    self.nodes[node].machine = Some(Machine::new(setup));
                    self.act(node);
                }
            }
            Event::Die(node) => {
                self.nodes[node].over = true;
                self.hang_up(node);
            }
            Event::Fail(node, error) => self.with(node, |machine, _| machine.fail(error)),
            Event::Tick(node) => self.with(node, Machine::tick),
            Event::Look { node, rank, until } => match self.store.get(&rank).cloned() {
                Some(value) => self.with(node, |machine, now| machine.found(now, &value)),
                None if until <= now => self.with(node, Machine::absent),
                None => self.at((now + ms(1)).min(until), Event::Look { node, rank, until }),
            },
            Event::Dial {
                node,
                link,
                address,
            } => self.connect(node, link, address),
            Event::Dialed((node, link)) => {
                self.with(node, |machine, now| machine.dialed(now, link));
            }
            Event::Bytes((node, link), bytes) => {
                self.with(node, |machine, now| machine.received(now, link, &bytes));
            }
            Event::Closed((node, link)) => {
                self.nodes[node].peers.remove(&link);
                self.with(node, |machine, now| machine.closed(now, link));
            }
            Event::Stray { node, bytes } => {
                let Some(link) = self.accept(node, None) else {
                    return;
                };
                self.soon(Event::Bytes((node, link), bytes));
            }
        }
    }

    /// Lets a node's machine see an event, with the node's own clock, and does what it asks for.
    fn with(&mut self, node: usize, event: impl FnOnce(&mut Machine, Duration)) {
        let now = self.now.saturating_sub(self.nodes[node].started);
        if self.nodes[node].over {
            return;
        }
        let Some(machine) = &mut self.nodes[node].machine else {
            return;
        };
        event(machine, now);
        self.act(node);
    }

    fn act(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].machine.as_mut().and_then(Machine::action) {
            match action {
                Action::Publish { value } => {
                    self.store.insert(self.nodes[node].rank, value);
                }
                Action::Fetch { rank, patience } => {
                    self.nodes[node].looks += 1;
                    let until = self.now + patience;
                    self.soon(Event::Look { node, rank, until });
                }
                Action::Dial { link, address } => self.soon(Event::Dial {
                    node,
                    link,
                    address,
                }),
                Action::Send { link, bytes } => self.send(node, link, &bytes),
                Action::Close { link } => self.hang_up_one(node, link),
            }
        }
        let this = &mut self.nodes[node];
        let Some(machine) = &this.machine else { return };
        if machine.outcome().is_some() {
            this.over = true;
            return self.hang_up(node);
        }
        let at = this.started + machine.wake_at();
        self.at(
            at.max(self.now + Duration::from_micros(1)),
            Event::Tick(node),
        );
    }

    fn accept(&mut self, node: usize, peer: Option<End>) -> Option<Link> {
        let now = self.now;
        let this = &mut self.nodes[node];
        let machine = this.machine.as_mut().filter(|_| !this.over)?;
        let link = machine.accepted(now.saturating_sub(this.started));
        this.peers.insert(link, (peer, now));
        self.act(node);
        Some(link)
    }

    fn connect(&mut self, node: usize, link: Link, address: SocketAddr) {
        let there = node_at(address);
        let accepted = self
            .nodes
            .get(there)
            .is_some()
            .then(|| self.accept(there, Some((node, link))));
        match accepted.flatten() {
            Some(other) if !self.nodes[node].over => {
                let now = self.now;
                self.nodes[node]
                    .peers
                    .insert(link, (Some((there, other)), now));
                self.soon(Event::Dialed((node, link)));
            }
            Some(other) => self.soon(Event::Closed((there, other))),
            None => self.soon(Event::Closed((node, link))),
        }
    }

    /// When something sent now on a connection arrives: after all that was sent before.
    fn arrival(&mut self, node: usize, link: Link) -> Option<(End, Duration)> {
        let at = self.now + self.random.delay(ms(3));
        let (peer, last) = self.nodes[node].peers.get_mut(&link)?;
        *last = at.max(*last + Duration::from_nanos(1));
        peer.map(|peer| (peer, *last))
    }

    fn send(&mut self, node: usize, link: Link, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let whole = self.random.below(4) > 0;
            let length = if whole {
                rest.len()
            } else {
                1 + self.random.below(rest.len() as u64) as usize
            };
            let (chunk, tail) = rest.split_at(length);
            rest = tail;
            if let Some((end, at)) = self.arrival(node, link) {
                self.at(at, Event::Bytes(end, chunk.to_vec()));
            }
        }
    }

    fn hang_up_one(&mut self, node: usize, link: Link) {
        if let Some((end, at)) = self.arrival(node, link) {
            self.at(at, Event::Closed(end));
        }
        self.nodes[node].peers.remove(&link);
    }

    fn hang_up(&mut self, node: usize) {
        let links: Vec<Link> = self.nodes[node].peers.keys().copied().collect();
        links
            .into_iter()
            .for_each(|link| self.hang_up_one(node, link));
    }

    /// How joining ended on each process that started.
    fn outcomes(self) -> Vec<(usize, Result<Table>)> {
        let ended = |(node, this): (usize, Node)| {
            this.machine.map(|machine| (node, machine.into_outcome()))
        };
        self.nodes
            .into_iter()
            .enumerate()
            .filter_map(ended)
            .collect()
    }
}

/// Runs `test` with many seeds and names the one that fails.
fn with_seeds(count: u64, test: impl Fn(u64, &mut Random)) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let mut seeds = Random(now.as_nanos() as u64 | 1);
    for _ in 0..count {
        let seed = seeds.next();
        let run = std::panic::AssertUnwindSafe(|| test(seed, &mut Random(seed | 1)));
        let outcome = std::panic::catch_unwind(run);
        assert!(outcome.is_ok(), "seed {seed:#x}");
    }
}

fn some_size(random: &mut Random) -> u32 {
    [2, 3, 16, 17, 18, 33, 100, 273, 300][random.below(9) as usize]
}

fn numbers(ranks: &[GroupRank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.get()).collect()
}

/// All outcomes are this one failure.
fn assert_failed(outcomes: &[(usize, Result<Table>)], kind: ErrorKind, peers: &[u32]) {
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

fn assert_joined(outcomes: &[(usize, Result<Table>)]) {
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
    simulation.setup(2).listening = None;
    simulation.withhold(2);
    // It has left its key behind.
    let dead = wire::key_value(&[9; 16], address_of(59_999));
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
                0 => wire::key_value(&[9; 16], address_of(59_999)),
                1 => wire::key_value(&[9; 16], address_of(0)),
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
    let mut simulation = Simulation::new(11, 3000, ms(900));
    simulation.run();
    assert_joined(&simulation.outcomes());
}

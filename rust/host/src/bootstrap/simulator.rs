//! Ranks, store and network in one thread and in virtual time, driving the shipping protocol.
//!
//! Bytes of one direction of a connection keep their order and are cut at random; everything else
//! is delayed at random. A seed decides all of it. Must not know sockets, threads or real time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{GroupRank, ProcessId};

use super::machine::{Action, Door, Link, Machine, Meeting, Setup};
use super::{Member, Table};
use crate::location::Location;
use crate::random::{Random, rounds};

const LIMIT: Duration = Duration::from_secs(20);

mod nodes;
mod scenarios;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn delay(random: &mut Random, longest: Duration) -> Duration {
    Duration::from_nanos(random.below(longest.as_nanos() as u64 + 1))
}

/// One end of a connection; strangers have no machine.
type End = (usize, Link);

#[derive(Debug)]
enum Event {
    Start(usize),
    Die(usize),
    /// does not run for so long
    Sleep(usize, Duration),
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
    /// a node comes to the meeting of its machine
    Meet(End),
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
    /// which machine it is on
    computer: u64,
    meeting: Option<Meeting>,
    looks: usize,
    published: usize,
    /// when joining ended here
    ended: Duration,
    /// accepts connections and never says anything
    silent: bool,
    /// until when it does not run
    asleep: Duration,
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
    /// who hosts the meeting of this name on this machine
    hosts: HashMap<(u64, [u8; 16]), usize>,
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
        location: Location::default(),
        unix: format!("node-{node}"),
        addresses: vec![address_of(node)],
        nonce: [node as u8; 16],
    }
}

impl Simulation {
    /// `size` ranks that start within `spread`.
    fn new(seed: u64, size: u32, spread: Duration) -> Self {
        let mut simulation = Self {
            random: Random::new(seed),
            now: Duration::ZERO,
            count: 0,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            nodes: Vec::new(),
            store: HashMap::new(),
            hosts: HashMap::new(),
        };
        for rank in 0..size {
            let at = delay(&mut simulation.random, spread);
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
            meeting: None,
            limit: LIMIT,
        };
        self.nodes.push(Node {
            setup: Some(setup),
            machine: None,
            started: at,
            over: false,
            rank,
            computer: node as u64,
            meeting: None,
            looks: 0,
            published: 0,
            ended: Duration::ZERO,
            silent: false,
            asleep: Duration::ZERO,
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
        let at = self.now + delay(&mut self.random, ms(2));
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
        if let Some(until) = self.sleeps(&event) {
            return self.at(until, event);
        }
        match event {
            Event::Start(node) => {
                if let Some(setup) = self.nodes[node].setup.take() {
                    self.nodes[node].meeting = setup.meeting;
                    self.nodes[node].machine = Some(Machine::new(setup));
                    self.act(node);
                }
            }
            Event::Die(node) => {
                self.nodes[node].over = true;
                self.hang_up(node);
            }
            Event::Sleep(node, length) => self.nodes[node].asleep = now + length,
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
            Event::Meet(end) => self.meet(end),
            Event::Stray { node, bytes } => {
                let hosts = self.hosts.values().any(|host| *host == node);
                let door = if hosts && self.random.below(2) == 0 {
                    Door::Local
                } else {
                    Door::Remote
                };
                let Some(link) = self.accept(node, door, None) else {
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
                Action::Meet { link } => self.soon(Event::Meet((node, link))),
                Action::Listen => {
                    if let Some(machine) = &mut self.nodes[node].machine {
                        machine.listening(address_of(node));
                    }
                }
                Action::Publish { rank, value } => {
                    self.nodes[node].published += 1;
                    self.store.insert(rank, value);
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
            this.ended = self.now;
            return self.hang_up(node);
        }
        let at = this.started + machine.wake_at();
        self.at(
            at.max(self.now + Duration::from_micros(1)),
            Event::Tick(node),
        );
    }

    fn accept(&mut self, node: usize, door: Door, peer: Option<End>) -> Option<Link> {
        let now = self.now;
        let this = &mut self.nodes[node];
        let machine = this.machine.as_mut().filter(|_| !this.over)?;
        let link = machine.accepted(now.saturating_sub(this.started), door);
        this.peers.insert(link, (peer, now));
        self.act(node);
        Some(link)
    }

    /// When the node that would see `event` runs again, if it does not now.
    fn sleeps(&self, event: &Event) -> Option<Duration> {
        let node = match event {
            Event::Start(node) | Event::Die(node) | Event::Fail(node, _) | Event::Tick(node) => {
                *node
            }
            Event::Sleep(..) => return None,
            Event::Look { node, .. } | Event::Dial { node, .. } | Event::Stray { node, .. } => {
                *node
            }
            Event::Dialed((node, _))
            | Event::Meet((node, _))
            | Event::Bytes((node, _), _)
            | Event::Closed((node, _)) => *node,
        };
        let asleep = self.nodes[node].asleep;
        (self.now < asleep).then_some(asleep)
    }

    fn meet(&mut self, (node, link): End) {
        let this = &self.nodes[node];
        let Some(meeting) = this.meeting.filter(|_| !this.over) else {
            return;
        };
        let place = (this.computer, meeting.name);
        let host = self.hosts.get(&place).copied();
        match host.filter(|host| !self.nodes[*host].over) {
            Some(host) => self.link_up(node, link, host, Door::Local),
            None => {
                self.hosts.insert(place, node);
                self.with(node, Machine::hosting);
            }
        }
    }

    fn connect(&mut self, node: usize, link: Link, address: SocketAddr) {
        self.link_up(node, link, node_at(address), Door::Remote);
    }

    fn link_up(&mut self, node: usize, link: Link, there: usize, door: Door) {
        if self.nodes.get(there).is_some_and(|node| node.silent) {
            self.nodes[node].peers.insert(link, (None, self.now));
            return self.soon(Event::Dialed((node, link)));
        }
        let accepted = self
            .nodes
            .get(there)
            .is_some()
            .then(|| self.accept(there, door, Some((node, link))));
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
        let at = self.now + delay(&mut self.random, ms(3));
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

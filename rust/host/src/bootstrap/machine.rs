//! The protocol of joining, without sockets, store or clock: events in, actions out.
//!
//! Ranks of one machine form a node, and nodes form a heap with sixteen children each (`tree`). The
//! ranks of a node meet at a local socket, without the store: the first to come there hosts, and the
//! others report to it. For the node it finds the key of the node above, dials it, proves with the
//! nonce that it has read the key, and reports; records travel up as they come, so the root knows at
//! any time who is missing. A rank that cannot meet the others of its node reports through the store
//! like a node of its own (`upward`): nothing but the number of requests depends on meeting.
//!
//! The root alone decides how joining ends: with the table, when all have come and believe the same,
//! else with one failure. Its word travels down, and a rank that has it is done. A rank whose parent
//! is late turns to the parent's parent, so that only the late rank is missing. Must not know how
//! time passes or bytes travel.

mod ending;
mod keys;
mod root;
mod tree;
mod upward;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::stable_hash;

use super::wire::{self, Greeting, Hello, Message, Nonce};
use super::{Member, Table};
use tree::Tree;
use upward::{Nearby, Upward};

/// How long a connection may take to greet, and a parent to answer.
const GREETING: Duration = Duration::from_secs(10);
/// How long a rank whose deadline has passed, or that has told of a failure, waits for the root.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections that have not greeted yet; the oldest gives way.
const STRANGERS: usize = 64;

/// A connection, numbered by the machine.
pub(super) type Link = u64;

/// What the driver is to do.
#[derive(Debug)]
pub(super) enum Action {
    /// Meet the ranks of this machine under the name of the setup: report `hosting` when it is free
    /// and now this rank's, `dialed` when connected to the rank that has it, `closed` when the
    /// connection failed, `alone` when there can be no meeting.
    Meet { link: Link },
    /// Accept connections from other machines, and report `listening`.
    Listen,
    /// Store this value under the key of this rank.
    Publish { rank: u32, value: Vec<u8> },
    /// Look for the key of this rank, and report `found`, or `absent` after `patience`.
    Fetch { rank: u32, patience: Duration },
    /// Connect, and report `dialed` or `closed`.
    Dial { link: Link, address: SocketAddr },
    /// Send, after what was sent before.
    Send { link: Link, bytes: Vec<u8> },
    /// Close, after what was sent before.
    Close { link: Link },
}

/// What a rank knows when it starts.
pub(super) struct Setup {
    /// this rank
    pub(super) rank: u32,
    /// number of ranks
    pub(super) size: u32,
    /// what every rank must believe alike
    pub(super) facts: String,
    /// hashed into the communicator's id
    pub(super) name: String,
    /// this rank's record
    pub(super) member: Member,
    /// fresh random bytes: the secret of this rank's key and, on the root, the seed of the id
    pub(super) nonce: Nonce,
    /// where it meets the ranks of its machine, if it is to know any
    pub(super) meeting: Option<Meeting>,
    /// how long joining may take
    pub(super) limit: Duration,
}

/// Where the ranks of a node find one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// ranks per node, at least 2, a divisor of the number of ranks
    pub(super) local: u32,
    /// name of the local socket; it is no secret, and what keeps others out is the kernel's word for
    /// who connects
    pub(super) name: Nonce,
}

/// Where a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// at the address in the store
    Remote,
    /// at the local socket
    Local,
}

/// A connection from below.
enum Lower {
    /// has not proved that it has read the key
    Stranger {
        since: Duration,
        door: Door,
        bytes: Vec<u8>,
    },
    /// a rank that is welcome here; until it has reported it may still go elsewhere
    Child {
        rank: u32,
        door: Door,
        reported: bool,
        bytes: Vec<u8>,
    },
}

/// How far this rank's own joining is.
enum Phase {
    /// not all have come
    Gathering,
    /// has told the root of this failure, or of its deadline, and waits for the root's word
    Appealing { fallback: Error, until: Duration },
    /// over
    Ended(Result<Table>),
}

/// One rank's side of joining. Times count from its start.
pub(super) struct Machine {
    setup: Setup,
    tree: Tree,
    upward: Upward,
    nearby: Nearby,
    /// whether it acts for its node: one process does, of the node whose first rank it has
    leads: bool,
    keys: keys::Keys,
    lower: BTreeMap<Link, Lower>,
    /// bytes from above that are no whole message yet
    from_above: Vec<u8>,
    search: upward::Search,
    /// records and facts for the root, of this rank and those below
    gathered: Vec<Vec<u8>>,
    phase: Phase,
    next_link: Link,
    actions: VecDeque<Action>,
}

/// What a record says of the facts of its rank.
fn digest(facts: &str) -> u64 {
    stable_hash(&[facts.as_bytes()])
}

impl Machine {
    /// Starts joining: meets the ranks of its machine, or looks for the parent's key.
    pub(super) fn new(setup: Setup) -> Self {
        let Setup {
            rank,
            ref facts,
            ref member,
            meeting,
            ..
        } = setup;
        let record = Message::Record {
            rank,
            facts: digest(facts),
            member: member.clone(),
        };
        let mut machine = Self {
            tree: Tree::of_nodes(meeting.map_or(1, |meeting| meeting.local)),
            upward: Upward::Resting {
                until: Duration::ZERO,
            },
            nearby: meeting.map_or(Nearby::Alone, Nearby::Meeting),
            leads: false,
            keys: keys::Keys::default(),
            lower: BTreeMap::new(),
            from_above: Vec::new(),
            search: upward::Search::default(),
            gathered: vec![record.encode()],
            phase: Phase::Gathering,
            next_link: 0,
            actions: VecDeque::new(),
            setup,
        };
        machine.start();
        machine.judge(Duration::ZERO);
        machine
    }

    /// The next thing to do.
    pub(super) fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How joining ended, once it has. Actions may be left.
    pub(super) fn outcome(&self) -> Option<&Result<Table>> {
        match &self.phase {
            Phase::Ended(outcome) => Some(outcome),
            Phase::Gathering | Phase::Appealing { .. } => None,
        }
    }

    /// How joining ended; an error when it has not.
    pub(super) fn into_outcome(self) -> Result<Table> {
        match self.phase {
            Phase::Ended(outcome) => outcome,
            Phase::Appealing { fallback, .. } => Err(fallback),
            Phase::Gathering => Err(Error::new(ErrorKind::State, "joining was given up")),
        }
    }

    /// When `tick` is due at the latest.
    pub(super) fn wake_at(&self) -> Duration {
        let phase = match &self.phase {
            Phase::Gathering => self.setup.limit,
            Phase::Appealing { until, .. } => *until,
            Phase::Ended(_) => return Duration::ZERO,
        };
        let strangers = self.lower.values().filter_map(|lower| match lower {
            Lower::Stranger { since, .. } => Some(*since + GREETING),
            Lower::Child { .. } => None,
        });
        strangers
            .chain(self.upward_due())
            .fold(phase, Duration::min)
    }

    /// Somebody has connected.
    pub(super) fn accepted(&mut self, now: Duration, door: Door) -> Link {
        let is_stranger = |lower: &Lower| matches!(lower, Lower::Stranger { .. });
        if self
            .lower
            .values()
            .filter(|lower| is_stranger(lower))
            .count()
            >= STRANGERS + self.tree.local() as usize
        {
            let oldest = self.lower.iter().find(|(_, lower)| is_stranger(lower));
            if let Some(link) = oldest.map(|(link, _)| *link) {
                self.drop_lower(link);
            }
        }
        let link = self.new_link();
        self.lower.insert(
            link,
            Lower::Stranger {
                since: now,
                door,
                bytes: Vec::new(),
            },
        );
        link
    }

    /// Bytes came.
    pub(super) fn received(&mut self, now: Duration, link: Link, bytes: &[u8]) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        if self.link_above() == Some(link) {
            self.from_above.extend(bytes);
            return self.read_above(now);
        }
        match self.lower.get_mut(&link) {
            Some(Lower::Stranger { bytes: buffer, .. }) => {
                buffer.extend(bytes);
                self.greet(now, link);
            }
            Some(Lower::Child { bytes: buffer, .. }) => {
                buffer.extend(bytes);
                self.read_child(now, link);
            }
            None => {}
        }
    }

    /// A connection has ended, or could not be made.
    pub(super) fn closed(&mut self, now: Duration, closed: Link) {
        self.closed_above(now, closed);
        if let Some(Lower::Child {
            rank,
            reported: true,
            ..
        }) = self.lower.remove(&closed)
        {
            let error = self.lost(rank);
            self.appeal(now, error, Message::Failure);
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Duration) {
        self.drop_silent(now);
        self.tick_above(now);
        self.judge(now);
        match &self.phase {
            Phase::Gathering if self.setup.limit <= now => self.give_up(now),
            Phase::Appealing { until, fallback } if *until <= now => {
                let error = fallback.clone();
                self.end(Err(error));
            }
            _ => {}
        }
    }

    fn new_link(&mut self) -> Link {
        self.next_link += 1;
        self.next_link
    }

    fn drop_lower(&mut self, link: Link) {
        self.lower.remove(&link);
        self.actions.push_back(Action::Close { link });
    }

    fn drop_silent(&mut self, now: Duration) {
        let silent = |lower: &Lower| match lower {
            Lower::Stranger { since, .. } => *since + GREETING <= now,
            Lower::Child { .. } => false,
        };
        let links: Vec<Link> = self
            .lower
            .iter()
            .filter(|(_, lower)| silent(lower))
            .map(|(link, _)| *link)
            .collect();
        links.into_iter().for_each(|link| self.drop_lower(link));
    }

    /// Looks at what a stranger has said so far.
    fn greet(&mut self, now: Duration, link: Link) {
        let Some(Lower::Stranger { bytes, door, .. }) = self.lower.get_mut(&link) else {
            return;
        };
        let door = *door;
        let first = self.tree.first(self.setup.rank);
        let nonce = match (door, &self.setup.meeting) {
            (Door::Local, Some(meeting)) => &meeting.name,
            _ => &self.setup.nonce,
        };
        match Hello::read(bytes, nonce) {
            Greeting::Incomplete => {}
            Greeting::Stranger => self.drop_lower(link),
            Greeting::Hello(hello, _)
                if door == Door::Local && self.tree.first(hello.rank) != first =>
            {
                self.drop_lower(link);
            }
            Greeting::Hello(hello, length) => {
                let rest = bytes.split_off(length);
                self.lower.insert(
                    link,
                    Lower::Child {
                        rank: hello.rank,
                        door,
                        reported: false,
                        bytes: rest,
                    },
                );
                self.actions.push_back(Action::Send {
                    link,
                    bytes: Message::Welcome {
                        rank: self.setup.rank,
                    }
                    .encode(),
                });
                self.tell_shape(link);
                self.fill_in();
                if hello.facts != self.setup.facts {
                    let message = Message::Facts {
                        rank: hello.rank,
                        facts: hello.facts,
                    };
                    self.pass_up(now, message);
                }
                self.read_child(now, link);
            }
        }
    }

    fn read_child(&mut self, now: Duration, link: Link) {
        while let Some(Lower::Child {
            bytes, reported, ..
        }) = self.lower.get_mut(&link)
        {
            let mut buffer = mem::take(bytes);
            let message = Message::take(&mut buffer, self.setup.size as usize);
            *bytes = buffer;
            // Whoever knows the nonce is a rank: if it cannot be understood, that is a failure.
            *reported |= !matches!(message, Ok(None));
            match message {
                Ok(Some(message)) => self.heed_child(now, link, message),
                Ok(None) => return,
                Err(wire::Garbage) => {
                    self.actions.push_back(Action::Close { link });
                    return self.closed(now, link);
                }
            }
        }
    }

    fn heed_child(&mut self, now: Duration, link: Link, message: Message) {
        match message {
            Message::Record { .. } | Message::Facts { .. } => self.pass_up(now, message),
            Message::GaveUp if self.link_above().is_some() => self.send_up(&Message::GaveUp),
            // Whoever is not connected to the root cannot hear from it what to say.
            Message::GaveUp if matches!(self.phase, Phase::Gathering) => self.give_up(now),
            Message::GaveUp => {}
            Message::Failure(error) => self.appeal(now, error, Message::Failure),
            Message::Leads => self.yielded(now, link),
            // These travel down.
            Message::Welcome { .. } | Message::Shape { .. } | Message::Table { .. } => {}
        }
    }

    /// Passes a record or facts towards the root.
    fn pass_up(&mut self, now: Duration, message: Message) {
        if let Upward::Root(root) = &mut self.upward {
            root.take(now, message);
            return self.judge(now);
        }
        // What is said before the welcome is not a report yet.
        if let Upward::Joined { .. } = self.upward {
            self.send_up(&message);
        }
        self.gathered.push(message.encode());
    }

    fn send_up(&mut self, message: &Message) {
        if let Some(link) = self.link_above() {
            self.actions.push_back(Action::Send {
                link,
                bytes: message.encode(),
            });
        }
    }
}

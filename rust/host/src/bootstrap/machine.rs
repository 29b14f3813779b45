//! The protocol of joining, without sockets, store or clock: events in, actions out.
//!
//! Ranks form a heap with sixteen children each. A rank finds its parent's key, dials it, proves
//! with the nonce that it has read the key, and reports itself; records travel up as they come, so
//! the root knows at any time who is missing. The root alone decides how joining ends: with the
//! table, when all have come and believe the same, else with one failure. Its word travels down,
//! and a rank that has it is done. A rank whose parent is late turns to the parent's parent, so that
//! only the late rank is missing. Must not know how time passes or bytes travel.

mod ending;
mod root;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::stable_hash;

use super::wire::{self, Greeting, Hello, Message, Nonce};
use super::{Member, Table};
use root::Root;

/// Children per rank.
const WIDTH: u32 = 16;
/// How long a connection may take to greet, and a parent to answer.
const GREETING: Duration = Duration::from_secs(10);
/// How long a rank whose deadline has passed, or that has told of a failure, waits for the root.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before a key that led nowhere is read again; it doubles, up to `LONGEST_REST`.
const REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// How long one look at the store may take: in between, the rank serves those below it.
const LOOK: Duration = Duration::from_secs(1);
/// Connections that have not greeted yet; the oldest gives way.
const STRANGERS: usize = 64;

/// A connection, numbered by the machine.
pub(super) type Link = u64;

/// What the driver is to do.
#[derive(Debug)]
pub(super) enum Action {
    /// Store this value under the own key.
    Publish { value: Vec<u8> },
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
    /// where this rank listens, if it has children
    pub(super) listening: Option<SocketAddr>,
    /// how long joining may take
    pub(super) limit: Duration,
}

/// Where a rank stands with those above it.
enum Upward {
    /// there is nobody above
    Root(Root),
    /// looking for the key of `rank`
    Seeking { rank: u32 },
    /// will look again
    Resting { until: Duration },
    /// the connection to `rank` is on its way
    Dialing {
        rank: u32,
        link: Link,
        nonce: Nonce,
        since: Duration,
    },
    /// has greeted `rank`
    Greeting {
        rank: u32,
        link: Link,
        since: Duration,
    },
    /// reports to `rank`
    Joined { rank: u32, link: Link },
}

/// A connection from below.
enum Lower {
    /// has not proved that it has read the key
    Stranger { since: Duration, bytes: Vec<u8> },
    /// a rank that reports here
    Child { rank: u32, bytes: Vec<u8> },
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
    upward: Upward,
    lower: BTreeMap<Link, Lower>,
    /// bytes from above that are no whole message yet
    from_above: Vec<u8>,
    /// whom `Fetch` asked for last
    sought: u32,
    /// how long to rest the next time
    rest: Duration,
    /// records and facts for the root, of this rank and those below
    gathered: Vec<Vec<u8>>,
    phase: Phase,
    next_link: Link,
    actions: VecDeque<Action>,
}

/// The rank to which `rank` reports.
pub(super) fn parent(rank: u32) -> Option<u32> {
    rank.checked_sub(1).map(|before| before / WIDTH)
}

/// What a record says of the facts of its rank.
fn digest(facts: &str) -> u64 {
    stable_hash(&[facts.as_bytes()])
}

/// Whether any rank reports to `rank`.
pub(super) fn is_inner(rank: u32, size: u32) -> bool {
    u64::from(rank) * u64::from(WIDTH) + 1 < u64::from(size)
}

impl Machine {
    /// Starts joining: publishes the own key and looks for the parent's.
    pub(super) fn new(setup: Setup) -> Self {
        let above = parent(setup.rank);
        let upward = match above {
            None => Upward::Root(Root::new(&setup)),
            Some(rank) => Upward::Seeking { rank },
        };
        let mut machine = Self {
            upward,
            lower: BTreeMap::new(),
            from_above: Vec::new(),
            sought: 0,
            rest: REST,
            gathered: Vec::new(),
            phase: Phase::Gathering,
            next_link: 0,
            actions: VecDeque::new(),
            setup,
        };
        if let Some(address) = machine.setup.listening {
            let value = wire::key_value(&machine.setup.nonce, address);
            machine.actions.push_back(Action::Publish { value });
        }
        machine.seek(Duration::ZERO);
        let Setup {
            rank,
            ref facts,
            ref member,
            ..
        } = machine.setup;
        let record = Message::Record {
            rank,
            facts: digest(facts),
            member: member.clone(),
        };
        machine.gathered.push(record.encode());
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
        let upward = match &self.upward {
            Upward::Root(root) => root.settles_at(),
            Upward::Resting { until } => Some(*until),
            Upward::Dialing { since, .. } | Upward::Greeting { since, .. } => {
                Some(*since + GREETING)
            }
            Upward::Seeking { .. } | Upward::Joined { .. } => None,
        };
        let strangers = self.lower.values().filter_map(|lower| match lower {
            Lower::Stranger { since, .. } => Some(*since + GREETING),
            Lower::Child { .. } => None,
        });
        strangers.chain(upward).fold(phase, Duration::min)
    }

    /// The key asked for has this value.
    pub(super) fn found(&mut self, now: Duration, value: &[u8]) {
        let Upward::Seeking { rank } = self.upward else {
            return;
        };
        // A key that cannot be read is as good as one of a rank that is gone.
        let Some((nonce, address)) = wire::read_key_value(value) else {
            return self.rest(now);
        };
        let link = self.new_link();
        self.upward = Upward::Dialing {
            rank,
            link,
            nonce,
            since: now,
        };
        self.actions.push_back(Action::Dial { link, address });
    }

    /// The key asked for is not there yet.
    pub(super) fn absent(&mut self, now: Duration) {
        if let Upward::Seeking { .. } = self.upward {
            self.seek(now);
        }
    }

    /// A connection asked for is there.
    pub(super) fn dialed(&mut self, now: Duration, dialed: Link) {
        match self.upward {
            Upward::Dialing {
                rank, link, nonce, ..
            } if link == dialed => {
                self.upward = Upward::Greeting {
                    rank,
                    link,
                    since: now,
                };
                self.from_above.clear();
                let Setup {
                    rank, ref facts, ..
                } = self.setup;
                let mut bytes = Hello {
                    nonce,
                    rank,
                    facts: facts.clone(),
                }
                .encode();
                self.gathered
                    .iter()
                    .for_each(|message| bytes.extend(message));
                self.actions.push_back(Action::Send { link, bytes });
            }
            _ => self.actions.push_back(Action::Close { link: dialed }),
        }
    }

    /// Somebody has connected.
    pub(super) fn accepted(&mut self, now: Duration) -> Link {
        let is_stranger = |lower: &Lower| matches!(lower, Lower::Stranger { .. });
        if self
            .lower
            .values()
            .filter(|lower| is_stranger(lower))
            .count()
            >= STRANGERS
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
        match self.upward {
            Upward::Dialing { link, .. } | Upward::Greeting { link, .. } if link == closed => {
                self.rest(now);
            }
            Upward::Joined { rank, link } if link == closed => {
                let error = self.lost(rank);
                self.end(Err(error));
            }
            _ => {}
        }
        if let Some(Lower::Child { rank, .. }) = self.lower.remove(&closed) {
            let error = self.lost(rank);
            self.appeal(now, error, Message::Failure);
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Duration) {
        self.drop_silent(now);
        match self.upward {
            Upward::Resting { until } if until <= now => self.seek(now),
            Upward::Dialing { link, since, .. } | Upward::Greeting { link, since, .. }
                if since + GREETING <= now =>
            {
                self.actions.push_back(Action::Close { link });
                self.rest(now);
            }
            _ => {}
        }
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

    fn link_above(&self) -> Option<Link> {
        match self.upward {
            Upward::Greeting { link, .. } | Upward::Joined { link, .. } => Some(link),
            _ => None,
        }
    }

    /// Looks for a key again: the parent's while it may still come, then those of all ranks above
    /// in turn.
    fn seek(&mut self, now: Duration) {
        let Some(own) = parent(self.setup.rank) else {
            return;
        };
        let late_at = self.setup.limit.mul_f64(0.75);
        let (rank, patience) = if now < late_at {
            (own, LOOK.min(late_at - now))
        } else {
            (
                parent(self.sought).unwrap_or(own),
                LOOK.min(self.setup.limit / 32),
            )
        };
        self.sought = rank;
        self.upward = Upward::Seeking { rank };
        self.actions.push_back(Action::Fetch { rank, patience });
    }

    fn rest(&mut self, now: Duration) {
        self.upward = Upward::Resting {
            until: now + self.rest,
        };
        self.rest = LONGEST_REST.min(self.rest * 2);
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
        let Some(Lower::Stranger { bytes, .. }) = self.lower.get_mut(&link) else {
            return;
        };
        match Hello::read(bytes, &self.setup.nonce) {
            Greeting::Incomplete => {}
            Greeting::Stranger => self.drop_lower(link),
            Greeting::Hello(hello, length) => {
                let rest = bytes.split_off(length);
                self.lower.insert(
                    link,
                    Lower::Child {
                        rank: hello.rank,
                        bytes: rest,
                    },
                );
                self.actions.push_back(Action::Send {
                    link,
                    bytes: Message::Welcome.encode(),
                });
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
        while let Some(Lower::Child { bytes, .. }) = self.lower.get_mut(&link) {
            let mut buffer = mem::take(bytes);
            let message = Message::take(&mut buffer, self.setup.size as usize);
            *bytes = buffer;
            match message {
                Ok(Some(message)) => self.heed_child(now, message),
                Ok(None) => return,
                // It has shown the nonce, so it is a rank, of a build that speaks another way.
                Err(wire::Garbage) => {
                    self.actions.push_back(Action::Close { link });
                    return self.closed(now, link);
                }
            }
        }
    }

    fn heed_child(&mut self, now: Duration, message: Message) {
        match message {
            Message::Record { .. } | Message::Facts { .. } => self.pass_up(now, message),
            Message::GaveUp if matches!(self.upward, Upward::Root(_)) => self.give_up(now),
            Message::GaveUp => self.send_up(&Message::GaveUp),
            Message::Failure(error) => self.appeal(now, error, Message::Failure),
            // These travel down.
            Message::Welcome | Message::Table { .. } => {}
        }
    }

    fn read_above(&mut self, now: Duration) {
        while let Some(link) = self.link_above() {
            match Message::take(&mut self.from_above, self.setup.size as usize) {
                Ok(Some(message)) => self.heed_above(now, link, message),
                Ok(None) => return,
                Err(wire::Garbage) => {
                    self.actions.push_back(Action::Close { link });
                    return self.closed(now, link);
                }
            }
        }
    }

    fn heed_above(&mut self, now: Duration, link: Link, message: Message) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        match (message, &self.upward) {
            (Message::Welcome, Upward::Greeting { rank, .. }) => {
                self.upward = Upward::Joined { rank: *rank, link };
            }
            (Message::Failure(error), Upward::Joined { .. }) => self.end(Err(error)),
            (Message::Table { seed, members }, Upward::Joined { .. }) => self.arrive(seed, members),
            // A parent that does not welcome first is none.
            (_, Upward::Greeting { .. }) => {
                self.actions.push_back(Action::Close { link });
                self.rest(now);
            }
            _ => {}
        }
    }

    /// Passes a record or facts towards the root.
    fn pass_up(&mut self, now: Duration, message: Message) {
        if let Upward::Root(root) = &mut self.upward {
            root.take(now, message);
            return self.judge(now);
        }
        self.send_up(&message);
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

//! The protocol of joining for `crate::fuzzing`: its messages, and a rank whose peers, store and
//! clock do whatever a fuzzer wants. Must not know sockets or threads.

use std::net::SocketAddr;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind};
use ferrocomm_core::ids::ProcessId;

use super::Member;
use super::machine::{Action, Door, Link, Machine, Meeting, Setup};
use super::wire::{self, Garbage, Greeting, Hello, Message};
use crate::fuzzing::Input;
use crate::location::Location;

/// The secret that the fuzzer's ranks know, and the name under which they meet on a machine.
const NONCE: [u8; 16] = *b"the secret here!";
const FACTS: &str = "facts";
/// More than a rank sends at once, in groups as small as these.
const MUCH: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(20);

/// What connections and keys begin with, and the messages on them.
pub fn wire(bytes: &[u8]) {
    if let Some((nonce, local, address)) = wire::read_key_value(bytes) {
        assert_eq!(wire::key_value(&nonce, local, address), bytes);
    }
    if let Greeting::Hello(hello, length) = Hello::read(bytes, &NONCE) {
        assert_eq!(hello.encode(), bytes[..length]);
        assert!(hello.facts.len() <= wire::MAX_FACTS);
    }
    let mut rest = bytes.to_vec();
    loop {
        let before = rest.clone();
        match Message::take(&mut rest, 3) {
            Ok(Some(message)) => {
                let taken = before.len() - rest.len();
                assert_eq!(before[taken..], rest);
                there_and_back(&message, &before[..taken]);
            }
            // It waits for more: never for more than a group of three can have to say.
            Ok(None) => return assert!(rest.len() < 64 << 10 || rest == before),
            Err(Garbage) => return,
        }
    }
}

/// Asserts that `message`, read from `bytes`, is written as it was; of a failure, which is cut when
/// it is long, that it is when it is read again.
fn there_and_back(message: &Message, bytes: &[u8]) {
    let written = message.encode();
    if !matches!(message, Message::Failure(_)) {
        assert_eq!(written, bytes);
    }
    let Ok(Some(again)) = Message::take(&mut written.clone(), 3) else {
        panic!("a message is not read back: {message:?}");
    };
    assert_eq!(again.encode(), written);
}

/// A rank that joins.
pub fn machine(bytes: &[u8]) {
    let mut input = Input(bytes);
    let size = 1 + u32::from(input.byte()) % 40;
    let rank = u32::from(input.byte()) % size;
    // Ranks per node; a divisor of the size, as whoever sets it up makes sure.
    let local = 2 + u32::from(input.byte()) % 8;
    let meeting = Meeting { local, name: NONCE };
    let setup = Setup {
        rank,
        size,
        facts: FACTS.into(),
        name: "fuzzed".into(),
        member: member(rank),
        nonce: NONCE,
        meeting: size.is_multiple_of(local).then_some(meeting),
        limit: LIMIT,
    };
    let mut joining = Joining {
        machine: Machine::new(setup),
        now: Duration::ZERO,
        last: 0,
    };
    joining.settle();
    while !input.0.is_empty() {
        joining.event(&mut input);
        joining.settle();
    }
    joining.comes_to_an_end();
    if let Ok(table) = joining.machine.into_outcome() {
        assert_eq!(table.members.len(), size as usize);
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([1; 4], 1))
}

fn member(rank: u32) -> Member {
    Member {
        process: ProcessId([rank as u8; 16]),
        machine: 1,
        location: Location::default(),
        unix: format!("rank-{rank}"),
        addresses: vec![SocketAddr::from(([127, 0, 0, 1], 1))],
        nonce: NONCE,
    }
}

struct Joining {
    machine: Machine,
    now: Duration,
    /// the newest connection
    last: Link,
}

impl Joining {
    /// Lets one thing happen.
    fn event(&mut self, input: &mut Input<'_>) {
        let (kind, now) = (input.byte() % 17, self.now);
        let link = self.link(input);
        match kind {
            0 => self
                .machine
                .found(now, &wire::key_value(&NONCE, link as u32, address())),
            1 => {
                let length = input.byte().into();
                self.machine.found(now, input.take(length));
            }
            2 => self.machine.absent(now),
            3 => self.machine.dialed(now, link),
            4 => self.last = self.machine.accepted(now, Door::Remote),
            5 => self.machine.closed(now, link),
            6 => self.pass(Duration::from_millis((input.u32() % 20_000).into())),
            7 => {
                let length = usize::from(input.byte()) * 16;
                self.machine.received(now, link, input.take(length));
            }
            8 => self.machine.fail(Error::new(ErrorKind::Store, "no store")),
            9 => self.say(link, &hello(input)),
            10 => self.last = self.machine.accepted(now, Door::Local),
            11 => self.machine.hosting(now),
            12 => self.machine.alone(now),
            13 => self.machine.listening(address()),
            _ => self.say(link, &message(input)),
        }
    }

    fn link(&self, input: &mut Input<'_>) -> Link {
        self.last.saturating_sub(Link::from(input.byte()) % 8)
    }

    fn say(&mut self, link: Link, bytes: &[u8]) {
        // In two pieces: what has come half is kept.
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        self.machine.received(self.now, link, head);
        self.machine.received(self.now, link, tail);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.machine.tick(self.now);
        let awake = self.machine.wake_at();
        assert!(
            self.machine.outcome().is_some() || awake > self.now,
            "it would spin: at {:?} it wants to be woken at {awake:?}",
            self.now
        );
    }

    /// Does what the rank wants, and looks whether it may want that.
    fn settle(&mut self) {
        let mut sent = 0;
        while let Some(action) = self.machine.action() {
            match action {
                Action::Send { bytes, .. } => sent += bytes.len(),
                Action::Publish { value, .. } => assert!(wire::read_key_value(&value).is_some()),
                Action::Fetch { patience, .. } => assert!(patience <= LIMIT),
                Action::Dial { link, .. } | Action::Meet { link } => self.last = link,
                Action::Listen | Action::Close { .. } => {}
            }
        }
        assert!(sent <= MUCH, "{sent} bytes at once");
    }

    /// Whatever has happened: it ends, with a table or with words.
    fn comes_to_an_end(&mut self) {
        let end = self.now + LIMIT + LIMIT;
        while self.machine.outcome().is_none() {
            assert!(self.now < end, "it does not end");
            let due = self.machine.wake_at().saturating_sub(self.now);
            // A look at the store is never longer than this.
            self.machine.absent(self.now);
            self.pass(due.max(Duration::from_millis(1)));
            self.settle();
        }
        if let Some(Err(error)) = self.machine.outcome() {
            assert!(!error.what().is_empty());
        }
    }
}

fn hello(input: &mut Input<'_>) -> Vec<u8> {
    let facts = match input.byte() % 4 {
        0 => "others".to_owned(),
        _ => FACTS.to_owned(),
    };
    let hello = Hello {
        nonce: NONCE,
        rank: u32::from(input.byte()),
        facts,
    };
    hello.encode()
}

/// A message, sound or with a body that is not.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let rank = u32::from(input.byte());
    let message = match input.byte() % 10 {
        0 => Message::Welcome { rank },
        1 => Message::GaveUp,
        2 => Message::Failure(Error::new(ErrorKind::PeerLost, "lost")),
        3 => Message::Facts {
            rank,
            facts: "others".into(),
        },
        4 => Message::Table {
            seed: NONCE,
            members: (0..rank % 40).map(member).collect(),
        },
        5 => Message::Shape { local: rank },
        6 => Message::Leads,
        7 => {
            let length = usize::from(input.byte());
            let body = input.take(length);
            let mut bytes = vec![input.byte() % 10];
            bytes.extend((body.len() as u32).to_le_bytes());
            bytes.extend(body);
            return bytes;
        }
        _ => Message::Record {
            rank,
            facts: ferrocomm_core::ids::stable_hash(&[FACTS.as_bytes()]),
            member: member(rank),
        },
    };
    message.encode()
}

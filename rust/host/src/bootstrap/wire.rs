//! How joining ranks write what they tell one another. Integers are little-endian.
//!
//! What comes in may be garbage: every length has a limit, and whatever does not fit is `None`.
//! Must not know the order in which messages come.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferrocomm_core::error::{Error, ErrorKind};
use ferrocomm_core::ids::{GroupRank, ProcessId};

use super::Member;
use crate::location::Location;

/// Opens every connection and every key; the last byte is the version of this protocol.
const MAGIC: [u8; 8] = *b"ferrojo\x02";

/// Longest text of a rank about its communicator.
pub(super) const MAX_FACTS: usize = 1024;
/// Longest name of a local socket; the kernel's limit is 107.
const MAX_UNIX: usize = 107;
/// Most addresses of a rank.
const MAX_ADDRESSES: usize = 16;
/// A member is shorter than this.
const MAX_MEMBER: usize = 1024;
/// Longest report of a failure.
const MAX_FAILURE: usize = 16 << 10;
/// Ranks that a failure names at most.
pub(super) const MAX_NAMED: usize = 64;

/// Secret of a key: whoever presents it has read the key.
pub(super) type Nonce = [u8; 16];

/// What a connection starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) nonce: Nonce,
    pub(super) rank: u32,
    /// what the rank believes about the communicator
    pub(super) facts: String,
}

/// What was found at the start of a connection.
pub(super) enum Greeting {
    /// no more than a beginning yet
    Incomplete,
    /// not from a rank that has read the key
    Stranger,
    /// the hello, and its length
    Hello(Hello, usize),
}

/// A message on a connection that has been greeted.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// Down: the hello fits; from this rank.
    Welcome { rank: u32 },
    /// Up: a rank has come; `facts` is a digest of what it believes.
    Record {
        rank: u32,
        facts: u64,
        member: Member,
    },
    /// Up: a rank believes something else than the one that passes this on.
    Facts { rank: u32, facts: String },
    /// Up: a rank's deadline has passed.
    GaveUp,
    /// Down: so many ranks per node the root counts.
    Shape { local: u32 },
    /// Up: the first rank of a node leaves it to the receiver to act for the node.
    Leads,
    /// Up: what a rank found wrong. Down: how joining ended.
    Failure(Error),
    /// Down: all have come.
    Table { seed: Nonce, members: Vec<Member> },
}

const WELCOME: u8 = 1;
const RECORD: u8 = 2;
const FACTS: u8 = 3;
const GAVE_UP: u8 = 4;
const FAILURE: u8 = 5;
const TABLE: u8 = 6;
const LEADS: u8 = 7;
const SHAPE: u8 = 8;

/// Bytes before the body of a message: its tag and its length.
const HEAD: usize = 5;

/// The value under the key of a rank that counts `local` ranks per node.
pub(super) fn key_value(nonce: &Nonce, local: u32, address: SocketAddr) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(nonce);
    out.extend(local.to_le_bytes());
    put_address(&mut out, address);
    out
}

/// Reads the value under a rank's key.
pub(super) fn read_key_value(value: &[u8]) -> Option<(Nonce, u32, SocketAddr)> {
    let mut input = Input(value);
    if input.array()? != MAGIC {
        return None;
    }
    let value = (input.array()?, input.u32()?, input.address()?);
    input.0.is_empty().then_some(value)
}

impl Hello {
    /// Its bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.nonce);
        out.extend(self.rank.to_le_bytes());
        put_text(&mut out, &self.facts);
        out
    }

    /// Reads the start of a connection to the owner of `nonce`. A stranger is known by its first
    /// byte that no rank would send. The nonce is judged as a whole: who learns which of its bytes
    /// is wrong can guess it.
    pub(super) fn read(bytes: &[u8], nonce: &Nonce) -> Greeting {
        if bytes.iter().zip(MAGIC).any(|(got, wanted)| *got != wanted) {
            return Greeting::Stranger;
        }
        let mut input = Input(bytes.get(MAGIC.len()..).unwrap_or(&[]));
        match input.array() {
            None => return Greeting::Incomplete,
            Some(shown) if shown != *nonce => return Greeting::Stranger,
            Some(_) => {}
        }
        let (Some(rank), Some(length)) = (input.u32(), input.u16()) else {
            return Greeting::Incomplete;
        };
        if usize::from(length) > MAX_FACTS {
            return Greeting::Stranger;
        }
        let Some(text) = input.take(length.into()) else {
            return Greeting::Incomplete;
        };
        match String::from_utf8(text.to_vec()) {
            Ok(facts) => {
                let length = bytes.len() - input.0.len();
                Greeting::Hello(
                    Self {
                        nonce: *nonce,
                        rank,
                        facts,
                    },
                    length,
                )
            }
            Err(_) => Greeting::Stranger,
        }
    }
}

impl Message {
    /// Its bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        framed(self.tag(), |out| match self {
            Self::Welcome { rank } => out.extend(rank.to_le_bytes()),
            Self::Shape { local } => out.extend(local.to_le_bytes()),
            Self::GaveUp | Self::Leads => {}
            Self::Record {
                rank,
                facts,
                member,
            } => {
                out.extend(rank.to_le_bytes());
                out.extend(facts.to_le_bytes());
                put_member(out, member);
            }
            Self::Facts { rank, facts } => {
                out.extend(rank.to_le_bytes());
                put_text(out, facts);
            }
            Self::Failure(error) => put_failure(out, error),
            Self::Table { seed, members } => put_table(out, seed, members),
        })
    }

    fn tag(&self) -> u8 {
        match self {
            Self::Welcome { .. } => WELCOME,
            Self::Record { .. } => RECORD,
            Self::Facts { .. } => FACTS,
            Self::GaveUp => GAVE_UP,
            Self::Shape { .. } => SHAPE,
            Self::Leads => LEADS,
            Self::Failure(_) => FAILURE,
            Self::Table { .. } => TABLE,
        }
    }

    /// Takes the next message off `bytes` in a group of `size` ranks: `Ok(None)` when it is not all
    /// there, an error when it can be none.
    pub(super) fn take(bytes: &mut Vec<u8>, size: usize) -> Result<Option<Self>, Garbage> {
        let Some(head) = bytes.get(..HEAD) else {
            return Ok(None);
        };
        let tag = head[0];
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let limit = match tag {
            WELCOME | SHAPE => 4,
            GAVE_UP | LEADS => 0,
            RECORD => 12 + MAX_MEMBER,
            FACTS => 6 + MAX_FACTS,
            FAILURE => MAX_FAILURE,
            TABLE => size_of::<Nonce>() + size * MAX_MEMBER,
            _ => return Err(Garbage),
        };
        if length > limit {
            return Err(Garbage);
        }
        let Some(body) = bytes.get(HEAD..HEAD + length) else {
            return Ok(None);
        };
        let message = Self::read(tag, Input(body), size).ok_or(Garbage)?;
        bytes.drain(..HEAD + length);
        Ok(Some(message))
    }

    fn read(tag: u8, mut input: Input<'_>, size: usize) -> Option<Self> {
        let message = match tag {
            WELCOME => Self::Welcome { rank: input.u32()? },
            GAVE_UP => Self::GaveUp,
            SHAPE => Self::Shape {
                local: input.u32()?,
            },
            LEADS => Self::Leads,
            RECORD => Self::Record {
                rank: input.u32()?,
                facts: input.u64()?,
                member: input.member()?,
            },
            FACTS => Self::Facts {
                rank: input.u32()?,
                facts: input.text()?,
            },
            FAILURE => Self::Failure(input.failure()?),
            TABLE => {
                let seed = input.array()?;
                let members = (0..size).map(|_| input.member()).collect::<Option<_>>()?;
                Self::Table { seed, members }
            }
            _ => return None,
        };
        input.0.is_empty().then_some(message)
    }
}

/// The bytes of `Message::Table` with these members, without owning them.
pub(super) fn table_bytes(seed: &Nonce, members: &[Member]) -> Vec<u8> {
    framed(TABLE, |out| put_table(out, seed, members))
}

/// A message of this tag, whose body `put` writes.
fn framed(tag: u8, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![tag, 0, 0, 0, 0];
    put(&mut out);
    let length = (out.len() - HEAD) as u32;
    out[1..HEAD].copy_from_slice(&length.to_le_bytes());
    out
}

/// What came is no message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Garbage;

/// Whether `member` keeps to the limits of this protocol.
pub(super) fn fits(member: &Member) -> bool {
    member.unix.len() <= MAX_UNIX && member.addresses.len() <= MAX_ADDRESSES
}

/// A member on its own, as handles carry it.
pub(super) fn member_bytes(member: &Member) -> Vec<u8> {
    let mut out = Vec::new();
    put_member(&mut out, member);
    out
}

/// Reads what `member_bytes` wrote.
pub(super) fn read_member(bytes: &[u8]) -> Option<Member> {
    let mut input = Input(bytes);
    let member = input.member()?;
    (input.0.is_empty() && fits(&member)).then_some(member)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_le_bytes());
}

fn put_member(out: &mut Vec<u8>, member: &Member) {
    out.extend(member.process.0);
    out.extend(member.machine.to_le_bytes());
    for level in member.location.0 {
        out.extend(level.to_le_bytes());
    }
    out.extend(member.nonce);
    put_text(out, &member.unix);
    out.push(member.addresses.len() as u8);
    for address in &member.addresses {
        put_address(out, *address);
    }
}

fn put_table(out: &mut Vec<u8>, seed: &Nonce, members: &[Member]) {
    out.extend(seed);
    for member in members {
        put_member(out, member);
    }
}

/// The kinds of failure that are told to other ranks, with their codes.
const KINDS: [(u8, ErrorKind); 10] = [
    (1, ErrorKind::Timeout),
    (2, ErrorKind::PeerLost),
    (3, ErrorKind::Mismatch),
    (4, ErrorKind::Store),
    (5, ErrorKind::StoreTimeout),
    (6, ErrorKind::StoreDisconnected),
    (7, ErrorKind::Transport),
    (8, ErrorKind::Resources),
    (9, ErrorKind::InvalidArgument),
    (10, ErrorKind::Panic),
];

fn put_failure(out: &mut Vec<u8>, error: &Error) {
    let code = KINDS
        .iter()
        .find(|(_, kind)| *kind == error.kind())
        .map_or(2, |(code, _)| *code);
    out.push(code);
    let named = error.peer_ranks().len().min(MAX_NAMED);
    out.extend((named as u16).to_le_bytes());
    for peer in &error.peer_ranks()[..named] {
        out.extend(peer.get().to_le_bytes());
    }
    put_text(out, shorten(error.what(), 8 << 10));
}

/// The beginning of `text` that is no longer than `limit` bytes.
pub(super) fn shorten(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Bytes not read yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u16()?;
        String::from_utf8(self.take(length.into())?.to_vec()).ok()
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = match self.u8()? {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.u16()?))
    }

    fn member(&mut self) -> Option<Member> {
        let member = Member {
            process: ProcessId(self.array()?),
            machine: self.u64()?,
            location: Location([self.u32()?, self.u32()?, self.u32()?]),
            nonce: self.array()?,
            unix: self.text()?,
            addresses: {
                let count = usize::from(self.u8()?);
                (0..count.min(MAX_ADDRESSES + 1))
                    .map(|_| self.address())
                    .collect::<Option<_>>()?
            },
        };
        fits(&member).then_some(member)
    }

    fn failure(&mut self) -> Option<Error> {
        let code = self.u8()?;
        let kind = KINDS.iter().find(|(known, _)| *known == code)?.1;
        let count = usize::from(self.u16()?);
        let peers: Vec<GroupRank> = (0..count)
            .map(|_| self.u32().map(GroupRank::new))
            .collect::<Option<_>>()?;
        Some(Error::new(kind, self.text()?).peers(peers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        Member {
            process: ProcessId([7; 16]),
            machine: 1 << 60,
            location: Location([1, 2, 0]),
            unix: "a".repeat(MAX_UNIX),
            addresses: vec!["[::1]:9".parse().unwrap(); MAX_ADDRESSES],
            nonce: [9; 16],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let address = "10.1.2.3:45".parse().unwrap();
        assert_eq!(
            read_key_value(&key_value(&[3; 16], 8, address)),
            Some(([3; 16], 8, address))
        );
        let hello = Hello {
            nonce: [1; 16],
            rank: 5,
            facts: "version 1".into(),
        };
        let bytes = hello.encode();
        for end in 0..bytes.len() {
            assert!(
                matches!(Hello::read(&bytes[..end], &[1; 16]), Greeting::Incomplete),
                "{end}"
            );
        }
        let Greeting::Hello(read, length) = Hello::read(&bytes, &[1; 16]) else {
            panic!()
        };
        assert_eq!((read, length), (hello, bytes.len()));
        let error = Error::new(ErrorKind::Mismatch, "no").peers([GroupRank::new(3)]);
        let messages = [
            Message::Welcome { rank: 7 },
            Message::Shape { local: 8 },
            Message::Leads,
            Message::Record {
                rank: 1,
                facts: 7,
                member: member(),
            },
            Message::Facts {
                rank: 2,
                facts: "x".repeat(MAX_FACTS),
            },
            Message::GaveUp,
            Message::Failure(error),
            Message::Table {
                seed: [5; 16],
                members: vec![member(); 2],
            },
        ];
        for message in messages {
            let bytes = message.encode();
            for end in 0..bytes.len() {
                assert!(
                    matches!(Message::take(&mut bytes[..end].to_vec(), 2), Ok(None)),
                    "{end}"
                );
            }
            let mut buffer = bytes;
            let read = Message::take(&mut buffer, 2).unwrap().unwrap();
            assert_eq!(format!("{read:?}"), format!("{message:?}"));
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn strangers_are_known_by_their_first_wrong_byte_but_not_of_the_nonce() {
        let hello = Hello {
            nonce: [1; 16],
            rank: 5,
            facts: String::new(),
        }
        .encode();
        assert!(matches!(Hello::read(b"G", &[1; 16]), Greeting::Stranger));
        // Of a wrong nonce nobody learns which byte is wrong.
        for end in 8..24 {
            let read = Hello::read(&hello[..end], &[2; 16]);
            assert!(matches!(read, Greeting::Incomplete), "{end}");
        }
        let read = Hello::read(&hello[..24], &[2; 16]);
        assert!(matches!(read, Greeting::Stranger));
        let mut long = hello;
        long[28..30].copy_from_slice(&[0xff, 0xff]);
        assert!(matches!(Hello::read(&long, &[1; 16]), Greeting::Stranger));
    }

    #[test]
    fn huge_lengths_and_unknown_tags_are_garbage() {
        for tag in 0..=255 {
            let mut bytes = vec![tag, 0xff, 0xff, 0xff, 0xff];
            assert!(Message::take(&mut bytes, 1 << 20).is_err(), "tag {tag}");
        }
        assert!(Message::take(&mut vec![99, 0, 0, 0, 0], 4).is_err());
        let mut record = Message::Record {
            rank: 1,
            facts: 7,
            member: member(),
        }
        .encode();
        record[HEAD + 12 + 52] = 0xff;
        assert!(Message::take(&mut record, 4).is_err());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shorten("aé", 2), "a");
        assert_eq!(shorten("aé", 3), "aé");
    }
}

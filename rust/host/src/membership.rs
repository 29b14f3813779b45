//! What the progress engine keeps of one communicator: its ranks, its calls in order, and the
//! messages and receives that have not met yet. Must not know links' insides.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrocomm_core::call::Source;
use ferrocomm_core::error::{Error, ErrorKind};
use ferrocomm_core::ids::{GroupRank, ProcessId};

use crate::bootstrap::Member;
use crate::collectives::Topology;
use crate::frame::{Fingerprint, Header, as_received, listens};
use crate::print::Print;
use crate::seat::{Place, Seat};
use crate::slab::Key;

/// So many fingerprints are remembered for messages that come late.
const REMEMBERED: usize = 1024;

/// What tells a message of a pair from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Collective { sequence: u64, part: u32 },
    Tagged(u32),
}

impl Address {
    pub(crate) fn of(header: &Header) -> Self {
        if header.sequence == 0 {
            Self::Tagged(header.part)
        } else {
            Self::Collective {
                sequence: header.sequence,
                part: header.part,
            }
        }
    }
}

/// A receive that waits for its message.
pub(crate) struct Posted {
    pub(crate) recv: Key,
    pub(crate) from: Source,
    pub(crate) address: Address,
}

/// The payload of a message nobody has asked for yet.
pub(crate) enum Payload {
    Here(Vec<u8>),
    /// to be granted
    Announced,
    /// a send of this very process
    Local(Key),
}

/// A message nobody has asked for yet.
pub(crate) struct Unexpected {
    pub(crate) from: GroupRank,
    pub(crate) header: Header,
    pub(crate) payload: Payload,
}

/// What of an address was here before the one that asks.
pub(crate) enum Early {
    None,
    /// a receive: it is served first
    Receive,
    /// a message, at this place
    Message(usize),
}

/// Whether `rank` calls, as its collective `sequence`, what the rank that asks does.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    /// the rank that is asked; to that rank, the one that asks
    pub(crate) rank: GroupRank,
    pub(crate) sequence: u64,
    pub(crate) fingerprint: Fingerprint,
}

/// How a communicator stands inside the engine.
pub(crate) enum Standing {
    Open,
    Failed(Error),
}

/// How its collectives run.
pub(crate) enum Seating {
    /// as messages over links
    Links,
    /// in shared memory, once there is some
    Wanted,
    /// in shared memory
    Seated(Arc<Seat>),
}

/// One communicator.
pub(crate) struct Membership {
    pub(crate) name: Arc<str>,
    pub(crate) rank: GroupRank,
    pub(crate) members: Arc<Vec<Member>>,
    pub(crate) topology: Topology,
    pub(crate) standing: Standing,
    pub(crate) seating: Seating,
    /// where the communicator's handle finds the seat
    pub(crate) place: Arc<Place>,
    /// whether the cause of failure has reached the client
    pub(crate) reported: bool,
    pub(crate) posted: Vec<Posted>,
    pub(crate) unexpected: VecDeque<Unexpected>,
    /// collectives in order; the first is running
    pub(crate) queue: VecDeque<Key>,
    issued: VecDeque<(u64, Fingerprint)>,
    /// per rank, the last collective it was sent a message of without a sign that it agrees
    unheard: Vec<Option<(u64, Fingerprint)>>,
    /// ranks that ask whether a collective this rank has not issued yet will fit
    queries: Vec<Question>,
    /// number of the last collective that was issued here
    collectives: u64,
}

impl Membership {
    pub(crate) fn new(
        name: Arc<str>,
        rank: GroupRank,
        members: Arc<Vec<Member>>,
        seating: Seating,
        place: Arc<Place>,
    ) -> Self {
        let unheard = vec![None; members.len()];
        let topology = Topology::of(
            members
                .iter()
                .map(|member| (member.machine, member.location)),
        );
        Self {
            unheard,
            topology,
            queries: Vec::new(),
            name,
            rank,
            members,
            standing: Standing::Open,
            seating,
            place,
            collectives: 0,
            reported: false,
            posted: Vec::new(),
            unexpected: VecDeque::new(),
            queue: VecDeque::new(),
            issued: VecDeque::new(),
        }
    }

    pub(crate) fn rank_of(&self, process: ProcessId) -> Option<GroupRank> {
        let index = self
            .members
            .iter()
            .position(|member| member.process == process)?;
        u32::try_from(index).ok().map(GroupRank::new)
    }

    /// Notes what this rank calls as its collective `sequence`; the error of a message that came
    /// before and does not fit it.
    pub(crate) fn note_issued(&mut self, sequence: u64, ours: Fingerprint) -> Option<Error> {
        let ours = as_received(ours);
        if self.issued.len() == REMEMBERED {
            self.issued.pop_front();
        }
        self.issued.push_back((sequence, ours));
        let messages = self
            .unexpected
            .iter()
            .map(|early| (early.from, early.header.sequence, early.header.fingerprint));
        let questions = self
            .queries
            .iter()
            .map(|early| (early.rank, early.sequence, early.fingerprint));
        messages
            .chain(questions)
            .find(|(_, number, theirs)| *number == sequence && *theirs != ours)
            .map(|(from, _, theirs)| self.mismatch(sequence, ours, theirs, from))
    }

    /// The seat, where collectives run in shared memory.
    pub(crate) fn seat(&self) -> Option<&Arc<Seat>> {
        match &self.seating {
            Seating::Seated(seat) => Some(seat),
            Seating::Links | Seating::Wanted => None,
        }
    }

    /// Takes note that collective `sequence` is issued here.
    pub(crate) fn note_number(&mut self, sequence: u64) {
        self.collectives = self.collectives.max(sequence);
    }

    /// Number of the last collective that was issued here.
    pub(crate) fn collectives(&self) -> u64 {
        self.collectives
    }

    /// The error of a rank that called something else than this one.
    pub(crate) fn differs(&self, sequence: u64, from: usize, ours: Print, theirs: Print) -> Error {
        let from = GroupRank::new(u32::try_from(from).unwrap_or(u32::MAX));
        match (ours.fingerprint(), theirs.fingerprint()) {
            (Some(ours), Some(theirs)) => self.mismatch(sequence, ours, theirs, from),
            _ => Error::new(
                ErrorKind::Transport,
                "the shared memory of a communicator holds no call",
            )
            .peers([from]),
        }
    }

    /// A message of collective `sequence` (0: point-to-point, which asks for no agreement) goes to
    /// `rank`, which has not shown yet that it agrees.
    pub(crate) fn told(&mut self, rank: GroupRank, sequence: u64, fingerprint: Fingerprint) {
        if sequence > 0
            && let Some(unheard) = self.unheard.get_mut(rank.index())
        {
            *unheard = Some((sequence, fingerprint));
        }
    }

    /// `rank` has issued collective `sequence`.
    pub(crate) fn heard(&mut self, rank: GroupRank, sequence: u64) {
        if let Some(unheard) = self.unheard.get_mut(rank.index())
            && unheard.is_some_and(|(told, _)| told <= sequence)
        {
            *unheard = None;
        }
    }

    /// All ranks have issued what this rank has.
    pub(crate) fn heard_from_all(&mut self) {
        self.unheard.fill(None);
    }

    /// Ranks that may disagree about the last collective they were sent a message of.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = Question> {
        (0u32..).zip(&self.unheard).filter_map(|(rank, told)| {
            let (sequence, fingerprint) = (*told)?;
            Some(Question {
                rank: GroupRank::new(rank),
                sequence,
                fingerprint,
            })
        })
    }

    /// Whether this rank has issued the collective in question; if not, the answer follows then.
    pub(crate) fn has_issued(&mut self, question: Question) -> bool {
        let issued = self
            .issued
            .back()
            .is_some_and(|(last, _)| *last >= question.sequence);
        if !issued {
            self.queries.push(question);
        }
        issued
    }

    /// Questions that can be answered now that collective `sequence` is issued.
    pub(crate) fn take_queries(&mut self, sequence: u64) -> Vec<Question> {
        let (ready, waiting) = std::mem::take(&mut self.queries)
            .into_iter()
            .partition(|question| question.sequence <= sequence);
        self.queries = waiting;
        ready
    }

    /// The error of a message of a collective this rank has called differently.
    pub(crate) fn check_arrival(&self, from: GroupRank, header: &Header) -> Option<Error> {
        let (_, ours) = self
            .issued
            .iter()
            .rev()
            .find(|(sequence, _)| *sequence == header.sequence)?;
        (*ours != header.fingerprint)
            .then(|| self.mismatch(header.sequence, *ours, header.fingerprint, from))
    }

    fn mismatch(
        &self,
        sequence: u64,
        ours: Fingerprint,
        theirs: Fingerprint,
        from: GroupRank,
    ) -> Error {
        Error::new(ErrorKind::Mismatch, "ranks called different operations")
            .got(format_args!("{theirs} on rank {from}"))
            .expected(format_args!("{ours} as on rank {}", self.rank))
            .peers([from])
            .rank(self.rank)
            .operation(ours.operation.name())
            .sequence(sequence)
            .communicator(&self.name)
            .remedy(
                "call the same operations in the same order with the same arguments on all ranks",
            )
    }

    /// The oldest receive this message is for.
    pub(crate) fn take_posted(&mut self, from: GroupRank, address: Address) -> Option<Posted> {
        let at = self
            .posted
            .iter()
            .position(|posted| posted.address == address && listens(posted.from, from))?;
        Some(self.posted.remove(at))
    }

    /// What of this address is here already.
    pub(crate) fn early(&self, from: GroupRank, address: Address) -> Early {
        let receives = |posted: &Posted| posted.address == address && listens(posted.from, from);
        if self.posted.iter().any(receives) {
            return Early::Receive;
        }
        self.unexpected
            .iter()
            .position(|early| early.from == from && Address::of(&early.header) == address)
            .map_or(Early::None, Early::Message)
    }

    /// The oldest message this receive takes.
    pub(crate) fn take_unexpected(&mut self, from: Source, address: Address) -> Option<Unexpected> {
        let at = self.unexpected.iter().position(|message| {
            Address::of(&message.header) == address && listens(from, message.from)
        })?;
        self.unexpected.remove(at)
    }
}

//! Links at work: dialling, accepting, writing what waits and reading what came.
//!
//! Part of the progress engine's state, under the same lock. Nothing here blocks. Must not know
//! what operations do with what comes.

mod lanes;
#[cfg(test)]
mod tests;
mod writing;

use std::io;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank, ProcessId};

use crate::bootstrap::Member;
use crate::core::Core;
use crate::endpoint::Arrival;
use crate::frame::{HEADER, Header, Kind, decode_failure};
use crate::link::{Link, LinkState, Reading, Sink, client_bytes_mut};
use crate::membership::{Address, Payload, Standing, Unexpected};
use crate::slab::Key;
use crate::stream::peer_is_gone;

/// Bytes one stream may deliver before others get their turn.
const TURN: usize = 4 << 20;
/// Messages of communicators not made yet that are kept.
const ORPHANS: usize = 4096;

impl Core {
    /// The open link to rank `to` of the communicator, dialled now if there is none.
    pub(crate) fn link_to(&mut self, comm: CommId, to: GroupRank) -> Result<Key> {
        let member = self
            .groups
            .get(&comm)
            .and_then(|group| group.members.get(to.index()))
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::State, "the communicator is closed"))?;
        self.link_to_member(&member)
            .map_err(|error| error.peers([to]))
    }

    /// The open link to the process of `member`, dialled now if there is none.
    pub(crate) fn link_to_member(&mut self, member: &Member) -> Result<Key> {
        let key = self.link_of(member.process);
        match self.links.get(key).map(|link| &link.state) {
            Some(LinkState::Open) => return Ok(key),
            Some(LinkState::Dead(error)) => return Err(error.clone()),
            Some(LinkState::Idle) | None => {}
        }
        let stream = self.endpoint.dial(member)?;
        if let Some(link) = self.links.get_mut(key) {
            link.add(stream);
        }
        Ok(key)
    }

    pub(crate) fn link_of(&mut self, process: ProcessId) -> Key {
        if let Some(key) = self.by_process.get(&process) {
            return *key;
        }
        let key = self.links.insert(Link::new(process));
        self.by_process.insert(process, key);
        key
    }

    /// One round over everything that may have moved; whether anything had.
    pub(crate) fn poll(&mut self) -> bool {
        let mut moved = self.step_meetings() | self.serve_waits();
        for index in 0..self.links.places() {
            let Some(key) = self.links.key_at(index) else {
                continue;
            };
            let channels = self.links.get(key).map_or(0, |link| link.channels.len());
            for channel in 0..channels {
                moved |= self.read_channel(key, channel);
            }
            moved |= self.write_link(key);
            self.run_ready();
        }
        moved
    }

    /// Takes in connections that others have dialled.
    pub(crate) fn accept_arrivals(&mut self) {
        for arrival in self.endpoint.arrivals() {
            match arrival {
                Arrival::Link { process, stream } => {
                    let key = self.link_of(process);
                    if let Some(link) = self.links.get_mut(key) {
                        link.add(stream);
                    }
                }
                Arrival::Arena { comm, offer } => self.offered(comm, offer),
                Arrival::Watch => {}
            }
        }
        self.run_ready();
    }

    /// Looks whether silent peers still live.
    pub(crate) fn probe(&mut self) {
        let keys: Vec<Key> = self.by_process.values().copied().collect();
        for key in keys {
            if let Some(link) = self.links.get_mut(key) {
                for channel in &mut link.channels {
                    channel.stream.probe();
                }
            }
        }
    }

    /// Reads what has come on one stream; whether anything had.
    pub(crate) fn read_channel(&mut self, key: Key, channel: usize) -> bool {
        let mut taken = 0;
        while taken < TURN {
            match self.read_some(key, channel) {
                Ok(0) => break,
                Ok(bytes) => taken += bytes,
                Err(error) => {
                    self.channel_ended(key, channel, &error);
                    return false;
                }
            }
        }
        taken > 0
    }

    fn read_some(&mut self, key: Key, channel: usize) -> io::Result<usize> {
        let Some(entry) = self
            .links
            .get_mut(key)
            .and_then(|link| link.channels.get_mut(channel))
        else {
            return Ok(0);
        };
        if entry.ended {
            return Ok(0);
        }
        if !entry.judged
            && let Some(processors) = entry.stream.processors()
        {
            entry.judged = true;
            self.spin.note_peer(processors);
        }
        match &mut entry.reading {
            Reading::Header { bytes, got } => {
                let count = entry.stream.try_read(&mut bytes[*got..])?;
                *got += count;
                if *got == HEADER {
                    let header = Header::decode(bytes).map_err(|error| {
                        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
                    })?;
                    self.begin(key, channel, header);
                }
                Ok(count)
            }
            Reading::Payload { header, sink, got } => {
                let want = header.payload as usize - *got;
                let mut nowhere = [0; 8192];
                let into: &mut [u8] = match sink {
                    Sink::Owned(bytes) => &mut bytes[*got..],
                    Sink::Receive(recv) => match self.recvs.get(*recv) {
                        Some(recv) if want <= recv.region.bytes - recv.got => {
                            // SAFETY: the receive is alive, so its client keeps the region valid
                            // and leaves it to the engine (`Group::issue`).
                            unsafe { client_bytes_mut(recv.region.slice(recv.got, want)) }
                        }
                        Some(_) | None => &mut nowhere[..want.min(8192)],
                    },
                    Sink::Chunk(recv, offset) => match self.recvs.get(*recv) {
                        Some(recv)
                            if (*offset as usize)
                                .checked_add(*got + want)
                                .is_some_and(|end| end <= recv.region.bytes) =>
                        {
                            // SAFETY: as above.
                            unsafe {
                                client_bytes_mut(recv.region.slice(*offset as usize + *got, want))
                            }
                        }
                        Some(_) | None => &mut nowhere[..want.min(8192)],
                    },
                    Sink::Window(pane, offset) => {
                        match pane.part(*offset + *got as u64, want as u64) {
                            // SAFETY: an open window's memory is lent to whoever writes to it.
                            Some(region) => unsafe { client_bytes_mut(region) },
                            None => &mut nowhere[..want.min(8192)],
                        }
                    }
                    Sink::Nowhere => &mut nowhere[..want.min(8192)],
                };
                let count = entry.stream.try_read(into)?;
                *got += count;
                let whole = *got == header.payload as usize;
                if let Sink::Receive(recv) | Sink::Chunk(recv, _) = sink
                    && let Some(recv) = self.recvs.get_mut(*recv)
                {
                    recv.got = recv.region.bytes.min(recv.got + count);
                }
                if whole
                    && let Reading::Payload { header, sink, .. } =
                        std::mem::replace(&mut entry.reading, Reading::START)
                {
                    self.arrived(key, &header, sink);
                }
                Ok(count)
            }
        }
    }

    /// A header has come: decides where its payload goes.
    fn begin(&mut self, key: Key, channel: usize, header: Header) {
        let sink = match header.kind {
            Kind::Message => self.sink_of(key, &header),
            Kind::Data => Sink::Chunk(Key::from_bits(header.transfer), header.sequence),
            Kind::Failure | Kind::Verdict | Kind::Letter => {
                Sink::Owned(vec![0; header.payload as usize])
            }
            Kind::Put => self.sink_of_put(key, &header),
            Kind::Announce
            | Kind::Grant
            | Kind::Query
            | Kind::Withdrawn
            | Kind::TakenBack
            | Kind::Signal
            | Kind::Get => Sink::Nowhere,
        };
        let next = if header.payload == 0 {
            self.arrived(key, &header, sink);
            Reading::START
        } else {
            Reading::Payload {
                header,
                sink,
                got: 0,
            }
        };
        if let Some(entry) = self
            .links
            .get_mut(key)
            .and_then(|link| link.channels.get_mut(channel))
        {
            entry.reading = next;
        }
    }

    /// For a small message: straight into its receive where one waits, else into memory of ours.
    fn sink_of(&mut self, key: Key, header: &Header) -> Sink {
        let owned = || Sink::Owned(vec![0; header.payload as usize]);
        if self.closed.contains(&header.comm) {
            return Sink::Nowhere;
        }
        let Some(from) = self.sender(key, header.comm) else {
            return owned();
        };
        if !self.fits_calls(header, from) {
            return Sink::Nowhere;
        }
        let Some(group) = self.groups.get_mut(&header.comm) else {
            return owned();
        };
        let Some(posted) = group.take_posted(from, Address::of(header)) else {
            return owned();
        };
        let whole = u64::from(header.payload) == header.length;
        if whole && self.accept(header.comm, from, header, posted.recv) {
            Sink::Receive(posted.recv)
        } else {
            Sink::Nowhere
        }
    }

    pub(crate) fn sender(&self, key: Key, comm: CommId) -> Option<GroupRank> {
        let process = self.links.get(key)?.peer;
        self.groups.get(&comm)?.rank_of(process)
    }

    /// Whether a collective's message is of the call this rank has issued, if it has.
    pub(crate) fn fits_calls(&mut self, header: &Header, from: GroupRank) -> bool {
        if header.sequence == 0 {
            return true;
        }
        if let Some(group) = self.groups.get_mut(&header.comm) {
            group.heard(from, header.sequence);
        }
        let error = self
            .groups
            .get(&header.comm)
            .and_then(|group| group.check_arrival(from, header));
        match error {
            Some(error) => {
                self.fail(header.comm, error);
                false
            }
            None => true,
        }
    }

    /// A frame is here whole.
    fn arrived(&mut self, key: Key, header: &Header, sink: Sink) {
        match (header.kind, sink) {
            (Kind::Message, Sink::Receive(recv)) | (Kind::Data, Sink::Chunk(recv, _)) => {
                if self
                    .recvs
                    .get(recv)
                    .is_some_and(|recv| recv.got == recv.region.bytes)
                {
                    self.recv_done(recv);
                }
            }
            (Kind::Message, Sink::Owned(bytes)) => self.keep(key, header, Some(bytes)),
            (Kind::Announce, _) => self.announced(key, header),
            (Kind::Grant, _) => {
                let send = Key::from_bits(header.transfer);
                match self.sends.get_mut(send) {
                    Some(entry) => {
                        entry.granted = Some(header.other());
                        if let Some(link) = self.links.get_mut(key) {
                            link.streaming.push_back(send);
                        }
                        self.widen(key, send);
                    }
                    None => self.tell_withdrawn(key, header.comm, header.other(), header.transfer),
                }
            }
            (Kind::Withdrawn, _) => {
                if let Some(from) = self.sender(key, header.comm) {
                    let recv = Key::from_bits(header.transfer);
                    self.withdrawn(header.comm, from, recv, header.other());
                }
            }
            (Kind::TakenBack, _) => self.taken_back(key, header),
            (Kind::Failure, Sink::Owned(bytes)) => {
                if self.groups.contains_key(&header.comm) {
                    self.fail(header.comm, decode_failure(&bytes));
                } else {
                    self.keep(key, header, Some(bytes));
                }
            }
            (Kind::Query, _) => self.asked(key, header),
            (Kind::Verdict, Sink::Owned(awaited)) => self.answered(key, header, &awaited),
            (Kind::Signal, _) => self.signalled(key, header),
            (Kind::Get, _) => self.answer_get(key, header),
            (Kind::Letter, Sink::Owned(bytes)) => self.letter(key, &bytes),
            (
                Kind::Message
                | Kind::Data
                | Kind::Failure
                | Kind::Verdict
                | Kind::Put
                | Kind::Letter,
                _,
            ) => {}
        }
    }

    fn announced(&mut self, key: Key, header: &Header) {
        let Some(from) = self.sender(key, header.comm) else {
            return self.keep(key, header, None);
        };
        if !self.fits_calls(header, from) {
            return;
        }
        let posted = self
            .groups
            .get_mut(&header.comm)
            .and_then(|group| group.take_posted(from, Address::of(header)));
        match posted {
            Some(posted) => {
                if self.accept(header.comm, from, header, posted.recv) {
                    self.grant(header.comm, from, header, posted.recv);
                }
            }
            None => self.keep(key, header, None),
        }
    }

    /// Keeps a message nobody has asked for yet.
    pub(crate) fn keep(&mut self, key: Key, header: &Header, bytes: Option<Vec<u8>>) {
        if self.closed.contains(&header.comm) {
            return;
        }
        if let Some(from) = self.sender(key, header.comm) {
            if let Some(group) = self.groups.get_mut(&header.comm)
                && matches!(group.standing, Standing::Open)
            {
                let payload = bytes.map_or(Payload::Announced, Payload::Here);
                let message = Unexpected {
                    from,
                    header: *header,
                    payload,
                };
                // Its receive may have been posted while its payload was still on the way.
                match group.take_posted(from, Address::of(header)) {
                    Some(posted) => self.meet(header.comm, message, posted.recv),
                    None => group.unexpected.push_back(message),
                }
            }
        } else if let Some(link) = self.links.get(key) {
            if self.orphans.len() == ORPHANS {
                tracing::warn!(
                    "too many messages of communicators not made yet; the oldest is dropped"
                );
                self.orphans.remove(0);
            }
            self.orphans.push((link.peer, *header, bytes));
        }
    }

    /// Gives a new communicator the messages that came before it.
    pub(crate) fn adopt(&mut self, comm: CommId) {
        let orphans = std::mem::take(&mut self.orphans);
        for (process, header, bytes) in orphans {
            if header.comm != comm {
                self.orphans.push((process, header, bytes));
            } else if header.kind == Kind::Query {
                if let Some(key) = self.by_process.get(&process).copied() {
                    self.asked(key, &header);
                }
            } else if header.kind == Kind::Failure {
                self.fail(comm, decode_failure(&bytes.unwrap_or_default()));
            } else if let Some(key) = self.by_process.get(&process).copied() {
                self.keep(key, &header, bytes);
            }
        }
    }

    // ---- ends

    fn channel_ended(&mut self, key: Key, channel: usize, error: &io::Error) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let mut midway = false;
        if let Some(channel) = link.channels.get_mut(channel) {
            channel.ended = true;
            midway = !matches!(channel.reading, Reading::Header { got: 0, .. });
            tracing::debug!(stream = channel.stream.kind().name(), %error, "a stream ended");
        }
        // Others may still hold messages; but what ended within a frame does not come any more.
        if !peer_is_gone(error) || midway || link.channels.iter().all(|channel| channel.ended) {
            self.link_died(key, error);
        }
    }

    pub(crate) fn link_died(&mut self, key: Key, cause: &io::Error) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if matches!(link.state, LinkState::Dead(_)) {
            return;
        }
        let error = if peer_is_gone(cause) {
            Error::new(
                ErrorKind::PeerLost,
                "a peer has closed its connection or died",
            )
            .remedy("look at what the named rank printed before it ended")
        } else {
            Error::new(ErrorKind::Transport, "a connection broke").got(cause)
        };
        let peer = link.peer;
        link.state = LinkState::Dead(error.clone());
        link.channels.clear();
        link.out.clear();
        link.streaming.clear();
        link.lanes.clear();
        self.fail_those_waiting_for(peer, &error);
    }

    /// How a communicator's data travels.
    pub(crate) fn transport(&self, comm: CommId) -> String {
        let Some(group) = self.groups.get(&comm) else {
            return "none".into();
        };
        let me = self.endpoint.me.process;
        let mut kinds: Vec<&str> = group
            .members
            .iter()
            .filter(|member| member.process != me)
            .map(|member| self.endpoint.kind_for(member).name())
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() {
            "none".into()
        } else {
            kinds.join("+")
        }
    }
}

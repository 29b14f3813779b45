//! Messages on their way between an operation and a link: posting, matching, granting, taking back.
//!
//! Part of the progress engine's state, under the same lock. Must not know how streams are read and
//! written; `traffic` does.

use ferrocomm_core::call::{Region, Source};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind};
use ferrocomm_core::ids::{CommId, GroupRank};

use crate::core::Core;
use crate::frame::{EAGER, Fingerprint, Header, Kind};
use crate::link::{Body, Outgoing, Then, client_bytes_mut};
use crate::membership::{Address, Payload, Posted, Standing, Unexpected};
use crate::op::{Recv, Send, Transfer};
use crate::slab::Key;

impl Core {
    pub(crate) fn post_send(
        &mut self,
        op: Key,
        comm: CommId,
        to: GroupRank,
        address: Address,
        fingerprint: Fingerprint,
        region: Region,
    ) {
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        let (sequence, part) = match address {
            Address::Collective { sequence, part } => (sequence, part),
            Address::Tagged(tag) => (0, tag),
        };
        let own = to == group.rank;
        if !own {
            group.told(to, sequence, fingerprint);
        }
        let link = match if own {
            Ok(None)
        } else {
            self.link_to(comm, to).map(Some)
        } {
            Ok(link) => link,
            Err(error) => return self.fail(comm, error),
        };
        let Some(send) = self.start_transfer(op, Transfer::Send, |core, index| {
            core.sends.insert(Send {
                op,
                index,
                comm,
                to,
                link,
                region,
                sent: 0,
                gone: 0,
                granted: None,
            })
        }) else {
            return;
        };
        let eager = region.bytes <= EAGER;
        #[allow(clippy::cast_possible_truncation, reason = "at most EAGER")]
        let header = Header {
            kind: if eager { Kind::Message } else { Kind::Announce },
            comm,
            fingerprint,
            sequence,
            part,
            length: region.bytes as u64,
            transfer: send.to_bits(),
            payload: if eager { region.bytes as u32 } else { 0 },
            certain: false,
        };
        match link {
            None => self.deliver_local(comm, to, header, send),
            Some(link) if eager => {
                self.push(
                    link,
                    &header,
                    Body::Lent { send, region },
                    Then::Complete(send),
                );
            }
            Some(link) => self.push(link, &header, Body::Owned(Vec::new()), Then::Nothing),
        }
    }

    /// Enters a transfer in its operation; its key.
    pub(crate) fn start_transfer(
        &mut self,
        op: Key,
        kind: fn(Key) -> Transfer,
        insert: impl FnOnce(&mut Self, u32) -> Key,
    ) -> Option<Key> {
        let started = self.ops.get(op)?.transfers.len();
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a program has far fewer transfers"
        )]
        let key = insert(self, started as u32);
        self.ops.get_mut(op)?.transfers.push(kind(key));
        Some(key)
    }

    /// Ends a send that is not complete. What has begun to leave goes on from a copy, so that no
    /// receiver takes anything else for the client's data; the rest is taken back.
    pub(crate) fn withdraw(&mut self, key: Key) {
        let Some(send) = self.sends.remove(key) else {
            return;
        };
        let Some(link) = send.link else { return };
        if let Some(entry) = self.links.get_mut(link) {
            entry.take_back(key);
        }
        let goes_on = self
            .groups
            .get(&send.comm)
            .is_some_and(|group| matches!(group.standing, Standing::Open));
        if goes_on {
            let mut header = Header::control(Kind::TakenBack, send.comm);
            header.transfer = key.to_bits();
            self.push_control(link, &header, Vec::new());
        } else if let Some(recv) = send.granted {
            self.tell_withdrawn(link, send.comm, recv, key.to_bits());
        }
    }

    /// Tells a receiver that what it has granted will not come.
    pub(crate) fn tell_withdrawn(&mut self, link: Key, comm: CommId, recv: u64, send: u64) {
        let mut header = Header::control(Kind::Withdrawn, comm);
        header.transfer = recv;
        header.sequence = send;
        self.push_control(link, &header, Vec::new());
    }

    /// A sender took a message back and goes on: a receive that has met it waits for the next one,
    /// unless a part of it is there.
    pub(crate) fn taken_back(&mut self, link: Key, header: &Header) {
        let comm = header.comm;
        let Some(from) = self.sender(link, comm) else {
            let process = self.links.get(link).map(|link| link.peer);
            return self.orphans.retain(|(of, orphan, _)| {
                Some(*of) != process
                    || orphan.comm != comm
                    || orphan.transfer != header.transfer
                    || !matches!(orphan.kind, Kind::Message | Kind::Announce)
            });
        };
        if let Some(group) = self.groups.get_mut(&comm) {
            group.unexpected.retain(|message| {
                message.from != from || message.header.transfer != header.transfer
            });
        }
        let met = self
            .recvs
            .iter()
            .find(|(_, recv)| recv.comm == comm && recv.granted == Some((from, header.transfer)));
        let Some((key, recv)) = met else { return };
        match recv.address {
            Address::Tagged(_) if recv.got == 0 => self.post_again(key),
            Address::Tagged(_) | Address::Collective { .. } => {
                self.withdrawn(comm, from, key, header.transfer);
            }
        }
    }

    /// Posts a receive in the place it had among the others.
    fn post_again(&mut self, key: Key) {
        let Some(mut recv) = self.recvs.remove(key) else {
            return;
        };
        recv.granted = None;
        let (comm, from, address) = (recv.comm, recv.from, recv.address);
        let (op, index) = (recv.op, recv.index);
        // By another name: a chunk of the message that was taken back may still come, on another stream.
        let key = self.recvs.insert(recv);
        if let Some(op) = self.ops.get_mut(op) {
            op.transfers[index as usize] = Transfer::Recv(key);
        }
        let (ops, recvs) = (&self.ops, &self.recvs);
        let turn = |key: Key| {
            let recv = recvs.get(key)?;
            Some((ops.get(recv.op)?.sequence, recv.index))
        };
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        if let Some(message) = group.take_unexpected(from, address) {
            return self.meet(comm, message, key);
        }
        let own = turn(key);
        let place = group
            .posted
            .iter()
            .position(|other| other.address == address && turn(other.recv) > own)
            .unwrap_or(group.posted.len());
        let posted = Posted {
            recv: key,
            from,
            address,
        };
        group.posted.insert(place, posted);
    }

    /// A sender gave up a message that this rank has granted.
    pub(crate) fn withdrawn(&mut self, comm: CommId, from: GroupRank, recv: Key, send: u64) {
        let met = |recv: &&Recv| recv.granted == Some((from, send));
        let Some(op) = self.recvs.get(recv).filter(met).map(|recv| recv.op) else {
            return;
        };
        let error = Error::new(ErrorKind::Cancelled, "the sender gave up its message")
            .peers([from])
            .remedy("look at why the named rank cancelled its send or let its time-out pass");
        if self.is_collective(op) {
            self.fail(comm, error);
        } else {
            self.fail_alone(op, error);
        }
    }

    fn deliver_local(&mut self, comm: CommId, from: GroupRank, header: Header, send: Key) {
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        match group.take_posted(from, Address::of(&header)) {
            Some(posted) => self.copy_local(comm, from, &header, send, posted.recv),
            None => group.unexpected.push_back(Unexpected {
                from,
                header,
                payload: Payload::Local(send),
            }),
        }
    }

    fn copy_local(&mut self, comm: CommId, from: GroupRank, header: &Header, send: Key, recv: Key) {
        if !self.accept(comm, from, header, recv) {
            return;
        }
        let (Some(source), Some(target)) = (self.sends.remove(send), self.recvs.remove(recv))
        else {
            return;
        };
        // SAFETY: both works are not complete, so their clients keep the regions valid; the lengths
        // were compared; `copy` lets them overlap.
        unsafe {
            std::ptr::copy(
                source.region.address as *const u8,
                target.region.address as *mut u8,
                target.region.bytes,
            );
        }
        self.transfer_done(source.op, source.index);
        self.transfer_done(target.op, target.index);
    }

    pub(crate) fn post_recv(
        &mut self,
        op: Key,
        comm: CommId,
        from: Source,
        address: Address,
        dtype: Dtype,
        region: Region,
    ) {
        let Some(recv) = self.start_transfer(op, Transfer::Recv, |core, index| {
            core.recvs.insert(Recv {
                op,
                index,
                comm,
                region,
                got: 0,
                dtype,
                from,
                address,
                granted: None,
            })
        }) else {
            return;
        };
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        let own = group.rank;
        if let Some(message) = group.take_unexpected(from, address) {
            return self.meet(comm, message, recv);
        }
        group.posted.push(Posted {
            recv,
            from,
            address,
        });
        // A link to whom is awaited: without it nobody would notice that it died.
        if let Source::Rank(peer) = from
            && peer != own
            && let Err(error) = self.link_to(comm, peer)
        {
            self.fail(comm, error);
        }
    }

    /// A message that came early meets its receive.
    pub(crate) fn meet(&mut self, comm: CommId, message: Unexpected, recv: Key) {
        let Unexpected {
            from,
            header,
            payload,
        } = message;
        match payload {
            Payload::Local(send) => self.copy_local(comm, from, &header, send, recv),
            Payload::Here(bytes) => {
                if self.accept(comm, from, &header, recv)
                    && let Some(entry) = self.recvs.remove(recv)
                {
                    // SAFETY: the receive is alive, so its client keeps the region valid.
                    unsafe { client_bytes_mut(entry.region) }.copy_from_slice(&bytes);
                    self.transfer_done(entry.op, entry.index);
                }
            }
            Payload::Announced => {
                if self.accept(comm, from, &header, recv) {
                    self.grant(comm, from, &header, recv);
                }
            }
        }
    }

    /// Whether the message fits the receive; fails the communicator when it does not.
    pub(crate) fn accept(
        &mut self,
        comm: CommId,
        from: GroupRank,
        header: &Header,
        recv: Key,
    ) -> bool {
        let Some(entry) = self.recvs.get(recv) else {
            return false;
        };
        let Some(op) = self.ops.get(entry.op) else {
            return false;
        };
        let fits =
            header.length == entry.region.bytes as u64 && header.fingerprint.dtype == entry.dtype;
        if fits {
            if header.sequence == 0 {
                op.work.set_source(from);
            }
            return true;
        }
        let error = Error::new(ErrorKind::Mismatch, "a message does not fit its receive")
            .got(format_args!(
                "{} elements of {} from rank {from}",
                header.length / header.fingerprint.dtype.size() as u64,
                header.fingerprint.dtype
            ))
            .expected(format_args!(
                "{} elements of {}",
                entry.region.bytes / entry.dtype.size(),
                entry.dtype
            ))
            .peers([from])
            .operation(op.work.operation().name())
            .sequence(op.sequence)
            .remedy("send and receive the same number of elements of the same dtype");
        self.fail(comm, error);
        false
    }

    pub(crate) fn grant(&mut self, comm: CommId, from: GroupRank, header: &Header, recv: Key) {
        if let Some(entry) = self.recvs.get_mut(recv) {
            entry.granted = Some((from, header.transfer));
        }
        let mut grant = Header::control(Kind::Grant, comm);
        grant.transfer = header.transfer;
        grant.sequence = recv.to_bits();
        match self.link_to(comm, from) {
            Ok(link) => self.push_control(link, &grant, Vec::new()),
            Err(error) => self.fail(comm, error),
        }
    }

    pub(crate) fn push_control(&mut self, link: Key, header: &Header, payload: Vec<u8>) {
        self.push(link, header, Body::Owned(payload), Then::Nothing);
    }

    fn push(&mut self, link: Key, header: &Header, body: Body, then: Then) {
        if let Some(entry) = self.links.get_mut(link) {
            let header = header.encode();
            entry.out.push_back(Outgoing {
                header,
                body,
                written: 0,
                then,
            });
            self.write_link(link);
        }
    }

    /// A send is complete: its bytes are in the stream.
    pub(crate) fn send_done(&mut self, send: Key) {
        if let Some(send) = self.sends.remove(send) {
            self.transfer_done(send.op, send.index);
        }
    }

    /// A receive has all its bytes.
    pub(crate) fn recv_done(&mut self, recv: Key) {
        if let Some(recv) = self.recvs.remove(recv) {
            self.transfer_done(recv.op, recv.index);
        }
    }
}

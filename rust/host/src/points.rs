//! Point-to-point on the caller's thread: a small message goes straight into the stream, and comes
//! straight out of it, without an operation in the engine's tables. Whatever does not go like that at
//! once, or within a spin, is the engine's: it finds everything as if nobody had tried.
//!
//! Must not know how streams work.

use std::io::IoSlice;
use std::time::Instant;

use ferrocomm_core::call::{Call, Operation, PointToPoint, Region, Source};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::Result;
use ferrocomm_core::ids::{CommId, GroupRank};

use crate::core::Core;
use crate::engine::HostGroup;
use crate::frame::{EAGER, Fingerprint, HEADER, Header, Kind, same_but_transfer};
use crate::link::{Link, LinkState, Reading, client_bytes, client_bytes_mut};
use crate::membership::Address;
use crate::slab::Key;

/// Looks for a message while the lock is held once. Others that want it wait about a microsecond.
const LOOKS: u32 = 16;

/// What a look for a message found.
enum Look {
    Taken,
    Nothing,
    /// something the engine has to deal with
    Other,
}

/// A message that is awaited.
struct Wanted {
    from: GroupRank,
    tag: u32,
    region: Region,
    /// its header, but for the sender's transfer
    header: [u8; HEADER],
}

/// The header of a message of `bytes` bytes that travels with its payload.
fn header_of(comm: CommId, tag: u32, dtype: Dtype, bytes: usize) -> [u8; HEADER] {
    Header {
        kind: Kind::Message,
        comm,
        fingerprint: Fingerprint {
            operation: Operation::Send,
            dtype,
            op: None,
            root: None,
            bytes: Some(bytes as u64),
        },
        sequence: 0,
        part: tag,
        length: bytes as u64,
        transfer: 0,
        payload: u32::try_from(bytes).unwrap_or(u32::MAX),
    }
    .encode_certain()
}

impl HostGroup {
    /// Runs a send or a receive if it is soon over; whether it is. `issued` is called when it is, or
    /// before it waits. What is left of its time is for the engine.
    ///
    /// # Errors
    /// As `Group::run`.
    pub(crate) fn point_at_once(
        &self,
        call: &mut Call,
        point: PointToPoint,
        issued: &mut dyn FnMut(),
    ) -> Result<bool> {
        match point {
            PointToPoint::Send { .. } => {
                let sent = self.send_at_once(point, call.dtype)?;
                if sent {
                    issued();
                }
                Ok(sent)
            }
            PointToPoint::Recv {
                buffer,
                from: Source::Rank(from),
                tag,
            } if buffer.bytes <= EAGER => {
                let wanted = Wanted {
                    from,
                    tag,
                    region: buffer,
                    header: header_of(self.comm(), tag, call.dtype, buffer.bytes),
                };
                self.receive_at_once(call, &wanted, issued)
            }
            PointToPoint::Recv { .. } => Ok(false),
        }
    }

    /// Sends a small message if there is room for it; whether there was.
    ///
    /// # Errors
    /// As `Group::issue`.
    pub(crate) fn send_at_once(&self, point: PointToPoint, dtype: Dtype) -> Result<bool> {
        let PointToPoint::Send { buffer, to, tag } = point else {
            return Ok(false);
        };
        if buffer.bytes > EAGER {
            return Ok(false);
        }
        let header = header_of(self.comm(), tag, dtype, buffer.bytes);
        self.progress()
            .look(|core| core.send_now(self.comm(), to, &header, buffer))
    }

    fn receive_at_once(
        &self,
        call: &mut Call,
        wanted: &Wanted,
        issued: &mut dyn FnMut(),
    ) -> Result<bool> {
        let mut until = None;
        loop {
            let looks = if until.is_some() { LOOKS } else { 1 };
            let found = self.progress().look(|core| {
                for _ in 1..looks {
                    match core.receive_now(self.comm(), wanted)? {
                        Look::Nothing => std::hint::spin_loop(),
                        found => return Ok(found),
                    }
                }
                core.receive_now(self.comm(), wanted)
            })?;
            match found {
                Look::Taken => {
                    issued();
                    return Ok(true);
                }
                Look::Other => return Ok(false),
                Look::Nothing => {}
            }
            let now = Instant::now();
            let (begun, spin) = *until.get_or_insert_with(|| {
                issued();
                (now, self.progress().spin().min(call.timeout))
            });
            if now - begun >= spin {
                call.timeout = call.timeout.saturating_sub(now - begun);
                return Ok(false);
            }
        }
    }
}

impl Core {
    /// Puts a small message into the stream to `to`, if it goes at once and whole.
    fn send_now(
        &mut self,
        comm: CommId,
        to: GroupRank,
        header: &[u8; HEADER],
        region: Region,
    ) -> Result<bool> {
        let Some((_, link)) = self.near_link(comm, to)? else {
            return Ok(false);
        };
        // What was queued before goes first.
        if !link.out.is_empty() {
            return Ok(false);
        }
        let Some(channel) = link.channels.first_mut() else {
            return Ok(false);
        };
        let bytes = HEADER + region.bytes;
        if !channel.stream.has_room(bytes) {
            return Ok(false);
        }
        // SAFETY: the call is not over, so its client keeps the region valid and unchanged.
        let body = unsafe { client_bytes(region) };
        let parts = [IoSlice::new(header), IoSlice::new(body)];
        // A broken stream takes nothing; the engine finds the same, and says what it means.
        Ok(channel
            .stream
            .try_write(&parts)
            .is_ok_and(|written| written == bytes))
    }

    /// Takes a small message out of the stream, if it is the next one there.
    fn receive_now(&mut self, comm: CommId, wanted: &Wanted) -> Result<Look> {
        // Who waits drives what nobody waits for.
        if self.asynchronous > 0 {
            return Ok(Look::Other);
        }
        let address = Address::Tagged(wanted.tag);
        if self.open_group(comm)?.has_met(wanted.from, address) {
            return Ok(Look::Other);
        }
        let Some((key, link)) = self.near_link(comm, wanted.from)? else {
            return Ok(Look::Other);
        };
        let mut start = [0; HEADER];
        for (index, channel) in link.channels.iter_mut().enumerate() {
            let between = matches!(channel.reading, Reading::Header { got: 0, .. });
            if channel.ended || !channel.judged || !between {
                return Ok(Look::Other);
            }
            if !channel.stream.peek(&mut start, HEADER) {
                continue;
            }
            if !same_but_transfer(&start, &wanted.header) {
                self.read_channel(key, index);
                return Ok(Look::Nothing);
            }
            if !channel.stream.peek(&mut start, HEADER + wanted.region.bytes) {
                continue;
            }
            // SAFETY: the call is not over, so its client keeps the region valid and leaves it to
            // the engine.
            let body = unsafe { client_bytes_mut(wanted.region) };
            let read = channel
                .stream
                .try_read(&mut start)
                .and_then(|_| channel.stream.try_read(body));
            return Ok(match read {
                Ok(read) if read == body.len() => Look::Taken,
                Ok(_) | Err(_) => Look::Other,
            });
        }
        Ok(Look::Nothing)
    }

    fn near_link(&mut self, comm: CommId, rank: GroupRank) -> Result<Option<(Key, &mut Link)>> {
        let group = self.open_group(comm)?;
        if group.rank == rank {
            return Ok(None);
        }
        let process = group.members.get(rank.index()).map(|member| member.process);
        let Some(key) = process.and_then(|process| self.by_process.get(&process).copied()) else {
            return Ok(None);
        };
        let link = self.links.get_mut(key);
        Ok(link
            .filter(|link| matches!(link.state, LinkState::Open))
            .map(|link| (key, link)))
    }
}

//! Point-to-point on the caller's thread: a small message goes straight into the stream, and comes
//! straight out of it, without an operation in the engine's tables. Whatever does not go like that at
//! once, or within a spin, is the engine's: it finds everything as if nobody had tried.
//!
//! Must not know how streams work.

#[cfg(test)]
mod tests;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Call, Operation, PointToPoint, Region, Source};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::Result;
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::work::Work;

use crate::core::Core;
use crate::engine::HostGroup;
use crate::frame::{EAGER, Fingerprint, HEADER, Header, Kind, same_but_transfer};
use crate::link::{Link, LinkState, Reading, Sink, client_bytes, client_bytes_mut};
use crate::membership::{Address, Early, Payload, Unexpected};
use crate::op::{Course, Recv, Transfer};
use crate::slab::Key;
use crate::stream::Stream;

/// Looks for a message while the lock is held once. Others that want it wait about a microsecond.
const LOOKS: u32 = 16;

/// What a look for a message found.
enum Look {
    Taken,
    Nothing,
    /// the first part of it: the engine takes the rest
    Part(Arc<Work>),
    /// something the engine has to deal with
    Other,
}

/// What became of a call.
pub(crate) enum Tried {
    Over,
    /// begun: the engine has it
    Handed(Arc<Work>),
    Not,
}

/// Looks for the next bytes of a message whose sender is just writing it.
const LOOKS_WITHIN: u32 = 512;

/// A message that is awaited.
struct Wanted<'a> {
    call: &'a Call,
    from: GroupRank,
    tag: u32,
    region: Region,
    /// its header, but for the sender's transfer
    header: [u8; HEADER],
}

impl Wanted<'_> {
    /// Takes a message that came early, if it fits and can be had without asking anybody.
    fn take(&self, early: &Unexpected) -> bool {
        let Payload::Here(bytes) = &early.payload else {
            return false;
        };
        let fits = early.header.certain
            && early.header.fingerprint.dtype == self.call.dtype
            && bytes.len() == self.region.bytes;
        if fits {
            // SAFETY: the call is not over, so its client keeps the region valid and leaves it to
            // the engine.
            unsafe { client_bytes_mut(self.region) }.copy_from_slice(bytes);
        }
        fits
    }
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
        certain: true,
    }
    .encode()
}

impl HostGroup {
    /// Runs a send or a receive if it is over without a wait.
    ///
    /// # Errors
    /// As `Group::issue`.
    pub(crate) fn point_now(&self, call: &Call, point: PointToPoint) -> Result<Tried> {
        match point {
            PointToPoint::Send { buffer, to, tag } if buffer.bytes <= EAGER => {
                let header = header_of(self.comm(), tag, call.dtype, buffer.bytes);
                let send = |core: &mut Core| core.send_now(self.comm(), to, &header, buffer);
                let sent = self.progress().look(send)?;
                Ok(if sent { Tried::Over } else { Tried::Not })
            }
            PointToPoint::Send { .. } => Ok(Tried::Not),
            PointToPoint::Recv { .. } => {
                let Some(wanted) = self.wanted(call, point) else {
                    return Ok(Tried::Not);
                };
                let look = |core: &mut Core| core.receive_now(self.comm(), &wanted);
                Ok(match self.progress().look(look)? {
                    Look::Taken => Tried::Over,
                    Look::Part(work) => Tried::Handed(work),
                    Look::Nothing | Look::Other => Tried::Not,
                })
            }
        }
    }

    /// Runs a send or a receive if it is soon over. `issued` is called when it is, or before it waits;
    /// the time that took is taken from the call's.
    ///
    /// # Errors
    /// As `Group::run`.
    pub(crate) fn point_at_once(
        &self,
        call: &mut Call,
        point: PointToPoint,
        issued: &mut dyn FnMut(),
    ) -> Result<Tried> {
        if let Some(wanted) = self.wanted(call, point) {
            let (tried, waited) = self.receive_at_once(&wanted, issued)?;
            call.timeout = call.timeout.saturating_sub(waited);
            return Ok(tried);
        }
        let tried = self.point_now(call, point)?;
        if matches!(tried, Tried::Over) {
            issued();
        }
        Ok(tried)
    }

    /// The message that a receive awaits, if it is small and from one rank.
    fn wanted<'a>(&self, call: &'a Call, point: PointToPoint) -> Option<Wanted<'a>> {
        match point {
            PointToPoint::Recv {
                buffer,
                from: Source::Rank(from),
                tag,
            } if buffer.bytes <= EAGER => Some(Wanted {
                call,
                from,
                tag,
                region: buffer,
                header: header_of(self.comm(), tag, call.dtype, buffer.bytes),
            }),
            PointToPoint::Recv { .. } | PointToPoint::Send { .. } => None,
        }
    }

    /// Takes a message, and how long that took.
    fn receive_at_once(
        &self,
        wanted: &Wanted<'_>,
        issued: &mut dyn FnMut(),
    ) -> Result<(Tried, Duration)> {
        let mut since = None;
        loop {
            // At first it may be there already.
            let looks = if since.is_some() { LOOKS } else { 1 };
            let found = self.progress().look(|core| {
                for _ in 1..looks {
                    match core.receive_now(self.comm(), wanted)? {
                        Look::Nothing => std::hint::spin_loop(),
                        found => return Ok(found),
                    }
                }
                core.receive_now(self.comm(), wanted)
            })?;
            let waited = since.map_or(Duration::ZERO, |(begun, _): (Instant, _)| begun.elapsed());
            match found {
                Look::Taken => {
                    issued();
                    return Ok((Tried::Over, waited));
                }
                Look::Part(work) => return Ok((Tried::Handed(work), waited)),
                Look::Other => return Ok((Tried::Not, waited)),
                Look::Nothing => {}
            }
            let (_, spin) = *since.get_or_insert_with(|| {
                issued();
                (
                    Instant::now(),
                    self.progress().spin().min(wanted.call.timeout),
                )
            });
            if waited >= spin {
                return Ok((Tried::Not, waited));
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
    fn receive_now(&mut self, comm: CommId, wanted: &Wanted<'_>) -> Result<Look> {
        // Who waits drives what nobody waits for.
        if self.asynchronous > 0 {
            return Ok(Look::Other);
        }
        let group = self.open_group(comm)?;
        match group.early(wanted.from, Address::Tagged(wanted.tag)) {
            Early::None => {}
            Early::Receive => return Ok(Look::Other),
            Early::Message(at) => {
                let taken = group
                    .unexpected
                    .get(at)
                    .is_some_and(|early| wanted.take(early));
                if taken {
                    group.unexpected.remove(at);
                }
                return Ok(if taken { Look::Taken } else { Look::Other });
            }
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
            let read = read_whole(channel.stream.as_mut(), &mut start, wanted.region);
            return match read {
                Some(read) if read == wanted.region.bytes => Ok(Look::Taken),
                Some(read) => self.hand_over((key, index), comm, wanted, (&start, read)),
                // A broken stream says so again.
                None => Ok(Look::Other),
            };
        }
        Ok(Look::Nothing)
    }

    /// Lets the engine read the rest of a message of which `read` bytes are here.
    fn hand_over(
        &mut self,
        (link, channel): (Key, usize),
        comm: CommId,
        wanted: &Wanted<'_>,
        (header, read): (&[u8; HEADER], usize),
    ) -> Result<Look> {
        let header = Header::decode(header)?;
        let call = wanted.call;
        let work = Arc::new(Work::new(Operation::Recv, call.sequence));
        work.set_source(wanted.from);
        let op = self.add_op(
            &work,
            comm,
            call.sequence,
            call.timeout,
            call.mode,
            Course::Points,
        );
        self.set_deadline(op);
        let recv = self.start_transfer(op, Transfer::Recv, |core, index| {
            core.recvs.insert(Recv {
                op,
                index,
                comm,
                region: wanted.region,
                got: read,
                dtype: call.dtype,
                from: Source::Rank(wanted.from),
                address: Address::Tagged(wanted.tag),
                granted: None,
            })
        });
        let sink = recv.map_or(Sink::Nowhere, Sink::Receive);
        let channel = self
            .links
            .get_mut(link)
            .and_then(|link| link.channels.get_mut(channel));
        if let Some(channel) = channel {
            channel.reading = Reading::Payload {
                header,
                sink,
                got: read,
            };
        }
        Ok(Look::Part(work))
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

/// Reads a header and the payload behind it, as long as that comes without a pause; how much of the
/// payload did.
fn read_whole(stream: &mut dyn Stream, header: &mut [u8; HEADER], region: Region) -> Option<usize> {
    stream.try_read(header).ok()?;
    // SAFETY: the call is not over, so its client keeps the region valid and leaves it to the
    // engine.
    let body = unsafe { client_bytes_mut(region) };
    let (mut read, mut looks) = (0, 0);
    while read < body.len() && looks < LOOKS_WITHIN {
        match stream.try_read(&mut body[read..]).ok()? {
            0 => {
                looks += 1;
                std::hint::spin_loop();
            }
            more => {
                read += more;
                looks = 0;
            }
        }
    }
    Some(read)
}

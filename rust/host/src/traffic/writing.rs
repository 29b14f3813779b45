//! What goes out on a link: the frames that wait, then chunks of long messages in turns.
//!
//! Part of the progress engine's state, under the same lock. Nothing here blocks. Must not know
//! where what comes in goes.

use std::io;

use ferrocomm_core::ids::CommId;

use crate::core::Core;
use crate::frame::{CHUNK, Header, Kind};
use crate::link::{Body, LinkState, Outgoing, Then};
use crate::slab::Key;

impl Core {
    /// Writes what waits, as far as there is room; whether anything went.
    pub(crate) fn write_link(&mut self, key: Key) -> bool {
        self.write_first(key) | self.write_lanes(key)
    }

    fn write_first(&mut self, key: Key) -> bool {
        let mut moved = false;
        loop {
            let Some(link) = self.links.get_mut(key) else {
                return moved;
            };
            if !matches!(link.state, LinkState::Open) {
                return moved;
            }
            if link.out.is_empty() {
                let Some(chunk) = self.next_chunk(key, 0) else {
                    return moved;
                };
                if let Some(link) = self.links.get_mut(key) {
                    link.out.push_back(chunk);
                }
            }
            let Some(link) = self.links.get_mut(key) else {
                return moved;
            };
            match link.write_front() {
                Ok((true, _)) => {
                    moved = true;
                    if let Some(front) = link.out.pop_front() {
                        self.frame_gone(&front);
                    }
                }
                Ok((false, written)) => {
                    moved |= written > 0;
                    if written == 0 {
                        return moved;
                    }
                }
                Err(error) => {
                    self.write_failed(key, &error);
                    return true;
                }
            }
        }
    }

    pub(super) fn frame_gone(&mut self, frame: &Outgoing) {
        match frame.then {
            Then::Nothing => {}
            Then::Complete(send) => self.send_done(send),
            Then::Part(key, bytes) => {
                if let Some(send) = self.sends.get_mut(key) {
                    send.gone += bytes;
                    if send.gone == send.region.bytes {
                        self.send_done(key);
                    }
                }
            }
        }
    }

    pub(super) fn write_failed(&mut self, key: Key, error: &io::Error) {
        // What the peer sent before it went is still to be read; reading ends the link.
        tracing::debug!(%error, "write failed");
        let channels = self.links.get(key).map_or(0, |link| link.channels.len());
        for channel in 0..channels {
            while self.read_channel(key, channel) {}
        }
        self.link_died(key, error);
    }

    /// The next chunk of a granted send of at least `least` bytes, if there is one.
    pub(super) fn next_chunk(&mut self, key: Key, least: usize) -> Option<Outgoing> {
        let link = self.links.get_mut(key)?;
        for _ in 0..link.streaming.len() {
            let send_key = link.streaming.pop_front()?;
            let Some(send) = self.sends.get_mut(send_key) else {
                continue;
            };
            let Some(granted) = send.granted else {
                continue;
            };
            if send.region.bytes < least {
                link.streaming.push_back(send_key);
                continue;
            }
            let bytes = CHUNK.min(send.region.bytes - send.sent);
            let region = send.region.slice(send.sent, bytes);
            let mut header = Header::control(Kind::Data, CommId(0));
            header.transfer = granted;
            header.sequence = send.sent as u64;
            header.payload = u32::try_from(bytes).unwrap_or(0);
            send.sent += bytes;
            if send.sent < send.region.bytes {
                link.streaming.push_back(send_key);
            }
            return Some(Outgoing {
                header: header.encode(),
                body: Body::Lent {
                    send: send_key,
                    region,
                },
                written: 0,
                then: Then::Part(send_key, bytes),
            });
        }
        None
    }
}

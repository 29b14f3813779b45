//! Further streams of a link: long messages go on several connections at once, because networks give a
//! single one only a part of what they can carry.
//!
//! Messages and all that must keep its order go on the link's first stream; chunks say where in their
//! message they belong, and go on whichever stream has room. Must not know what chunks are for.

use ferrocomm_core::ids::{CommId, GroupRank};

use crate::core::Core;
use crate::link::Lane;
use crate::slab::Key;
use crate::stream::{Stream, StreamKind};

/// Messages of so many bytes are spread.
pub(super) const SPREAD_FROM: usize = 1 << 20;

impl Core {
    /// Opens the further streams of `link`, where it has none and its send `send` is worth them. A peer
    /// that cannot be reached once more is no fault: the first stream carries everything.
    pub(super) fn widen(&mut self, link: Key, send: Key) {
        let Some((comm, to)) = self
            .sends
            .get(send)
            .filter(|send| send.region.bytes >= SPREAD_FROM)
            .map(|send| (send.comm, send.to))
        else {
            return;
        };
        let alone = self.links.get(link).is_some_and(|link| {
            !link.is_wide
                && link
                    .channels
                    .first()
                    .is_some_and(|channel| channel.stream.kind() == StreamKind::Tcp)
        });
        if !alone {
            return;
        }
        let streams = self.dial_more(comm, to);
        let Some(link) = self.links.get_mut(link) else {
            return;
        };
        link.is_wide = true;
        for stream in streams {
            let channel = link.add(stream);
            link.lanes.push(Lane {
                channel,
                frame: None,
            });
        }
    }

    fn dial_more(&mut self, comm: CommId, to: GroupRank) -> Vec<Box<dyn Stream>> {
        let Some(member) = self
            .groups
            .get(&comm)
            .and_then(|group| group.members.get(to.index()))
            .cloned()
        else {
            return Vec::new();
        };
        let more = self.endpoint.streams_to(&member) - 1;
        (0..more)
            .map_while(|_| {
                self.endpoint
                    .dial(&member)
                    .inspect_err(|error| tracing::debug!(%error, "no further stream"))
                    .ok()
            })
            .collect()
    }

    /// Writes chunks on the further streams, as far as there is room; whether anything went.
    pub(super) fn write_lanes(&mut self, key: Key) -> bool {
        let lanes = self.links.get(key).map_or(0, |link| link.lanes.len());
        let mut moved = false;
        for lane in 0..lanes {
            moved |= self.write_lane(key, lane);
        }
        moved
    }

    fn write_lane(&mut self, key: Key, lane: usize) -> bool {
        let mut moved = false;
        loop {
            let empty = self
                .links
                .get(key)
                .and_then(|link| link.lanes.get(lane))
                .is_some_and(|lane| lane.frame.is_none());
            if empty {
                let Some(chunk) = self.next_chunk(key, SPREAD_FROM) else {
                    return moved;
                };
                if let Some(lane) = self
                    .links
                    .get_mut(key)
                    .and_then(|link| link.lanes.get_mut(lane))
                {
                    lane.frame = Some(chunk);
                }
            }
            let Some(link) = self.links.get_mut(key) else {
                return moved;
            };
            match link.write_lane(lane) {
                Ok((written, whole)) => {
                    moved |= written > 0;
                    if let Some(frame) = whole {
                        self.frame_gone(&frame);
                    } else if written == 0 {
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
}

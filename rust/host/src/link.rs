//! The one logical link to another process: its streams, what waits to be written and what is
//! half read.
//!
//! Each side sends on one stream for the whole life of the link, so frames of a direction stay in
//! order. Where both dialled at once there are two streams, each used in the direction of its
//! dialler. Chunks of long messages need no order and may have further streams, lanes. Must not know matching or operations.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use ferrocomm_core::call::Region;
use ferrocomm_core::error::Error;
use ferrocomm_core::ids::ProcessId;

use crate::frame::{HEADER, Header};
use crate::slab::Key;
use crate::stream::Stream;
use crate::windows::Pane;

/// The payload of an outgoing frame.
pub(crate) enum Body {
    Owned(Vec<u8>),
    /// bytes of a send's region; a send that ends early takes its frames back first
    Lent {
        send: Key,
        region: Region,
    },
}

/// A frame on its way out.
pub(crate) struct Outgoing {
    pub(crate) header: [u8; HEADER],
    pub(crate) body: Body,
    pub(crate) written: usize,
    pub(crate) then: Then,
}

/// What it means that a frame is written.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    Nothing,
    /// the send is complete
    Complete(Key),
    /// so many bytes of the send are gone
    Part(Key, usize),
}

/// Where the payload of the frame being read goes.
pub(crate) enum Sink {
    Owned(Vec<u8>),
    /// into the receive, while it lives
    Receive(Key),
    /// into the receive from this byte on, while it lives
    Chunk(Key, u64),
    /// into the window from this byte on, while it is open
    Window(Arc<Pane>, u64),
    Nowhere,
}

/// What a stream is in the middle of.
pub(crate) enum Reading {
    Header {
        bytes: [u8; HEADER],
        got: usize,
    },
    Payload {
        header: Header,
        sink: Sink,
        got: usize,
    },
}

impl Reading {
    pub(crate) const START: Self = Self::Header {
        bytes: [0; HEADER],
        got: 0,
    };
}

/// A stream of a link with its place in a frame.
pub(crate) struct Channel {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) reading: Reading,
    pub(crate) ended: bool,
    /// where the peer runs has been looked at
    pub(crate) judged: bool,
}

/// How a link stands.
pub(crate) enum LinkState {
    /// not needed yet
    Idle,
    Open,
    Dead(Error),
}

/// A further stream of a link, on which this side sends chunks.
pub(crate) struct Lane {
    /// among the link's
    pub(crate) channel: usize,
    /// on its way out
    pub(crate) frame: Option<Outgoing>,
}

/// The link to one process.
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    pub(crate) state: LinkState,
    pub(crate) channels: Vec<Channel>,
    pub(crate) out: VecDeque<Outgoing>,
    /// granted sends, served in turn, a chunk each
    pub(crate) streaming: VecDeque<Key>,
    pub(crate) lanes: Vec<Lane>,
    /// it has been tried to open them
    pub(crate) is_wide: bool,
}

impl Link {
    pub(crate) fn new(peer: ProcessId) -> Self {
        Self {
            peer,
            state: LinkState::Idle,
            channels: Vec::new(),
            out: VecDeque::new(),
            streaming: VecDeque::new(),
            lanes: Vec::new(),
            is_wide: false,
        }
    }

    pub(crate) fn add(&mut self, stream: Box<dyn Stream>) -> usize {
        self.channels.push(Channel {
            stream,
            reading: Reading::START,
            ended: false,
            judged: false,
        });
        self.state = LinkState::Open;
        self.channels.len() - 1
    }

    /// Takes the frames of `send` out of the queue; the one that is half written goes on from a copy.
    pub(crate) fn take_back(&mut self, send: Key) {
        self.streaming.retain(|streaming| *streaming != send);
        self.out.retain(|frame| {
            frame.written > 0 || !matches!(&frame.body, Body::Lent { send: of, .. } if *of == send)
        });
        for lane in &mut self.lanes {
            let begun = lane.frame.take_if(|frame| {
                frame.written == 0
                    && matches!(&frame.body, Body::Lent { send: of, .. } if *of == send)
            });
            drop(begun);
        }
        let half_written = self.lanes.iter_mut().filter_map(|lane| lane.frame.as_mut());
        for frame in self.out.iter_mut().chain(half_written) {
            if let Body::Lent { send: of, region } = &frame.body
                && *of == send
            {
                // SAFETY: the send ends after this, under the same lock; until then its client
                // keeps the region valid.
                frame.body = Body::Owned(unsafe { client_bytes(*region) }.to_vec());
                frame.then = Then::Nothing;
            }
        }
    }

    /// Writes as much of the first frame as there is room for. Returns whether the frame is written
    /// whole, and how many bytes went.
    pub(crate) fn write_front(&mut self) -> io::Result<(bool, usize)> {
        let (Some(front), Some(channel)) = (self.out.front_mut(), self.channels.first_mut()) else {
            return Ok((false, 0));
        };
        write_frame(channel, front)
    }

    /// The same for the frame of a lane. Returns how many bytes went, and the frame once it is whole.
    pub(crate) fn write_lane(&mut self, lane: usize) -> io::Result<(usize, Option<Outgoing>)> {
        let Some(lane) = self.lanes.get_mut(lane) else {
            return Ok((0, None));
        };
        let (Some(frame), Some(channel)) =
            (lane.frame.as_mut(), self.channels.get_mut(lane.channel))
        else {
            return Ok((0, None));
        };
        let (whole, written) = write_frame(channel, frame)?;
        Ok((written, if whole { lane.frame.take() } else { None }))
    }
}

fn write_frame(channel: &mut Channel, front: &mut Outgoing) -> io::Result<(bool, usize)> {
    let body: &[u8] = match &front.body {
        Body::Owned(bytes) => bytes,
        Body::Lent { region, .. } => {
            // SAFETY: the send is alive, so its client keeps the region valid and unchanged
            // (`Group::issue`), and a send ends only under the lock this runs under.
            unsafe { client_bytes(*region) }
        }
    };
    let written = if front.written < HEADER {
        let parts = [
            IoSlice::new(&front.header[front.written..]),
            IoSlice::new(body),
        ];
        channel.stream.try_write(&parts)?
    } else {
        channel
            .stream
            .try_write(&[IoSlice::new(&body[front.written - HEADER..])])?
    };
    front.written += written;
    Ok((front.written == HEADER + body.len(), written))
}

/// The client's memory, to read.
///
/// # Safety
/// The region belongs to a call whose work is not complete, and nothing writes to it meanwhile.
pub(crate) unsafe fn client_bytes<'a>(region: Region) -> &'a [u8] {
    if region.bytes == 0 {
        return &[];
    }
    // SAFETY: as the caller promises; the address is not null where there are bytes.
    unsafe { std::slice::from_raw_parts(region.address as *const u8, region.bytes) }
}

/// The client's memory, to write.
///
/// # Safety
/// The region belongs to a call whose work is not complete, and nothing else uses it meanwhile.
pub(crate) unsafe fn client_bytes_mut<'a>(region: Region) -> &'a mut [u8] {
    if region.bytes == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises; the address is not null where there are bytes.
    unsafe { std::slice::from_raw_parts_mut(region.address as *mut u8, region.bytes) }
}

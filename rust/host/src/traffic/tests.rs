//! Frames that come in parts, with the engine's calls in between. The stream is a script, so that
//! every order can be had.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrocomm_core::call::{Call, Mode, Operation, PointToPoint, Region, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::work::Work;

use super::*;
use crate::bell::Bell;
use crate::bootstrap::Member;
use crate::endpoint::{Endpoint, TransportChoice};
use crate::frame::Fingerprint;
use crate::membership::Membership;
use crate::stream::{Stream, StreamKind};

const COMM: CommId = CommId(5);
const TAG: u32 = 7;

/// Delivers what the test has put there, and swallows what is written.
struct Script {
    incoming: Arc<Mutex<VecDeque<u8>>>,
    null: File,
}

impl Stream for Script {
    fn kind(&self) -> StreamKind {
        StreamKind::Tcp
    }

    fn try_write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock().unwrap();
        let count = into.len().min(incoming.len());
        for (place, byte) in into.iter_mut().zip(incoming.drain(..count)) {
            *place = byte;
        }
        Ok(count)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }

    fn watch_writable(&self) -> bool {
        false
    }

    fn before_sleep(&mut self) -> bool {
        false
    }

    fn after_sleep(&mut self, _ready: bool) {}

    fn probe(&mut self) {}
}

/// The engine of rank 0 of 2, and what rank 1 sends.
struct Stage {
    core: Core,
    incoming: Arc<Mutex<VecDeque<u8>>>,
}

impl Stage {
    fn new() -> Self {
        let endpoint = Endpoint::open(TransportChoice::Tcp).unwrap();
        let me = endpoint.me.clone();
        let bell = Arc::new(Bell::new(&me.unix).unwrap());
        let peer = Member {
            process: ProcessId([9; 16]),
            ..me.clone()
        };
        let mut core = Core::new(endpoint, bell);
        let members = Arc::new(vec![me, peer.clone()]);
        let seating = core.seating_for(&members);
        let group = Membership::new(
            "scripted".into(),
            GroupRank::new(0),
            members,
            seating,
            Arc::default(),
        );
        core.groups.insert(COMM, group);
        let incoming = Arc::default();
        let link = core.link_of(peer.process);
        core.links.get_mut(link).unwrap().add(Box::new(Script {
            incoming: Arc::clone(&incoming),
            null: File::open("/dev/null").unwrap(),
        }));
        Self { core, incoming }
    }

    /// Bytes come, and the engine takes them in.
    fn deliver(&mut self, bytes: &[u8]) {
        self.incoming.lock().unwrap().extend(bytes);
        while self.core.poll() {}
    }

    fn receive(&mut self, buffer: &mut [u8], from: Source) -> Arc<Work> {
        let buffer = Region {
            address: buffer.as_mut_ptr() as usize,
            bytes: buffer.len(),
        };
        let task = Task::PointToPoint(PointToPoint::Recv {
            buffer,
            from,
            tag: TAG,
        });
        let call = Call {
            task,
            dtype: Dtype::Byte,
            sequence: 1,
            timeout: Duration::from_secs(60),
            mode: Mode::Sync,
        };
        self.core.issue(COMM, call).unwrap()
    }

    /// Works that have ended well, in order.
    fn finished(&mut self) -> Vec<Arc<Work>> {
        let finished = std::mem::take(&mut self.core.finished);
        finished
            .into_iter()
            .map(|(work, _)| {
                work.outcome().unwrap().unwrap();
                work
            })
            .collect()
    }
}

/// A small message with its header.
fn message(payload: &[u8]) -> Vec<u8> {
    let mut header = Header::control(Kind::Message, COMM);
    header.fingerprint = Fingerprint {
        operation: Operation::Send,
        ..header.fingerprint
    };
    header.part = TAG;
    header.length = payload.len() as u64;
    header.payload = u32::try_from(payload.len()).unwrap();
    [&header.encode(), payload].concat()
}

#[test]
fn a_receive_finds_its_message_wherever_its_bytes_are_cut() {
    let payloads: [Vec<u8>; 2] = [vec![1; 100], vec![2; 100]];
    let bytes = payloads.iter().flat_map(|payload| message(payload));
    let bytes: Vec<u8> = bytes.collect();
    for from in [Source::Rank(GroupRank::new(1)), Source::Any] {
        for cut in 0..=bytes.len() {
            let mut stage = Stage::new();
            stage.deliver(&bytes[..cut]);
            let mut buffers = [[0; 100]; 2];
            let [first, second] = &mut buffers;
            let works = [stage.receive(first, from), stage.receive(second, from)];
            stage.deliver(&bytes[cut..]);
            let finished = stage.finished();
            assert_eq!(finished.len(), 2, "cut at {cut}: {from:?}");
            for (work, finished) in works.iter().zip(&finished) {
                assert!(Arc::ptr_eq(work, finished), "cut at {cut}: {from:?}");
            }
            assert_eq!(buffers[0], *payloads[0], "cut at {cut}: {from:?}");
            assert_eq!(buffers[1], *payloads[1], "cut at {cut}: {from:?}");
        }
    }
}

impl Stage {
    /// One more stream of the peer's: what is put there comes.
    fn widen(&mut self) -> Arc<Mutex<VecDeque<u8>>> {
        let incoming = Arc::default();
        let key = *self.core.by_process.values().next().unwrap();
        self.core.links.get_mut(key).unwrap().add(Box::new(Script {
            incoming: Arc::clone(&incoming),
            null: File::open("/dev/null").unwrap(),
        }));
        incoming
    }

    /// The peer has a message of `bytes` bytes; by what it is granted.
    fn announce(&mut self, transfer: u64, bytes: usize) -> u64 {
        let mut header = Header::control(Kind::Announce, COMM);
        header.fingerprint.operation = Operation::Send;
        header.part = TAG;
        header.length = bytes as u64;
        header.transfer = transfer;
        self.deliver(&header.encode());
        let granted = Some((GroupRank::new(1), transfer));
        let mut recvs = self.core.recvs.iter();
        let (key, _) = recvs.find(|(_, recv)| recv.granted == granted).unwrap();
        key.to_bits()
    }
}

fn chunk(recv: u64, start: usize, payload: &[u8]) -> Vec<u8> {
    let mut header = Header::control(Kind::Data, CommId(0));
    header.transfer = recv;
    header.sequence = start as u64;
    header.payload = u32::try_from(payload.len()).unwrap();
    [&header.encode(), payload].concat()
}

#[test]
fn chunks_find_their_places_whatever_stream_they_come_on() {
    let payload: Vec<u8> = (0..700_000_u32).map(|at| (at % 251) as u8).collect();
    let mut stage = Stage::new();
    let second = stage.widen();
    let mut buffer = vec![0; payload.len()];
    let work = stage.receive(&mut buffer, Source::Rank(GroupRank::new(1)));
    let recv = stage.announce(3, payload.len());
    let (first, last) = payload.split_at(250_000);
    let (middle, end) = last.split_at(200_000);
    let late = chunk(recv, 450_000, end);
    second.lock().unwrap().extend(&late[..100_000]);
    stage.deliver(&chunk(recv, 250_000, middle));
    second.lock().unwrap().extend(&late[100_000..]);
    stage.deliver(&[]);
    assert!(stage.finished().is_empty());
    stage.deliver(&chunk(recv, 0, first));
    assert!(Arc::ptr_eq(&stage.finished()[0], &work));
    assert!(buffer == payload);
}

#[test]
fn a_chunk_beyond_its_message_is_dropped() {
    let mut stage = Stage::new();
    let mut buffer = vec![7; 1000];
    let work = stage.receive(&mut buffer[..500], Source::Rank(GroupRank::new(1)));
    let recv = stage.announce(3, 500);
    stage.deliver(&chunk(recv, 400, &[1; 200]));
    stage.deliver(&chunk(recv, usize::MAX, &[1; 200]));
    assert!(buffer.iter().all(|byte| *byte == 7) && !work.is_complete());
}

#[test]
fn a_late_chunk_of_what_was_taken_back_is_nobodys() {
    let mut stage = Stage::new();
    let second = stage.widen();
    let mut buffer = vec![0; 400_000];
    let work = stage.receive(&mut buffer, Source::Rank(GroupRank::new(1)));
    let old = stage.announce(3, 400_000);
    let mut taken = Header::control(Kind::TakenBack, COMM);
    taken.transfer = 3;
    stage.deliver(&taken.encode());
    let new = stage.announce(4, 400_000);
    second.lock().unwrap().extend(chunk(old, 0, &[1; 200_000]));
    stage.deliver(&chunk(new, 200_000, &[2; 200_000]));
    assert!(stage.finished().is_empty());
    stage.deliver(&chunk(new, 0, &[2; 200_000]));
    assert!(Arc::ptr_eq(&stage.finished()[0], &work));
    assert!(buffer.iter().all(|byte| *byte == 2));
}

//! The ring of bytes in shared memory, and how its ends sleep and wake each other.

use loom::sync::Arc;
use loom::thread;

use crate::bell::Bell;
use crate::memory::Memory;

#[allow(dead_code, reason = "a model uses what it needs")]
#[path = "../../../rust/host/src/stream/announcements.rs"]
mod announcements;
#[allow(dead_code, reason = "a model uses what it needs")]
#[path = "../../../rust/host/src/stream/ring.rs"]
mod ring;

use announcements::{Announcements, WANTS_BYTES, WANTS_ROOM};
use ring::{COUNTS, Consumer, Place, Producer};

const WRITER: usize = COUNTS;
const READER: usize = COUNTS + 4;
const BYTES: usize = COUNTS + 8;

fn memory(capacity: usize) -> (Arc<Memory>, Place) {
    let place = Place {
        counts: 0,
        bytes: BYTES,
        capacity,
    };
    let memory = Memory::new(BYTES..BYTES + capacity);
    for count in [0, COUNTS / 2] {
        memory.atomic_u64(count);
    }
    for word in [WRITER, READER] {
        memory.atomic_u32(word);
    }
    (Arc::new(memory), place)
}

/// `total` bytes through a ring of `capacity`, written two and read three at a time: none is lost,
/// none is torn, and no byte is written while it is read.
pub fn bytes_pass_the_ring_in_order(capacity: usize, total: u8) {
    crate::check(Some(crate::INTERRUPTIONS), move || {
        let (memory, place) = memory(capacity);
        let writer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let bytes: Vec<u8> = (1..=total).collect();
                let mut producer = Producer::new(place);
                let mut sent = 0;
                while sent < bytes.len() {
                    let next = &bytes[sent..bytes.len().min(sent + 2)];
                    let taken = producer.write(&memory, next).expect("sound counts");
                    producer.publish(&memory);
                    sent += taken;
                    if taken == 0 {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut consumer = Consumer::new(place);
        let mut got: Vec<u8> = Vec::new();
        while got.len() < usize::from(total) {
            let mut into = [0; 3];
            let count = consumer.read(&memory, &mut into).expect("sound counts");
            consumer.release(&memory);
            got.extend(&into[..count]);
            if count == 0 {
                thread::yield_now();
            }
        }
        assert!(got.iter().copied().eq(1..=total), "{got:?}");
        writer.join().expect("the writer ends");
    });
}

/// A writer and a reader that sleep whenever they can go no further: none sleeps for ever. Without
/// the full fences the checker finds both asleep.
pub fn no_wake_up_is_lost(capacity: usize, total: u8) {
    crate::check(Some(crate::INTERRUPTIONS), move || {
        let (memory, place) = memory(capacity);
        let (to_writer, to_reader) = (Bell::new(), Bell::new());
        let writer = {
            let (memory, own, peers) = (memory.clone(), to_writer.clone(), to_reader.clone());
            thread::spawn(move || {
                let words = Announcements::new(WRITER, READER);
                let mut producer = Producer::new(place);
                for byte in 1..=total {
                    while producer.write(&memory, &[byte]).expect("sound counts") == 0 {
                        words.announce(&memory, WANTS_ROOM);
                        if producer.room(&memory).expect("sound counts") == 0 {
                            own.sleep();
                        }
                        words.withdraw(&memory);
                    }
                    producer.publish(&memory);
                    if words.must_ring(&memory, WANTS_BYTES) {
                        peers.ring();
                    }
                }
            })
        };
        let words = Announcements::new(READER, WRITER);
        let mut consumer = Consumer::new(place);
        for byte in 1..=total {
            let mut into = [0];
            while consumer.read(&memory, &mut into).expect("sound counts") == 0 {
                words.announce(&memory, WANTS_BYTES);
                if consumer.waiting(&memory).expect("sound counts") == 0 {
                    to_reader.sleep();
                }
                words.withdraw(&memory);
            }
            assert_eq!(into, [byte]);
            consumer.release(&memory);
            if words.must_ring(&memory, WANTS_ROOM) {
                to_writer.ring();
            }
        }
        writer.join().expect("the writer ends");
    });
}

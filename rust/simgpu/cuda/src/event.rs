//! Events. A record is a number that goes up; who waits, waits for the record that was the latest
//! when the wait was asked for.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::capture::{self, Capture};
use crate::context;
use crate::handles::Handles;
use crate::locked;
use crate::status::{Outcome, Status};
use crate::stream::{Stream, forbid_on_stream};

/// The flag of an event without times.
pub const DISABLE_TIMING: u32 = 2;
/// The flag of a record or wait that a capture takes as a node of its graph.
pub const EXTERNAL: u32 = 1;

static EVENTS: Handles<Event> = Handles::new(0x5300_0000_0000);

/// A point in a stream.
pub struct Event {
    /// Its handle, which is never used again.
    pub handle: usize,
    flags: u32,
    state: Mutex<State>,
    happened: Condvar,
}

struct State {
    recorded: u64,
    done: u64,
    at: Instant,
    captured: Option<Captured>,
}

/// Where in a capture an event was recorded.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) capture: Arc<Capture>,
    pub(crate) nodes: Vec<usize>,
}

impl Event {
    /// An event of the current device.
    pub fn create(flags: u32) -> Outcome<Arc<Event>> {
        context::current()?;
        let handle = EVENTS.reserve();
        let state = State {
            recorded: 0,
            done: 0,
            at: Instant::now(),
            captured: None,
        };
        let event = Arc::new(Event {
            handle,
            flags,
            state: Mutex::new(state),
            happened: Condvar::new(),
        });
        EVENTS.insert(handle, event.clone());
        Ok(event)
    }

    /// The event of a handle.
    pub fn from_handle(handle: usize) -> Outcome<Arc<Event>> {
        EVENTS.get(handle)
    }

    /// Ends the handle; what waits for the event still sees it happen.
    pub fn destroy(handle: usize) -> Outcome {
        EVENTS.remove(handle).map(drop)
    }

    /// Records the event in a stream.
    pub fn record(self: &Arc<Self>, stream: &Arc<Stream>, flags: u32) -> Outcome {
        if let Some(captured) = capture::position(stream)? {
            if flags & EXTERNAL == 0 {
                locked(&self.state).captured = Some(captured);
                return Ok(());
            }
            let event = self.clone();
            return stream.enqueue(Arc::new(move || {
                let token = event.next_record();
                event.complete(token);
            }));
        }
        let token = self.next_record();
        let event = self.clone();
        stream.push(Arc::new(move || event.complete(token)));
        Ok(())
    }

    fn next_record(&self) -> u64 {
        let mut state = locked(&self.state);
        state.captured = None;
        state.recorded += 1;
        state.recorded
    }

    fn complete(&self, token: u64) {
        let mut state = locked(&self.state);
        if state.done < token {
            state.done = token;
            state.at = Instant::now();
        }
        drop(state);
        self.happened.notify_all();
    }

    fn wait_for(&self, token: u64) {
        let mut state = locked(&self.state);
        while state.done < token {
            state = self
                .happened
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn latest(&self) -> Outcome<u64> {
        let state = locked(&self.state);
        match &state.captured {
            Some(captured) => {
                captured.capture.invalidate();
                Err(Status::CAPTURED_EVENT)
            }
            None => Ok(state.recorded),
        }
    }

    /// Whether the latest record has happened.
    pub fn query(&self) -> Outcome {
        let latest = self.latest()?;
        capture::check_unsafe_call()?;
        if locked(&self.state).done >= latest {
            Ok(())
        } else {
            Err(Status::NOT_READY)
        }
    }

    /// Waits for the latest record.
    pub fn synchronize(&self) -> Outcome {
        forbid_on_stream()?;
        let latest = self.latest()?;
        capture::check_unsafe_call()?;
        self.wait_for(latest);
        Ok(())
    }

    /// Milliseconds from another event to this one.
    pub fn since(&self, earlier: &Event) -> Outcome<f32> {
        let mut times = [Instant::now(); 2];
        for (time, event) in times.iter_mut().zip([earlier, self]) {
            let latest = event.latest()?;
            let state = locked(&event.state);
            if event.flags & DISABLE_TIMING != 0 || latest == 0 {
                return Err(Status::INVALID_HANDLE);
            }
            if state.done < latest {
                return Err(Status::NOT_READY);
            }
            *time = state.at;
        }
        let [from, to] = times;
        Ok(match to.checked_duration_since(from) {
            Some(forward) => forward.as_secs_f32() * 1e3,
            None => -from.duration_since(to).as_secs_f32() * 1e3,
        })
    }

    /// Makes a stream wait for the latest record.
    pub fn make_wait(self: &Arc<Self>, stream: &Arc<Stream>, flags: u32) -> Outcome {
        let captured = locked(&self.state).captured.clone();
        if let Some(captured) = captured {
            return capture::join(stream, &captured);
        }
        let capturing = capture::position(stream)?.is_some();
        if capturing && flags & EXTERNAL == 0 {
            capture::invalidate(stream);
            return Err(Status::CAPTURE_ISOLATION);
        }
        let event = self.clone();
        if capturing {
            return stream.enqueue(Arc::new(move || {
                let latest = locked(&event.state).recorded;
                event.wait_for(latest);
            }));
        }
        let latest = locked(&self.state).recorded;
        if locked(&self.state).done < latest {
            stream.push(Arc::new(move || event.wait_for(latest)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::stream::NON_BLOCKING;

    fn streams() -> (Arc<Stream>, Arc<Stream>) {
        (
            Stream::create(NON_BLOCKING, 0).unwrap(),
            Stream::create(NON_BLOCKING, 0).unwrap(),
        )
    }

    fn gate(stream: &Arc<Stream>) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        stream
            .enqueue(Arc::new(move || locked(&gate).recv().unwrap()))
            .unwrap();
        open
    }

    #[test]
    fn a_stream_waits_for_another_through_an_event_and_not_without() {
        let _alone = crate::alone();
        let (producer, consumer) = streams();
        let open = gate(&producer);
        let event = Event::create(DISABLE_TIMING).unwrap();
        event.record(&producer, 0).unwrap();
        assert_eq!(event.query(), Err(Status::NOT_READY));
        event.make_wait(&consumer, 0).unwrap();
        assert_eq!(consumer.query(), Err(Status::NOT_READY));
        open.send(()).unwrap();
        consumer.synchronize().unwrap();
        assert_eq!(event.query(), Ok(()));
    }

    #[test]
    fn a_wait_keeps_to_the_record_that_was_latest() {
        let _alone = crate::alone();
        let (first, second) = streams();
        let event = Event::create(DISABLE_TIMING).unwrap();
        event.record(&first, 0).unwrap();
        first.synchronize().unwrap();
        event.make_wait(&second, 0).unwrap();
        let open = gate(&first);
        event.record(&first, 0).unwrap();
        second.synchronize().unwrap();
        assert_eq!(event.query(), Err(Status::NOT_READY));
        open.send(()).unwrap();
        event.synchronize().unwrap();
    }

    #[test]
    fn an_event_never_recorded_has_happened_and_has_no_time() {
        let _alone = crate::alone();
        let (stream, _) = streams();
        let (one, other) = (Event::create(0).unwrap(), Event::create(0).unwrap());
        assert_eq!(one.query(), Ok(()));
        assert_eq!(one.since(&other), Err(Status::INVALID_HANDLE));
        other.record(&stream, 0).unwrap();
        one.record(&stream, 0).unwrap();
        stream.synchronize().unwrap();
        assert!(one.since(&other).unwrap() >= 0.0);
    }

    #[test]
    fn an_event_without_times_tells_none() {
        let _alone = crate::alone();
        let (stream, _) = streams();
        let (one, other) = (
            Event::create(DISABLE_TIMING).unwrap(),
            Event::create(DISABLE_TIMING).unwrap(),
        );
        other.record(&stream, 0).unwrap();
        one.record(&stream, 0).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(one.since(&other), Err(Status::INVALID_HANDLE));
    }
}

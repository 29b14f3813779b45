//! Streams. Each has a thread that runs its operations one after the other, in the order in which
//! they came. It must not know what an operation does.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use simgpu_common::{fault, report};

use crate::capture::{self, Capturing};
use crate::context;
use crate::handles::Handles;
use crate::locked;
use crate::status::{Outcome, Status};

/// An operation. Graphs run it as often as they are launched.
pub type Work = Arc<dyn Fn() + Send + Sync>;

/// The flag of a stream that has nothing to do with the legacy stream.
pub const NON_BLOCKING: u32 = 1;
/// The smallest number is the highest priority.
pub const HIGHEST_PRIORITY: i32 = -5;

const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

static STREAMS: Handles<Stream> = Handles::new(0x5200_0000_0000);

thread_local! {
    static ON_STREAM: Cell<bool> = const { Cell::new(false) };
}

/// A queue of operations with the thread that runs them.
pub struct Stream {
    /// Its handle, which is never used again.
    pub handle: usize,
    /// The device it belongs to.
    pub device: i32,
    /// As it was made with.
    pub flags: u32,
    /// Reported, and without effect.
    pub priority: i32,
    /// Whether it is its device's legacy default stream.
    legacy: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
    pub(crate) capturing: Mutex<Option<Capturing>>,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    has_thread: bool,
    closed: bool,
}

impl Stream {
    fn new(handle: usize, device: i32, flags: u32, priority: i32, legacy: bool) -> Arc<Stream> {
        Arc::new(Stream {
            handle,
            device,
            flags,
            priority,
            legacy,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capturing: Mutex::default(),
        })
    }

    /// A stream on the current device.
    pub fn create(flags: u32, priority: i32) -> Outcome<Arc<Stream>> {
        let device = context::current()?;
        let handle = STREAMS.reserve();
        let priority = priority.clamp(HIGHEST_PRIORITY, 0);
        let stream = Stream::new(handle, device, flags, priority, false);
        STREAMS.insert(handle, stream.clone());
        Ok(stream)
    }

    /// The stream of a handle. NULL and the two reserved numbers are the current device's default
    /// stream; that one per thread is not told apart.
    pub fn from_handle(handle: usize) -> Outcome<Arc<Stream>> {
        match handle {
            0 | LEGACY | PER_THREAD => Ok(default_stream(context::current()?)),
            _ => STREAMS.get(handle),
        }
    }

    /// Ends a stream: its handle at once, its thread after the last operation.
    pub fn destroy(handle: usize) -> Outcome {
        let stream = STREAMS.get(handle)?;
        if locked(&stream.capturing).is_some() {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        STREAMS.remove(handle)?;
        locked(&stream.queue).closed = true;
        stream.changed.notify_all();
        Ok(())
    }

    /// Whether it is a default stream.
    pub fn is_legacy(&self) -> bool {
        self.legacy
    }

    /// Puts an operation into the capture, when one is going on, or else into the queue.
    pub fn enqueue(self: &Arc<Self>, work: Work) -> Outcome {
        match capture::record(self, &work)? {
            true => Ok(()),
            false => {
                self.push(work);
                Ok(())
            }
        }
    }

    /// Puts an operation into the queue, after what the legacy stream's rule puts before it.
    pub fn push(self: &Arc<Self>, work: Work) {
        self.order_with_legacy();
        self.submit(work);
    }

    fn order_with_legacy(self: &Arc<Self>) {
        if self.flags & NON_BLOCKING != 0 {
            return;
        }
        let others: Vec<_> = if self.legacy {
            let blocking = |other: &Arc<Stream>| {
                other.device == self.device && other.flags & NON_BLOCKING == 0
            };
            STREAMS.all().into_iter().filter(blocking).collect()
        } else {
            existing_default_stream(self.device).into_iter().collect()
        };
        for other in others {
            let last = locked(&other.queue).submitted;
            if !other.reached(last) {
                self.submit(Arc::new(move || other.wait_for(last)));
            }
        }
    }

    fn submit(self: &Arc<Self>, work: Work) {
        let mut queue = locked(&self.queue);
        queue.pending.push_back(work);
        queue.submitted += 1;
        let start = !std::mem::replace(&mut queue.has_thread, true);
        drop(queue);
        if start {
            self.start_thread();
        }
        self.changed.notify_all();
    }

    fn start_thread(self: &Arc<Self>) {
        let stream = self.clone();
        let name = format!("simgpu {}", if self.legacy { "default" } else { "stream" });
        if let Err(error) = thread::Builder::new()
            .name(name)
            .spawn(move || stream.run())
        {
            // Operations that nobody runs would be a hang without a reason.
            report("cuda", &format!("cannot start a stream's thread: {error}"));
            std::process::abort();
        }
    }

    fn run(self: Arc<Self>) {
        ON_STREAM.set(true);
        context::set_current(Some(self.device));
        while let Some(work) = self.next() {
            if let Some(delay) = slowness() {
                thread::sleep(delay);
            }
            work();
            drop(work);
            locked(&self.queue).completed += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(work) = queue.pending.pop_front() {
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn reached(&self, ticket: u64) -> bool {
        locked(&self.queue).completed >= ticket
    }

    fn wait_for(&self, ticket: u64) {
        let mut queue = locked(&self.queue);
        while queue.completed < ticket {
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for everything that is in the queue now.
    pub fn synchronize(&self) -> Outcome {
        forbid_on_stream()?;
        if locked(&self.capturing).is_some() {
            capture::invalidate(self);
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        capture::check_unsafe_call()?;
        let last = locked(&self.queue).submitted;
        self.wait_for(last);
        Ok(())
    }

    /// Whether the queue is done.
    pub fn query(&self) -> Outcome {
        if locked(&self.capturing).is_some() {
            capture::invalidate(self);
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        capture::check_unsafe_call()?;
        let queue = locked(&self.queue);
        if queue.completed == queue.submitted {
            Ok(())
        } else {
            Err(Status::NOT_READY)
        }
    }
}

/// Refuses calls that wait, or that change memory, inside a host function, as CUDA does.
pub fn forbid_on_stream() -> Outcome {
    if ON_STREAM.get() {
        Err(Status::NOT_PERMITTED)
    } else {
        Ok(())
    }
}

/// Waits for every stream of a device.
pub fn synchronize_device(device: i32) -> Outcome {
    forbid_on_stream()?;
    capture::check_unsafe_call()?;
    wait_for_device(device);
    Ok(())
}

/// Waits for every stream of a device, whatever is being captured.
pub(crate) fn wait_for_device(device: i32) {
    let of_device = |stream: &Arc<Stream>| stream.device == device;
    let streams = STREAMS.all().into_iter().filter(of_device);
    for stream in streams.chain(existing_default_stream(device)) {
        let last = locked(&stream.queue).submitted;
        stream.wait_for(last);
    }
}

/// Every stream that takes part in a capture.
pub(crate) fn capturing_in(id: u64) -> Vec<Arc<Stream>> {
    let inside = |stream: &Arc<Stream>| {
        locked(&stream.capturing)
            .as_ref()
            .is_some_and(|one| one.capture.id == id)
    };
    STREAMS.all().into_iter().filter(inside).collect()
}

static DEFAULT_STREAMS: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

fn existing_default_stream(device: i32) -> Option<Arc<Stream>> {
    locked(&DEFAULT_STREAMS)
        .iter()
        .find(|stream| stream.device == device)
        .cloned()
}

fn default_stream(device: i32) -> Arc<Stream> {
    let mut streams = locked(&DEFAULT_STREAMS);
    if let Some(stream) = streams.iter().find(|stream| stream.device == device) {
        return stream.clone();
    }
    let stream = Stream::new(0, device, 0, 0, true);
    streams.push(stream.clone());
    stream
}

/// The fault "slow stream": `SIMGPU_SLOW_STREAM=RANK:MILLISECONDS` before each operation.
fn slowness() -> Option<Duration> {
    static SLOWNESS: OnceLock<Option<Duration>> = OnceLock::new();
    *SLOWNESS.get_or_init(|| {
        let values = fault::of_this_rank("SIMGPU_SLOW_STREAM")?;
        Some(Duration::from_millis(u64::try_from(*values.first()?).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn operations_run_in_the_order_they_came() {
        let _alone = crate::alone();
        let stream = Stream::create(NON_BLOCKING, 0).unwrap();
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            stream
                .enqueue(Arc::new(move || sender.send(number).unwrap()))
                .unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(
            receiver.try_iter().collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_query_sees_what_is_not_done() {
        let _alone = crate::alone();
        let stream = Stream::create(NON_BLOCKING, 0).unwrap();
        let (open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        stream
            .enqueue(Arc::new(move || locked(&gate).recv().unwrap()))
            .unwrap();
        assert_eq!(stream.query(), Err(Status::NOT_READY));
        open.send(()).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(stream.query(), Ok(()));
    }

    #[test]
    fn the_legacy_stream_waits_for_blocking_streams_and_not_for_others() {
        let _alone = crate::alone();
        let blocking = Stream::create(0, 0).unwrap();
        let free = Stream::create(NON_BLOCKING, 0).unwrap();
        let (open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        blocking
            .enqueue(Arc::new(move || locked(&gate).recv().unwrap()))
            .unwrap();
        let legacy = Stream::from_handle(0).unwrap();
        let (sender, receiver) = mpsc::channel();
        let other = sender.clone();
        legacy
            .enqueue(Arc::new(move || sender.send("legacy").unwrap()))
            .unwrap();
        free.enqueue(Arc::new(move || other.send("free").unwrap()))
            .unwrap();
        free.synchronize().unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["free"]);
        open.send(()).unwrap();
        legacy.synchronize().unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["legacy"]);
    }

    #[test]
    fn a_destroyed_stream_finishes_its_work_and_its_handle_is_refused() {
        let _alone = crate::alone();
        let stream = Stream::create(NON_BLOCKING, 0).unwrap();
        let (sender, receiver) = mpsc::channel();
        stream
            .enqueue(Arc::new(move || sender.send(()).unwrap()))
            .unwrap();
        Stream::destroy(stream.handle).unwrap();
        receiver.recv().unwrap();
        assert_eq!(
            Stream::from_handle(stream.handle).err(),
            Some(Status::INVALID_HANDLE)
        );
        assert_eq!(Stream::destroy(stream.handle), Err(Status::INVALID_HANDLE));
    }

    #[test]
    fn a_host_function_may_not_wait() {
        let _alone = crate::alone();
        let stream = Stream::create(NON_BLOCKING, 0).unwrap();
        let (sender, receiver) = mpsc::channel();
        stream
            .enqueue(Arc::new(move || {
                sender.send(synchronize_device(0)).unwrap()
            }))
            .unwrap();
        assert_eq!(receiver.recv().unwrap(), Err(Status::NOT_PERMITTED));
    }
}

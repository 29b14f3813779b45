//! Capture: instead of being run, a stream's operations become nodes of a graph. Streams join
//! through events. The rules, and which calls break a capture, are CUDA's.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::event::Captured;
use crate::graph::Graph;
use crate::locked;
use crate::status::{Outcome, Status};
use crate::stream::{self, Stream, Work};

/// Which calls of other threads a capture forbids, and which a thread lets itself be forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Unsafe calls of every thread.
    Global,
    /// Unsafe calls of the thread that captures.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Mode {
    /// The mode of a number of the API.
    pub fn from_number(number: i32) -> Outcome<Mode> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

static GOING_ON: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
/// How many captures go on, for calls that are made often and mostly outside of any.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// One capture, from its beginning to its end in the stream where it began.
pub struct Capture {
    /// Its number, which is never used again.
    pub id: u64,
    /// The graph that grows.
    pub graph: Arc<Graph>,
    mode: Mode,
    thread: ThreadId,
    origin: usize,
    invalid: AtomicBool,
}

impl Capture {
    /// Makes it end with an error.
    pub fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    fn check(&self) -> Outcome {
        let invalid = self.invalid.load(Ordering::Acquire);
        if invalid {
            Err(Status::CAPTURE_INVALIDATED)
        } else {
            Ok(())
        }
    }
}

/// A stream's part in a capture: what its next operation comes after.
pub(crate) struct Capturing {
    pub(crate) capture: Arc<Capture>,
    pub(crate) after: Vec<usize>,
}

/// What a stream tells about its capture.
pub struct Info {
    /// The capture's number.
    pub id: u64,
    /// The graph that grows.
    pub graph: Arc<Graph>,
    /// Handles of the nodes that the next operation comes after.
    pub after: Vec<usize>,
}

/// Changes the mode of this thread; gives the one before.
pub fn exchange_mode(mode: Mode) -> Mode {
    THREAD_MODE.replace(mode)
}

/// Begins capture in a stream, into a new graph or one that exists.
pub fn begin(stream: &Arc<Stream>, mode: Mode, into: Option<(Arc<Graph>, Vec<usize>)>) -> Outcome {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if stream.is_legacy() {
        return Err(Status::CAPTURE_UNSUPPORTED);
    }
    let mut capturing = locked(&stream.capturing);
    if capturing.is_some() {
        return Err(Status::ILLEGAL_STATE);
    }
    let (graph, after) = into.unwrap_or_else(|| (Graph::create(), Vec::new()));
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        graph,
        mode,
        thread: thread::current().id(),
        origin: stream.handle,
        invalid: AtomicBool::new(false),
    });
    locked(&GOING_ON).push(capture.clone());
    COUNT.fetch_add(1, Ordering::Release);
    *capturing = Some(Capturing { capture, after });
    Ok(())
}

/// Ends capture in the stream where it began.
pub fn end(stream: &Arc<Stream>) -> Outcome<Arc<Graph>> {
    let (capture, ends) = {
        let capturing = locked(&stream.capturing);
        let part = capturing.as_ref().ok_or(Status::ILLEGAL_STATE)?;
        (part.capture.clone(), part.after.clone())
    };
    if capture.origin != stream.handle {
        return Err(Status::CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return Err(Status::CAPTURE_WRONG_THREAD);
    }
    let mut joined = true;
    for other in stream::capturing_in(capture.id) {
        if let Some(part) = locked(&other.capturing).take() {
            joined &= capture.graph.lead_to(&part.after, &ends);
        }
    }
    locked(&GOING_ON).retain(|other| other.id != capture.id);
    COUNT.fetch_sub(1, Ordering::Release);
    let outcome = match capture.check() {
        Ok(()) if !joined => Err(Status::CAPTURE_UNJOINED),
        checked => checked,
    };
    if let Err(status) = outcome {
        Graph::destroy(capture.graph.handle)?;
        return Err(status);
    }
    Ok(capture.graph.clone())
}

/// The state of a stream's capture: none, going on, or made invalid (an error).
pub fn info(stream: &Stream) -> Outcome<Option<Info>> {
    let capturing = locked(&stream.capturing);
    let Some(part) = capturing.as_ref() else {
        return Ok(None);
    };
    part.capture.check()?;
    let graph = part.capture.graph.clone();
    let after = part
        .after
        .iter()
        .map(|node| graph.node_handle(*node))
        .collect();
    Ok(Some(Info {
        id: part.capture.id,
        graph,
        after,
    }))
}

/// Sets, or adds to, what a stream's next operation comes after.
pub fn update_dependencies(stream: &Stream, nodes: &[usize], replace: bool) -> Outcome {
    let mut capturing = locked(&stream.capturing);
    let part = capturing.as_mut().ok_or(Status::ILLEGAL_STATE)?;
    part.capture.check()?;
    let mut numbers = Vec::new();
    for handle in nodes {
        let (graph, number) = Graph::of_node(*handle)?;
        if graph.handle != part.capture.graph.handle {
            return Err(Status::INVALID_VALUE);
        }
        numbers.push(number);
    }
    if replace {
        part.after.clear();
    }
    part.after.extend(numbers);
    Ok(())
}

/// Puts an operation into a stream's capture; false when none is going on.
pub(crate) fn record(stream: &Stream, work: &Work) -> Outcome<bool> {
    let mut capturing = locked(&stream.capturing);
    let Some(part) = capturing.as_mut() else {
        drop(capturing);
        return refuse_legacy(stream).map(|()| false);
    };
    part.capture.check()?;
    let node = part
        .capture
        .graph
        .add(work.clone(), std::mem::take(&mut part.after));
    part.after.push(node);
    Ok(true)
}

/// The legacy stream would make blocking streams that capture depend on it.
fn refuse_legacy(stream: &Stream) -> Outcome {
    if !stream.is_legacy() || COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let captures = locked(&GOING_ON).clone();
    for capture in captures {
        let blocking = stream::capturing_in(capture.id)
            .iter()
            .any(|other| other.flags & stream::NON_BLOCKING == 0 && other.device == stream.device);
        if blocking {
            capture.invalidate();
            return Err(Status::CAPTURE_IMPLICIT);
        }
    }
    Ok(())
}

/// Where a stream stands in its capture, if one is going on.
pub(crate) fn position(stream: &Stream) -> Outcome<Option<Captured>> {
    let capturing = locked(&stream.capturing);
    let Some(part) = capturing.as_ref() else {
        return Ok(None);
    };
    part.capture.check()?;
    Ok(Some(Captured {
        capture: part.capture.clone(),
        nodes: part.after.clone(),
    }))
}

/// Makes a stream's next operation come after a point in a capture, which it joins.
pub(crate) fn join(stream: &Stream, point: &Captured) -> Outcome {
    let still = locked(&GOING_ON)
        .iter()
        .any(|capture| capture.id == point.capture.id);
    if !still {
        return Err(Status::CAPTURED_EVENT);
    }
    point.capture.check()?;
    if stream.is_legacy() {
        point.capture.invalidate();
        return Err(Status::CAPTURE_IMPLICIT);
    }
    let mut capturing = locked(&stream.capturing);
    match capturing.as_mut() {
        Some(part) if part.capture.id != point.capture.id => {
            part.capture.invalidate();
            point.capture.invalidate();
            Err(Status::CAPTURE_MERGE)
        }
        Some(part) => {
            let new = point.nodes.iter().filter(|node| !part.after.contains(node));
            let new: Vec<_> = new.copied().collect();
            part.after.extend(new);
            Ok(())
        }
        None => {
            let (capture, after) = (point.capture.clone(), point.nodes.clone());
            *capturing = Some(Capturing { capture, after });
            Ok(())
        }
    }
}

/// Makes a stream's capture end with an error.
pub(crate) fn invalidate(stream: &Stream) {
    if let Some(part) = locked(&stream.capturing).as_ref() {
        part.capture.invalidate();
    }
}

/// Refuses a call that is unsafe while captures go on, unless this thread's mode permits it. A
/// refused call makes the captures that refuse it invalid.
pub fn check_unsafe_call() -> Outcome {
    if COUNT.load(Ordering::Acquire) == 0 || THREAD_MODE.get() == Mode::Relaxed {
        return Ok(());
    }
    let this = thread::current().id();
    let forbids = |capture: &&Arc<Capture>| {
        let own = capture.thread == this && capture.mode != Mode::Relaxed;
        let global = capture.mode == Mode::Global && THREAD_MODE.get() == Mode::Global;
        own || global
    };
    let going_on = locked(&GOING_ON);
    let mut refused = false;
    for capture in going_on.iter().filter(forbids) {
        capture.invalidate();
        refused = true;
    }
    if refused {
        Err(Status::CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;

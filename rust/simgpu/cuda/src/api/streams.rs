//! Streams, host functions, memory operations of streams, and capture.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use simgpu_common::driver::HostFn;

use super::{Carried, driver_api, put, put_wanted};
use crate::capture::{self, Info, Mode};
use crate::context;
use crate::event::Event;
use crate::graph::Graph;
use crate::status::{Outcome, Status};
use crate::stream::Stream;

/// How long a wait for a value in memory sleeps between two looks; CUDA polls too.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

thread_local! {
    /// Nodes told by the last query of this thread; valid until its next one.
    static TOLD_NODES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Numbers that the API gives for the state of capture.
const NONE: c_int = 0;
const ACTIVE: c_int = 1;
const INVALIDATED: c_int = 2;

fn capture_state(stream: usize) -> Outcome<(c_int, Option<Info>)> {
    match capture::info(&*Stream::from_handle(stream)?) {
        Ok(None) => Ok((NONE, None)),
        Ok(Some(info)) => Ok((ACTIVE, Some(info))),
        Err(Status::CAPTURE_INVALIDATED) => Ok((INVALIDATED, None)),
        Err(other) => Err(other),
    }
}

/// The nodes of an array of the caller's.
fn nodes<'a>(array: *const usize, count: usize) -> Outcome<&'a [usize]> {
    if count == 0 {
        return Ok(&[]);
    }
    if array.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller passes `count` handles.
    Ok(unsafe { std::slice::from_raw_parts(array, count) })
}

/// Looks at a value in memory until it is as wanted: 0 at least, 1 equal, 2 a common bit.
fn wait_for_value(load: impl Fn() -> u64, value: u64, condition: c_uint) {
    let reached = || match condition & 7 {
        0 => (load().wrapping_sub(value) as i64) >= 0,
        1 => load() == value,
        _ => load() & value != 0,
    };
    while !reached() {
        thread::sleep(LOOK_AGAIN);
    }
}

driver_api! {
    /// Makes a stream.
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) {
        put(stream, Stream::create(flags, 0)?.handle)
    }

    /// Makes a stream with a priority.
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) {
        put(stream, Stream::create(flags, priority)?.handle)
    }

    /// Destroys a stream.
    fn cuStreamDestroy_v2(stream: usize) { Stream::destroy(stream) }

    /// Destroys a stream, under its older name.
    fn cuStreamDestroy(stream: usize) { Stream::destroy(stream) }

    /// Waits for a stream.
    fn cuStreamSynchronize(stream: usize) { Stream::from_handle(stream)?.synchronize() }

    /// Whether a stream is done.
    fn cuStreamQuery(stream: usize) { Stream::from_handle(stream)?.query() }

    /// A stream's priority.
    fn cuStreamGetPriority(stream: usize, priority: *mut c_int) {
        put(priority, Stream::from_handle(stream)?.priority)
    }

    /// A stream's flags.
    fn cuStreamGetFlags(stream: usize, flags: *mut c_uint) {
        put(flags, Stream::from_handle(stream)?.flags)
    }

    /// A stream's number.
    fn cuStreamGetId(stream: usize, id: *mut u64) {
        put(id, Stream::from_handle(stream)?.handle as u64)
    }

    /// A stream's context.
    fn cuStreamGetCtx(stream: usize, context: *mut usize) {
        put(context, context::handle(Some(Stream::from_handle(stream)?.device)))
    }

    /// A stream's device.
    fn cuStreamGetDevice(stream: usize, device: *mut c_int) {
        put(device, Stream::from_handle(stream)?.device)
    }

    /// A stream's device, under a name that only the simulator has.
    fn simgpuStreamGetDevice(stream: usize, device: *mut c_int) {
        put(device, Stream::from_handle(stream)?.device)
    }

    /// Makes a stream wait for an event.
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        Event::from_handle(event)?.make_wait(&Stream::from_handle(stream)?, flags)
    }

    /// Runs a function in stream order.
    fn cuLaunchHostFunc(stream: usize, function: Option<HostFn>, argument: *mut c_void) {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        let argument = Carried(argument);
        // SAFETY: the caller promised that the function takes the argument on a driver's thread.
        let work = Arc::new(move || unsafe { function(argument.get()) });
        Stream::from_handle(stream)?.enqueue(work)
    }

    /// Writes a word in stream order.
    fn cuStreamWriteValue32_v2(stream: usize, address: usize, value: u32, _flags: c_uint) {
        if address == 0 || !address.is_multiple_of(4) {
            return Err(Status::INVALID_VALUE);
        }
        Stream::from_handle(stream)?.enqueue(Arc::new(move || {
            // SAFETY: the caller keeps the word until the operation is complete; it is aligned.
            unsafe { &*(address as *const AtomicU32) }.store(value, Ordering::SeqCst);
        }))
    }

    /// Writes two words in stream order.
    fn cuStreamWriteValue64_v2(stream: usize, address: usize, value: u64, _flags: c_uint) {
        if address == 0 || !address.is_multiple_of(8) {
            return Err(Status::INVALID_VALUE);
        }
        Stream::from_handle(stream)?.enqueue(Arc::new(move || {
            // SAFETY: the caller keeps the words until the operation is complete; aligned.
            unsafe { &*(address as *const AtomicU64) }.store(value, Ordering::SeqCst);
        }))
    }

    /// Makes a stream wait for a word in memory.
    fn cuStreamWaitValue32_v2(stream: usize, address: usize, value: u32, condition: c_uint) {
        if address == 0 || !address.is_multiple_of(4) {
            return Err(Status::INVALID_VALUE);
        }
        Stream::from_handle(stream)?.enqueue(Arc::new(move || {
            // Differences of 32-bit words are signed ones, so both sides move to the upper half.
            let load = || {
                // SAFETY: the caller keeps the word until the wait is over; it is aligned.
                let word = unsafe { &*(address as *const AtomicU32) }.load(Ordering::SeqCst);
                u64::from(word) << 32
            };
            wait_for_value(load, u64::from(value) << 32, condition);
        }))
    }

    /// Makes a stream wait for two words in memory.
    fn cuStreamWaitValue64_v2(stream: usize, address: usize, value: u64, condition: c_uint) {
        if address == 0 || !address.is_multiple_of(8) {
            return Err(Status::INVALID_VALUE);
        }
        Stream::from_handle(stream)?.enqueue(Arc::new(move || {
            // SAFETY: the caller keeps the words until the wait is over; they are aligned.
            let load = || unsafe { &*(address as *const AtomicU64) }.load(Ordering::SeqCst);
            wait_for_value(load, value, condition);
        }))
    }

    /// Begins capture.
    fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) {
        capture::begin(&Stream::from_handle(stream)?, Mode::from_number(mode)?, None)
    }

    /// Begins capture into a graph.
    fn cuStreamBeginCaptureToGraph(
        stream: usize, graph: usize, after: *const usize, _edges: *const c_void, count: usize,
        mode: c_int,
    ) {
        let graph = Graph::from_handle(graph)?;
        let after = nodes(after, count)?
            .iter()
            .map(|node| Ok(Graph::of_node(*node)?.1))
            .collect::<Outcome<Vec<usize>>>()?;
        let mode = Mode::from_number(mode)?;
        capture::begin(&Stream::from_handle(stream)?, mode, Some((graph, after)))
    }

    /// Ends capture.
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        put(graph, 0)?;
        put(graph, capture::end(&Stream::from_handle(stream)?)?.handle)
    }

    /// Whether a stream captures.
    fn cuStreamIsCapturing(stream: usize, state: *mut c_int) {
        put(state, capture_state(stream)?.0)
    }

    /// State and number of a stream's capture.
    fn cuStreamGetCaptureInfo(stream: usize, state: *mut c_int, id: *mut u64) {
        let (number, info) = capture_state(stream)?;
        put(state, number)?;
        if let Some(info) = info {
            put_wanted(id, info.id);
        }
        Ok(())
    }

    /// State, number, graph and dependencies of a stream's capture.
    fn cuStreamGetCaptureInfo_v2(
        stream: usize, state: *mut c_int, id: *mut u64, graph: *mut usize,
        after: *mut *const usize, count: *mut usize,
    ) {
        let (number, info) = capture_state(stream)?;
        put(state, number)?;
        if let Some(info) = info {
            put_wanted(id, info.id);
            put_wanted(graph, info.graph.handle);
            put_wanted(count, info.after.len());
            TOLD_NODES.with_borrow_mut(|told| {
                *told = info.after;
                put_wanted(after, told.as_ptr());
            });
        }
        Ok(())
    }

    /// As the one before, with data of edges, of which there are none.
    fn cuStreamGetCaptureInfo_v3(
        stream: usize, state: *mut c_int, id: *mut u64, graph: *mut usize,
        after: *mut *const usize, edges: *mut *const c_void, count: *mut usize,
    ) {
        put_wanted(edges, std::ptr::null());
        // SAFETY: the same contract.
        match unsafe { cuStreamGetCaptureInfo_v2(stream, state, id, graph, after, count) } {
            0 => Ok(()),
            other => Err(Status(other)),
        }
    }

    /// Changes what the next captured operation comes after: 0 adds, 1 replaces.
    fn cuStreamUpdateCaptureDependencies_v2(
        stream: usize, after: *const usize, _edges: *const c_void, count: usize, flags: c_uint,
    ) {
        let stream = Stream::from_handle(stream)?;
        capture::update_dependencies(&stream, nodes(after, count)?, flags & 1 == 1)
    }

    /// Changes the mode of this thread.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        if mode.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller's to read and write.
        let wanted = Mode::from_number(unsafe { mode.read() })?;
        put(mode, capture::exchange_mode(wanted) as c_int)
    }
}

//! Operations on their way: put on a stream through the driver, in the order in which their
//! communicator got them, and run there.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use simgpu_common::driver::{Handle, driver};

use crate::arena::{Stopped, Watch};
use crate::comm::Comm;
use crate::exchange::{self, Collective, Transfer, Unfinished};
use crate::failure::{Code, Failure, Outcome, cuda};
use crate::locked;

/// What a communicator is asked to do on a stream.
#[derive(Clone, Debug)]
pub enum Action {
    /// A collective.
    Collective(Collective),
    /// One side of a message.
    Transfer(Transfer),
    /// Bytes into another rank's window, then a signal.
    Put {
        /// Where the bytes are.
        from: usize,
        /// Where they go, as this process sees the other's window.
        to: usize,
        /// How many.
        bytes: usize,
        /// The other rank.
        peer: usize,
        /// The context of the signal.
        context: usize,
    },
    /// A signal.
    Signal {
        /// The other rank.
        peer: usize,
        /// Its context.
        context: usize,
    },
    /// Waits for signals: peer, context, how many.
    WaitSignals(Vec<(usize, usize, u64)>),
}

impl Action {
    /// One-sided operations have no order but their stream's.
    fn is_one_sided(&self) -> bool {
        !matches!(self, Action::Collective(_) | Action::Transfer(_))
    }
}

/// An action with its stream.
pub type Issued = (usize, Action);

struct Launch {
    comm: Arc<Comm>,
    actions: Vec<Action>,
    /// Whether graphs run it, as often as they like.
    captured: bool,
}

/// The capture that a stream is in: its number and graph.
struct Capture {
    id: u64,
    graph: Handle,
}

fn capture_of(stream: usize) -> Outcome<Option<Capture>> {
    let (mut state, mut id, mut graph) = (0, 0, std::ptr::null_mut());
    let nowhere = std::ptr::null_mut();
    // SAFETY: the out pointers are locals' or null.
    let status = unsafe {
        (driver().cuStreamGetCaptureInfo_v3)(
            stream as Handle,
            &mut state,
            &mut id,
            &mut graph,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            nowhere,
        )
    };
    cuda(status, "cuStreamGetCaptureInfo")?;
    match state {
        0 => Ok(None),
        1 => Ok(Some(Capture { id, graph })),
        _ => Err(Failure::new(
            Code::UNHANDLED_CUDA_ERROR,
            "the stream's capture is invalid",
        )),
    }
}

fn new_event() -> Outcome<usize> {
    const DISABLE_TIMING: u32 = 2;
    let mut event = std::ptr::null_mut();
    // SAFETY: the out pointer is a local's.
    let status = unsafe { (driver().cuEventCreate)(&mut event, DISABLE_TIMING) };
    cuda(status, "cuEventCreate")?;
    Ok(event as usize)
}

fn record(event: usize, stream: usize) -> Outcome {
    // SAFETY: handles are looked up by the driver.
    let status = unsafe { (driver().cuEventRecordWithFlags)(event as Handle, stream as Handle, 0) };
    cuda(status, "cuEventRecord")
}

fn wait(stream: usize, event: usize) -> Outcome {
    // SAFETY: handles are looked up by the driver.
    let status = unsafe { (driver().cuStreamWaitEvent)(stream as Handle, event as Handle, 0) };
    cuda(status, "cuStreamWaitEvent")
}

/// Puts the actions of one group on their streams. With several streams, none goes on before all
/// have come here, and before the actions are done.
pub fn launch(comm: &Arc<Comm>, issued: Vec<Issued>) -> Outcome {
    let mut streams: Vec<usize> = Vec::new();
    for (stream, _) in &issued {
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
    let Some((first, others)) = streams.split_first() else {
        return Ok(());
    };
    for other in others {
        let event = new_event()?;
        record(event, *other)?;
        wait(*first, event)?;
        // SAFETY: the event is ours; what waits for it keeps it.
        unsafe { (driver().cuEventDestroy_v2)(event as Handle) };
    }
    let one_sided = issued.iter().all(|(_, action)| action.is_one_sided());
    let capture = capture_of(*first)?;
    let id = capture.as_ref().map_or(0, |capture| capture.id);
    if !one_sided {
        keep_order_before(comm, *first, id)?;
    }
    let actions = issued.into_iter().map(|(_, action)| action).collect();
    enqueue(comm, *first, actions, capture)?;
    if !one_sided {
        keep_order_after(comm, *first, id)?;
    }
    for other in others {
        let event = new_event()?;
        record(event, *first)?;
        wait(*other, event)?;
        // SAFETY: as above.
        unsafe { (driver().cuEventDestroy_v2)(event as Handle) };
    }
    Ok(())
}

/// Makes the stream wait for the communicator's last operation, when that was on another one.
fn keep_order_before(comm: &Comm, stream: usize, capture: u64) -> Outcome {
    let order = locked(&comm.order);
    let elsewhere = order.event != 0 && order.stream != stream && order.capture == capture;
    if elsewhere {
        wait(stream, order.event)
    } else {
        Ok(())
    }
}

fn keep_order_after(comm: &Comm, stream: usize, capture: u64) -> Outcome {
    let mut order = locked(&comm.order);
    if order.event == 0 {
        order.event = new_event()?;
    }
    record(order.event, stream)?;
    (order.stream, order.capture) = (stream, capture);
    Ok(())
}

fn enqueue(
    comm: &Arc<Comm>,
    stream: usize,
    actions: Vec<Action>,
    capture: Option<Capture>,
) -> Outcome {
    let captured = capture.is_some();
    let launch = Box::new(Launch {
        comm: comm.clone(),
        actions,
        captured,
    });
    let launch = Box::into_raw(launch).cast::<c_void>();
    if let Some(capture) = &capture {
        keep_with_graph(launch, capture.graph)?;
        // SAFETY: the graph keeps the launch.
        let status = unsafe { (driver().cuLaunchHostFunc)(stream as Handle, replay, launch) };
        return cuda(status, "cuLaunchHostFunc");
    }
    comm.begin_operation();
    // SAFETY: the function takes the box back, once.
    let status = unsafe { (driver().cuLaunchHostFunc)(stream as Handle, run_once, launch) };
    if status != 0 {
        // SAFETY: the driver refused, so nobody else has the box.
        drop(unsafe { Box::from_raw(launch.cast::<Launch>()) });
        comm.end_operation();
    }
    cuda(status, "cuLaunchHostFunc")
}

/// Lets a graph own a launch.
fn keep_with_graph(launch: *mut c_void, graph: Handle) -> Outcome {
    const NO_DESTRUCTOR_SYNC: u32 = 1;
    const MOVE: u32 = 1;
    let mut object = std::ptr::null_mut();
    // SAFETY: the destructor takes the box back, once.
    let status =
        unsafe { (driver().cuUserObjectCreate)(&mut object, launch, free, 1, NO_DESTRUCTOR_SYNC) };
    if status != 0 {
        // SAFETY: nobody else has the box.
        drop(unsafe { Box::from_raw(launch.cast::<Launch>()) });
        return cuda(status, "cuUserObjectCreate");
    }
    // SAFETY: handles are looked up by the driver.
    let status = unsafe { (driver().cuGraphRetainUserObject)(graph, object, 1, MOVE) };
    cuda(status, "cuGraphRetainUserObject")
}

unsafe extern "C" fn free(launch: *mut c_void) {
    // SAFETY: `keep_with_graph` leaked the box for this one call.
    drop(unsafe { Box::from_raw(launch.cast::<Launch>()) });
}

unsafe extern "C" fn run_once(launch: *mut c_void) {
    // SAFETY: `enqueue` leaked the box for this one call.
    let launch = unsafe { Box::from_raw(launch.cast::<Launch>()) };
    run(&launch);
    launch.comm.end_operation();
}

unsafe extern "C" fn replay(launch: *mut c_void) {
    // SAFETY: the graph keeps the box as long as it may be launched.
    run(unsafe { &*launch.cast::<Launch>() });
}

fn run(launch: &Launch) {
    match run_all(&launch.comm, &launch.actions) {
        Ok(()) => {}
        Err(Unfinished::Stopped) if launch.captured => {
            let text = "a graph was launched on a communicator that was stopped";
            simgpu_common::report("nccl", text);
        }
        Err(Unfinished::Stopped) => {}
        Err(Unfinished::Mismatch(text)) => mismatch(&launch.comm, text),
    }
}

/// Ranks called different things. As with NCCL the operation never ends, until its communicator
/// is stopped; `SIMGPU_MISMATCH=error` tells the communicator besides.
fn mismatch(comm: &Comm, text: String) {
    simgpu_common::report("nccl", &format!("{}: {text}", comm.config.name));
    if std::env::var("SIMGPU_MISMATCH").is_ok_and(|how| how == "error") {
        comm.fail(&Failure::usage(text));
    }
    if let Ok(arena) = comm.arena() {
        // It ends by being stopped, which is the point.
        let Err(Stopped) = arena.wait(comm, || false) else {
            return;
        };
    }
}

fn run_all(comm: &Comm, actions: &[Action]) -> Result<(), Unfinished> {
    let Ok(arena) = comm.arena() else {
        return Err(Unfinished::Stopped);
    };
    if comm.stopped() {
        return Err(Unfinished::Stopped);
    }
    let mut transfers: Vec<Transfer> = Vec::new();
    let two_sided = actions.iter().any(|action| !action.is_one_sided());
    let _one_at_a_time = two_sided.then(|| locked(&comm.execution));
    for action in actions {
        match action {
            Action::Collective(call) => exchange::collective(arena, comm, call)?,
            Action::Transfer(transfer) => transfers.push(*transfer),
            Action::Put {
                from,
                to,
                bytes,
                peer,
                context,
            } => {
                // SAFETY: both ranges were looked at when the put was issued, and their owners
                // keep them until it is complete.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
                signal(comm, *peer, *context)?;
            }
            Action::Signal { peer, context } => signal(comm, *peer, *context)?,
            Action::WaitSignals(all) => {
                for (peer, context, count) in all {
                    wait_for_signals(comm, *peer, *context, *count)?;
                }
            }
        }
    }
    exchange::transfers(arena, comm, &transfers)
}

fn signal(comm: &Comm, peer: usize, context: usize) -> Result<(), Unfinished> {
    let Ok(arena) = comm.arena() else {
        return Err(Unfinished::Stopped);
    };
    let counter = arena.signals(arena.rank, peer, context);
    counter.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    arena.ring(peer);
    Ok(())
}

fn wait_for_signals(
    comm: &Comm,
    peer: usize,
    context: usize,
    count: u64,
) -> Result<(), Unfinished> {
    let Ok(arena) = comm.arena() else {
        return Err(Unfinished::Stopped);
    };
    let goal = {
        let mut used: std::sync::MutexGuard<'_, HashMap<_, _>> = locked(&comm.used_signals);
        let used = used.entry((peer, context)).or_insert(0);
        *used += count;
        *used
    };
    let counter = arena.signals(peer, arena.rank, context);
    arena.wait(comm, || {
        counter.load(std::sync::atomic::Ordering::Acquire) >= goal
    })?;
    Ok(())
}

/// Refuses a stream of another device than the communicator's.
pub fn check_stream(comm: &Comm, stream: usize) -> Outcome {
    let mut device: c_int = 0;
    // SAFETY: the out pointer is a local's; handles are looked up by the driver.
    let status = unsafe { (driver().simgpuStreamGetDevice)(stream as Handle, &mut device) };
    cuda(status, "the stream")?;
    // The default stream's device is the thread's, and NCCL makes the communicator's current.
    if stream > 2 && device != comm.device {
        let text = format!(
            "the stream is of device {device}, the communicator of {}",
            comm.device
        );
        return Err(Failure::new(Code::UNHANDLED_CUDA_ERROR, text));
    }
    Ok(())
}

/// Refuses a buffer that the device does not reach, or that is shorter than what is asked.
pub fn check_buffer(name: &str, at: usize, bytes: usize) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    if at == 0 {
        return Err(Failure::argument(format!("{name} argument is NULL")));
    }
    let (mut start, mut length) = (0, 0);
    // SAFETY: the out pointers are locals'.
    let status = unsafe { (driver().cuMemGetAddressRange_v2)(&mut start, &mut length, at) };
    if status != 0 {
        let text = format!("{name} {at:#x} is no memory that the device reaches");
        return Err(Failure::argument(text));
    }
    let left = start + length - at;
    if bytes > left {
        let text = format!("{name} has {left} bytes up to its allocation's end, needs {bytes}");
        return Err(Failure::argument(text));
    }
    Ok(())
}

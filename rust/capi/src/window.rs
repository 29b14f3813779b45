//! Windows: memory of every rank that the others write to and read from on their own. Must not know
//! how the memory of others is reached.

use std::ffi::c_void;

use ferrocomm_abi::*;
use ferrocomm_core::Result;
use ferrocomm_core::call::{Mode, Region};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::window::{Access, OneSided};
use ferrocomm_engine::Window;

use crate::arguments::{Arguments, Manner, manner_of, options_of};
use crate::comm::{fc_comm, with_comm};
use crate::ffi::{self, Handle, Out, guard_poisoning, guard_value, invalid};
use crate::work::fc_work;

/// A window: memory of every rank that the others write to and read from on their own. Owned by the
/// caller; given back with `fc_window_destroy`. Any thread may use it.
pub struct fc_window {
    _opaque: [u8; 0],
}

impl Handle for fc_window {
    type Value = Window;
    const NOUN: &'static str = "window";
}

/// Runs `body` on a window; a panic puts its communicator out of use.
///
/// # Safety
/// `window` is NULL or a live window.
unsafe fn with_window(
    window: *const fc_window,
    body: impl FnOnce(&Window) -> Result<()>,
) -> fc_status {
    // SAFETY: by the caller's promise.
    let window = unsafe { ffi::value(window) };
    let poisoned = window.as_ref().ok().copied();
    guard_poisoning(
        || {
            let window = window?;
            window.communicator().check_process()?;
            body(window)
        },
        |message| {
            if let Some(window) = poisoned {
                window.communicator().fail_with_panic(message);
            }
        },
    )
}

/// Makes a window of `bytes` bytes at `memory` on every rank: a collective of `comm`, in order with the
/// others. Ranks may register different numbers of bytes, also none. The memory stays valid until the
/// window is deregistered, or the communicator has ended. `options` as for `fc_comm_all_reduce`. `*out`
/// receives an owned window, which may outlive `comm`.
///
/// Memory from `fc_mem_alloc` is the fastest: the ranks of a machine write to it where it lies.
/// `FC_ERR_UNSUPPORTED` by an engine without windows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_create(
    comm: *mut fc_comm,
    memory: *mut c_void,
    bytes: usize,
    options: *const fc_op_options,
    out: *mut *mut fc_window,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, initialised options and a place for one
    // pointer.
    unsafe {
        with_comm(comm, |handle| {
            let out = Out::new(out, "out")?;
            let manner = manner_of(&options_of(options)?)?;
            let arguments = Arguments::new(handle.communicator, FC_DTYPE_BYTE)?;
            let memory = arguments.region("memory", memory, bytes)?;
            let window = handle
                .communicator
                .open_window(memory, manner.timeout, manner.stream)?;
            out.set(ffi::give::<fc_window>(window));
            Ok(())
        })
    }
}

/// The frame of every operation: reads options and dtype, builds the task, issues it.
///
/// # Safety
/// The pointers are what the header asks for, and the buffers stay valid until the operation is
/// complete.
unsafe fn operate(
    window: *mut fc_window,
    dtype: fc_dtype,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
    task: impl FnOnce(&Arguments<'_>) -> Result<OneSided>,
) -> fc_status {
    // SAFETY: by the caller's promise, here and below.
    unsafe {
        with_window(window, |window| {
            let manner = manner_of(&options_of(options)?)?;
            let arguments = Arguments::new(window.communicator(), dtype)?;
            issue(window, task(&arguments)?, arguments.dtype, manner, work)
        })
    }
}

/// Issues a task: waits for it when `work` is NULL, else hands out its work.
///
/// # Safety
/// `work` is NULL or a place for one pointer.
unsafe fn issue(
    window: &Window,
    task: OneSided,
    dtype: Dtype,
    manner: Manner,
    work: *mut *mut fc_work,
) -> Result<()> {
    let Manner {
        timeout,
        stream,
        on_stream,
    } = manner;
    let on_streams = window.communicator().on_streams();
    if work.is_null() && !on_streams {
        return window.run(task, dtype, timeout);
    }
    let mode = if work.is_null() || (on_stream && on_streams) {
        Mode::Sync
    } else {
        Mode::Async
    };
    let pending = window.start_on(task, dtype, timeout, mode, stream)?;
    if !work.is_null() {
        // SAFETY: not NULL, and a place for one pointer by the caller's promise.
        unsafe { work.write(ffi::give::<fc_work>(pending)) };
    }
    Ok(())
}

/// Bytes before element `offset`.
fn offset_of(arguments: &Arguments<'_>, offset: usize) -> Result<usize> {
    offset.checked_mul(arguments.dtype.size()).ok_or_else(|| {
        invalid("the offset lies beyond any window").got(format!("{offset} elements"))
    })
}

/// A put, with or without a signal.
///
/// # Safety
/// As `operate`.
unsafe fn put(
    window: *mut fc_window,
    (source, count, dtype): (*const c_void, usize, fc_dtype),
    (dst, target_offset): (i32, usize),
    signal: bool,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: by the caller's promise.
    unsafe {
        operate(window, dtype, options, work, |arguments| {
            Ok(OneSided::Put {
                to: arguments.rank("dst", dst)?,
                source: arguments.region("source", source, count)?,
                offset: offset_of(arguments, target_offset)?,
                signal,
            })
        })
    }
}

/// Writes `count` elements to the window of rank `dst`, from element `target_offset` of the same type
/// on, all of them within what `dst` registered. Complete when `source` may be used again; `dst` finds
/// the bytes once it has taken a signal that was given after them. Does not signal. `options` and
/// `work` as for `fc_comm_all_reduce`.
///
/// What one rank does to the window of another takes effect in the order of the calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_put(
    window: *mut fc_window,
    source: *const c_void,
    count: usize,
    dtype: fc_dtype,
    dst: i32,
    target_offset: usize,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    let what = (source, count, dtype);
    // SAFETY: the pointers are what the header asks for.
    unsafe { put(window, what, (dst, target_offset), false, options, work) }
}

/// `fc_window_put` and `fc_window_signal` in one call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_put_signal(
    window: *mut fc_window,
    source: *const c_void,
    count: usize,
    dtype: fc_dtype,
    dst: i32,
    target_offset: usize,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    let what = (source, count, dtype);
    // SAFETY: the pointers are what the header asks for.
    unsafe { put(window, what, (dst, target_offset), true, options, work) }
}

/// Reads `count` elements of the window of rank `src`, from element `source_offset` of the same type
/// on, into `target`; as `fc_window_put` in all else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_get(
    window: *mut fc_window,
    target: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    src: i32,
    source_offset: usize,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(window, dtype, options, work, |arguments| {
            Ok(OneSided::Get {
                from: arguments.rank("src", src)?,
                target: arguments.region("target", target, count)?,
                offset: offset_of(arguments, source_offset)?,
            })
        })
    }
}

/// Adds one to the signals of this rank that rank `dst`, which may be this rank, can take from the
/// window. `options` and `work` as for `fc_comm_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_signal(
    window: *mut fc_window,
    dst: i32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(window, FC_DTYPE_BYTE, options, work, |arguments| {
            let to = arguments.rank("dst", dst)?;
            Ok(OneSided::Signal { to })
        })
    }
}

/// Takes one signal of rank `src` from the window, once there is one; every signal is taken once. A
/// time-out or a cancel takes none, and leaves the communicator usable. `options` and `work` as for
/// `fc_comm_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_wait_signal(
    window: *mut fc_window,
    src: i32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(window, FC_DTYPE_BYTE, options, work, |arguments| {
            let from = arguments.rank("src", src)?;
            Ok(OneSided::WaitSignal { from })
        })
    }
}

/// A rank of the window's communicator.
fn rank_of(window: &Window, rank: i32) -> Result<GroupRank> {
    window.communicator().rank_argument("rank", rank)
}

/// Bytes of the window of rank `rank`; 0 when there is no such rank, with the reason as the last error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_bytes(window: *const fc_window, rank: i32) -> usize {
    guard_value(0, || {
        // SAFETY: the caller passes NULL or a live window.
        let window = unsafe { ffi::value(window) }?;
        Ok(window.bytes(rank_of(window, rank)?))
    })
}

/// Whether this process reaches the window of rank `rank` by an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_access_of(
    window: *const fc_window,
    rank: i32,
    access: *mut fc_window_access,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live window, and NULL or a place for one number.
    unsafe {
        with_window(window, |window| {
            let out = Out::new(access, "access")?;
            out.set(match window.access(rank_of(window, rank)?) {
                Access::Unified => FC_WINDOW_UNIFIED,
                Access::Separate => FC_WINDOW_SEPARATE,
            });
            Ok(())
        })
    }
}

/// Where the window of rank `rank` lies in this process: the memory itself, not a copy. Valid as long as
/// the handle, also after `fc_window_deregister`; its content only until then. Always there for the own
/// rank; `FC_ERR_UNSUPPORTED` where `fc_window_access_of` says `FC_WINDOW_SEPARATE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_map(
    window: *mut fc_window,
    rank: i32,
    memory: *mut *mut c_void,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live window, and NULL or a place for one pointer.
    unsafe {
        with_window(window, |window| {
            let out = Out::new(memory, "memory")?;
            let Region { address, .. } = window.map(rank_of(window, rank)?)?;
            out.set(std::ptr::with_exposed_provenance_mut(address));
            Ok(())
        })
    }
}

/// Ends the window: a collective of its communicator, in order with the others. When it returns, nobody
/// uses this rank's memory through the window any more. Operations on the window are complete before.
/// `options` as for `fc_comm_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_deregister(
    window: *mut fc_window,
    options: *const fc_op_options,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live window, and NULL or initialised options.
    unsafe {
        with_window(window, |window| {
            let manner = manner_of(&options_of(options)?)?;
            window.deregister(manner.timeout, manner.stream)
        })
    }
}

/// Gives the window back, and what `fc_window_map` returned with it. Without `fc_window_deregister` the
/// others may use this rank's memory until the communicator has ended: it stays valid until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_window_destroy(window: *mut fc_window) {
    // SAFETY: the caller gives up its window, once.
    drop(unsafe { ffi::take(window) });
}

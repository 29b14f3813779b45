//! Operations on their way. Must not know which engine drives them.

use std::ffi::c_void;

use ferrocomm_abi::*;
use ferrocomm_core::Result;
use ferrocomm_core::call::Stream;
use ferrocomm_engine::Pending;

use crate::ffi::{self, Handle, Out, guard, guard_poisoning, guard_value, null};
use crate::status::{c_string, code_of, set_last_error};
use crate::text::{fc_string, give_text};

/// An asynchronous operation. Owned by the caller; given back with `fc_work_destroy` at any time,
/// the operation goes on. Any thread may use it.
pub struct fc_work {
    _opaque: [u8; 0],
}

impl Handle for fc_work {
    type Value = Pending;
    const NOUN: &'static str = "work";
}

/// Runs `body` on a work; a panic puts its communicator out of use.
///
/// # Safety
/// `work` is NULL or a live work.
unsafe fn with_work(work: *const fc_work, body: impl FnOnce(&Pending) -> Result<()>) -> fc_status {
    // SAFETY: by the caller's promise.
    let pending = unsafe { ffi::value(work) };
    let poisoned = pending.as_ref().ok().copied();
    guard_poisoning(
        || {
            let pending = pending?;
            pending.communicator().check_process()?;
            body(pending)
        },
        |message| {
            if let Some(pending) = poisoned {
                pending.communicator().fail_with_panic(message);
            }
        },
    )
}

/// Waits until the operation is complete and returns its status. When `timeout_ns` is positive and
/// passes first, the operation fails with `FC_ERR_TIMEOUT`: a point-to-point operation alone, a
/// collective together with its communicator. Otherwise the operation's own time-out counts.
/// `FC_ERR_INTERRUPTED` ends the wait, not the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_wait(work: *mut fc_work, timeout_ns: i64) -> fc_status {
    // SAFETY: the caller passes NULL or a live work.
    unsafe {
        with_work(work, |pending| {
            pending.wait(ffi::timeout(timeout_ns.max(0))?)
        })
    }
}

/// Makes `stream` wait until the operation is complete, and returns at once; fails with the operation's
/// failure when that is known already. For an engine without streams it is `fc_work_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_wait_on(work: *mut fc_work, stream: *mut c_void) -> fc_status {
    // SAFETY: the caller passes NULL or a live work, and a stream that lives during the call.
    unsafe {
        with_work(work, |pending| {
            pending.wait_on(Stream(stream.expose_provenance()))
        })
    }
}

/// 1 for an operation that was captured into a CUDA graph, else 0. Such a work is complete at once, and
/// its buffers are used whenever the graph is launched: see `fc_work_keep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_is_captured(work: *const fc_work) -> i32 {
    guard_value(0, || {
        // SAFETY: the caller passes NULL or a live work.
        let pending = unsafe { ffi::value(work) }?;
        Ok(i32::from(pending.is_captured()))
    })
}

/// Calls `release` with `ctx` exactly once, when nothing uses the operation's buffers any more: when it
/// is complete, or when the graph it was captured in is gone. May call it before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_keep(
    work: *mut fc_work,
    release: fc_release_callback,
    ctx: *mut c_void,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live work.
    unsafe {
        with_work(work, |pending| {
            let release = release.ok_or_else(|| null("release"))?;
            let context = Context(ctx);
            pending.keep(move || {
                let context = context;
                // SAFETY: the client's function with its own context, once.
                release(context.0);
            });
            Ok(())
        })
    }
}

/// `FC_IN_PROGRESS`, `FC_OK`, or the failure; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_status(work: *const fc_work) -> fc_status {
    guard_value(FC_ERR_INVALID_ARGUMENT, || {
        // SAFETY: the caller passes NULL or a live work.
        Ok(match unsafe { ffi::value(work) }?.outcome() {
            None => FC_IN_PROGRESS,
            Some(Ok(())) => FC_OK,
            Some(Err(error)) => {
                set_last_error(&error);
                code_of(error.kind())
            }
        })
    })
}

/// 0 for an operation that waits behind another one of its communicator, which its time-out does not
/// count; 1 once it has begun, for NULL, and where the engine cannot tell. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_has_begun(work: *const fc_work) -> i32 {
    guard_value(1, || {
        // SAFETY: the caller passes NULL or a live work.
        let pending = unsafe { ffi::value(work) }?;
        Ok(i32::from(pending.has_begun()))
    })
}

/// Text of the operation's failure, empty without one. `*text` receives an owned string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_error(
    work: *const fc_work,
    text: *mut *mut fc_string,
) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a place for one pointer.
        let out = unsafe { Out::new(text, "text") }?;
        // SAFETY: the caller passes NULL or a live work.
        let failure = unsafe { ffi::value(work) }?.outcome().and_then(Result::err);
        out.set(give_text(
            &failure.map(|error| error.to_string()).unwrap_or_default(),
        ));
        Ok(())
    })
}

/// The rank a receive was matched with; -1 before that, for other operations and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_source(work: *const fc_work) -> i32 {
    guard_value(-1, || {
        // SAFETY: the caller passes NULL or a live work.
        Ok(unsafe { ffi::value(work) }?
            .source()
            .map_or(-1, |rank| rank.get() as i32))
    })
}

/// Its sequence number: among the communicator's collectives and splits, or among its
/// point-to-point operations, each from 1; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_sequence(work: *const fc_work) -> u64 {
    // SAFETY: the caller passes NULL or a live work.
    guard_value(0, || Ok(unsafe { ffi::value(work) }?.sequence()))
}

/// Cancels a point-to-point operation, which then fails with `FC_ERR_CANCELLED` unless it was
/// complete; the communicator stays usable. `FC_ERR_UNSUPPORTED` for a collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_cancel(work: *mut fc_work) -> fc_status {
    // SAFETY: the caller passes NULL or a live work.
    unsafe { with_work(work, |pending| pending.cancel()) }
}

/// A context pointer that travels to the thread that completes the work.
struct Context(*mut c_void);
// SAFETY: the client promises in the header that its callback runs on any thread.
unsafe impl Send for Context {}

/// Calls `callback` with `ctx` exactly once: when the operation completes, or before this returns
/// when it is complete already. The callback must not wait for another operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_on_complete(
    work: *mut fc_work,
    callback: fc_work_callback,
    ctx: *mut c_void,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live work.
    unsafe {
        with_work(work, |pending| {
            let callback = callback.ok_or_else(|| null("callback"))?;
            let context = Context(ctx);
            pending.on_complete(move |outcome| {
                let context = context;
                let (status, message) = match outcome {
                    Ok(()) => (FC_OK, c_string("")),
                    Err(error) => (code_of(error.kind()), c_string(&error.to_string())),
                };
                // SAFETY: the client's function with its own context, once.
                callback(context.0, status, message.as_ptr());
            });
            Ok(())
        })
    }
}

/// Gives the work back; the operation goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_work_destroy(work: *mut fc_work) {
    // SAFETY: the caller gives up its work, once.
    drop(unsafe { ffi::take(work) });
}

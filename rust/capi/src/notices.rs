//! What a communicator tells its client unasked, and the memory the client tells it of.

use std::ffi::c_void;
use std::sync::Arc;

use ferrocomm_abi::*;
use ferrocomm_engine::{AbortHook, Ending};

use crate::comm::{fc_comm, with_comm};
use crate::ffi::null;
use crate::status::c_string;

/// A client's context with the function that frees it.
struct Context {
    pointer: *mut c_void,
    release: fc_release_callback,
}
// SAFETY: the client promises in the header that both of its functions run on any thread.
unsafe impl Send for Context {}
// SAFETY: as above; calls may overlap.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the client's function with its own context, once: nobody else has this value.
            unsafe { release(self.pointer) };
        }
    }
}

/// Calls `callback` with `ctx` when the communicator fails and before a failure ends the process;
/// it replaces the one before, and NULL takes that away. What the client ends itself, by abort or
/// finalize, it is not told. `release` may be NULL; else it is called once, when nothing uses `ctx` any
/// more, also when this call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_set_abort_callback(
    comm: *mut fc_comm,
    callback: fc_abort_callback,
    ctx: *mut c_void,
    release: fc_release_callback,
) -> fc_status {
    let context = Context {
        pointer: ctx,
        release,
    };
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe {
        with_comm(comm, |handle| {
            let hook = callback.map(|callback| {
                let hook: AbortHook = Arc::new(move |error, ending| {
                    let context = &context;
                    let message = c_string(&error.to_string());
                    let ends = i32::from(ending == Ending::Process);
                    // SAFETY: the client's function with its own context, which lives as long as this.
                    callback(context.pointer, message.as_ptr(), ends);
                });
                hook
            });
            handle.communicator.set_abort_hook(hook);
            Ok(())
        })
    }
}

/// Tells the communicator of `bytes` bytes at `data` that operations will use, so that its engine can
/// prepare them: `nccl` registers them with its library, `host` has nothing to prepare. They stay
/// allocated until `fc_comm_deregister` or the end of the communicator. The same `data` cannot be
/// registered twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_register(
    comm: *mut fc_comm,
    data: *const c_void,
    bytes: usize,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe {
        with_comm(comm, |handle| {
            if data.is_null() {
                return Err(null("data"));
            }
            handle.communicator.register(data.addr(), bytes)
        })
    }
}

/// Takes back what `fc_comm_register` did for `data`; no operation that uses it is pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_deregister(comm: *mut fc_comm, data: *const c_void) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe { with_comm(comm, |handle| handle.communicator.deregister(data.addr())) }
}

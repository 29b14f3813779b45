//! What a communicator tells its client unasked. Must not know how a communicator fails.

use std::ffi::c_void;
use std::sync::Arc;

use ferrocomm_abi::*;
use ferrocomm_engine::{AbortHook, Ending};

use crate::comm::{fc_comm, with_comm};
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

//! Communicators whose members change. Must not know how members meet.

use std::ffi::c_char;

use ferrocomm_abi::*;
use ferrocomm_core::reconfigure::Handles;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_engine::{Reconfigurable, ReconfigureOptions};

use crate::comm::{CommHandle, fc_comm, hints_of, options_of, with_comm};
use crate::ffi::{self, Out, SizeTagged, guard, guard_value, null};
use crate::text::{fc_string, give_text};
use crate::work::fc_work;

// SAFETY: `repr(C)`, starts with its size; pointers and numbers may be zero.
unsafe impl SizeTagged for fc_reconfigure_options {
    const NAME: &'static str = "fc_reconfigure_options";
}

/// Sets `options` to defaults: everything zero but `ordered`, which is 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_reconfigure_options_init(options: *mut fc_reconfigure_options) {
    guard_value((), || {
        // SAFETY: the caller passes NULL or a place for the struct.
        let out = unsafe { Out::new(options, "options") }?;
        out.set(fc_reconfigure_options {
            size: size_of::<fc_reconfigure_options>(),
            uuid: 0,
            handles: std::ptr::null(),
            handle_count: 0,
            ordered: 1,
            timeout_ns: 0,
            hints: std::ptr::null(),
            hint_count: 0,
        });
        Ok(())
    });
}

/// Makes a communicator that has no members yet, and whose members can change: see
/// `fc_comm_reconfigure`. Talks to no other rank and to no store. Rank and size in `options` are the
/// launcher's; they stand for nothing until it is configured. `*out` receives an owned communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_create_unconfigured(
    options: *const fc_comm_options,
    out: *mut *mut fc_comm,
) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a place for one pointer.
        let out = unsafe { Out::new(out, "out") }?;
        // SAFETY: the caller passes NULL or initialised options.
        let reconfigurable = Reconfigurable::create(unsafe { options_of(options) }?)?;
        out.set(CommHandle::give_changing(reconfigurable));
        Ok(())
    })
}

/// By what the members of the next group reach this one: text without spaces, to be handed to them in
/// any way. It names this communicator for as long as it lives, and says which rank it has now: ranks
/// that the engine chooses depend on that. `*handle` receives an owned string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_init_handle(
    comm: *const fc_comm,
    handle: *mut *mut fc_string,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a pointer.
    unsafe {
        with_comm(comm, |using| {
            let out = Out::new(handle, "handle")?;
            let changing = using.changing.ok_or_else(fixed)?;
            out.set(give_text(&changing.handle()?));
            Ok(())
        })
    }
}

/// Gives a communicator made by `fc_comm_create_unconfigured` its members, or other members than it
/// has; every member calls it with the same uuid and handles. What is pending fails with
/// `FC_ERR_ABORTED`, whatever state the communicator is in but finalized. Members meet at the
/// addresses in the handles, ask no store, and keep the connections they have. Fails on all members
/// that have come: `FC_ERR_TIMEOUT` and `FC_ERR_PEER_LOST` name those that have not,
/// `FC_ERR_MISMATCH` says where members were called with different handles. A call that returns a
/// failure at once (a uuid that was used before, this communicator's own handle missing) has changed
/// nothing. With `work` NULL it returns when it is over; else `*work` receives an owned work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_reconfigure(
    comm: *mut fc_comm,
    options: *const fc_reconfigure_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, initialised options, and NULL or a
    // place for a pointer.
    unsafe {
        with_comm(comm, |using| {
            let changing = using.changing.ok_or_else(fixed)?;
            let pending = changing.reconfigure(wishes(options)?)?;
            if work.is_null() {
                return pending.wait(None);
            }
            work.write(ffi::give::<fc_work>(pending));
            Ok(())
        })
    }
}

/// Reads what C asks for.
///
/// # Safety
/// `options` is NULL or an initialised struct whose pointers are NULL or valid.
unsafe fn wishes(options: *const fc_reconfigure_options) -> Result<ReconfigureOptions> {
    if options.is_null() {
        return Err(null("options"));
    }
    // SAFETY: not NULL; the rest is the caller's promise, here and below.
    let options = unsafe { ffi::read_sized(options) }?;
    // SAFETY: as above.
    let handles = unsafe { ffi::list(options.handles, options.handle_count, "handles") }?;
    let owned = |handle: &*const c_char| {
        // SAFETY: as above.
        unsafe { ffi::text(*handle, "handle") }.map(str::to_owned)
    };
    let handles = handles.iter().map(owned).collect::<Result<Vec<_>>>()?;
    Ok(ReconfigureOptions {
        uuid: options.uuid,
        handles: if options.ordered == 0 {
            Handles::Unordered(handles)
        } else {
            Handles::Ordered(handles)
        },
        timeout: ffi::timeout(options.timeout_ns)?,
        // SAFETY: as above.
        hints: unsafe { hints_of(options.hints, options.hint_count) }?,
    })
}

fn fixed() -> Error {
    Error::new(
        ErrorKind::State,
        "the members of this communicator are fixed",
    )
    .remedy("make it with enable_reconfigure=True (fc_comm_create_unconfigured)")
}

//! What a communicator holds beside its operations: registered memory, memory that it can give up for
//! a while, and what the library below knows it under. Must not know which engine can do which of it.

use std::ffi::c_void;

use ferrocomm_abi::*;
use ferrocomm_core::Result;
use ferrocomm_core::call::Region;

use crate::comm::{fc_comm, with_comm};
use crate::ffi::{self, Out, SizeTagged, null};

// SAFETY: `repr(C)`, starts with its size; numbers may be zero.
unsafe impl SizeTagged for fc_memory_use {
    const NAME: &'static str = "fc_memory_use";
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
            let address = data.expose_provenance();
            handle
                .communicator
                .register_memory(Region { address, bytes })
        })
    }
}

/// Takes back what `fc_comm_register` did for `data`; no operation that uses it is pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_deregister(comm: *mut fc_comm, data: *const c_void) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe {
        with_comm(comm, |handle| {
            handle.communicator.deregister_memory(data.addr())
        })
    }
}

/// Waits for what is on its way, then gives up what device memory the communicator can take again;
/// every rank calls it. Until `fc_comm_resume` operations fail with `FC_ERR_STATE`. Again: nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_suspend(comm: *mut fc_comm) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe { with_comm(comm, |handle| handle.communicator.suspend()) }
}

/// Takes the memory again that `fc_comm_suspend` gave up; every rank calls it. Again: nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_resume(comm: *mut fc_comm) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe { with_comm(comm, |handle| handle.communicator.resume()) }
}

/// How much memory of its device the communicator takes; `out->size` is set by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_memory_use(
    comm: *mut fc_comm,
    out: *mut fc_memory_use,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a struct with its size.
    unsafe {
        with_comm(comm, |handle| {
            let memory = handle.communicator.memory()?;
            write_use(
                out,
                fc_memory_use {
                    size: size_of::<fc_memory_use>(),
                    suspendable: memory.suspendable,
                    suspended: u64::from(memory.suspended),
                    persistent: memory.persistent,
                    total: memory.total,
                },
            )
        })
    }
}

/// Writes as much of `value` as the client's struct has room for.
///
/// # Safety
/// `out` is NULL or a struct of the size that it says.
unsafe fn write_use(out: *mut fc_memory_use, value: fc_memory_use) -> Result<()> {
    if out.is_null() {
        return Err(null("out"));
    }
    // SAFETY: not NULL, and initialised up to its size by the caller's promise; the check of the size
    // is `read_sized`'s.
    let theirs = unsafe { ffi::read_sized(out) }?.size;
    let bytes = theirs.min(size_of::<fc_memory_use>());
    let value = fc_memory_use {
        size: theirs,
        ..value
    };
    // SAFETY: both sides have at least that many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), out.cast::<u8>(), bytes);
    }
    Ok(())
}

/// What the library below knows the communicator under: an `ncclComm_t` of `nccl`. Borrowed, and valid
/// until the communicator ends; calls on it must not overlap with the communicator's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_native(comm: *mut fc_comm, native: *mut *mut c_void) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a pointer.
    unsafe {
        with_comm(comm, |handle| {
            let out = Out::new(native, "native")?;
            let address = handle.communicator.native()?;
            out.set(std::ptr::with_exposed_provenance_mut(address));
            Ok(())
        })
    }
}

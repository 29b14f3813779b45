//! Memory that peers can read where it lies. Must not know what operations do with it.

use std::ffi::{c_char, c_void};

use ferrocomm_abi::*;
use ferrocomm_engine::Backend;

use crate::ffi::{self, Out, guard, guard_value, invalid};

/// Memory of `bytes` bytes that the ranks of this machine can read where it lies, so that large
/// collectives neither copy it nor ask the kernel for it, once all ranks have some. Any takes it, as any
/// operation takes other memory. It is aligned to 64 bytes, its content is undefined, and no bytes
/// are memory too. `*out` receives it; it is the caller's, who gives it back once with `fc_mem_free`.
/// Reserved at once: when memory is short the answer is `FC_ERR_RESOURCES`, and using it never fails.
/// A forked child shares it with its parent, and frees only what it allocated itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_mem_alloc(
    backend: *const c_char,
    bytes: usize,
    out: *mut *mut c_void,
) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a nul-terminated string.
        let backend = Backend::named(unsafe { ffi::text(backend, "backend") }?)?;
        // SAFETY: the caller passes NULL or a place for one pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(backend.allocate(bytes)?.as_ptr().cast());
        Ok(())
    })
}

/// Gives back `memory`, which `fc_mem_alloc` of `backend` handed out and which no operation uses any
/// more; from any thread. NULL does nothing. Memory of the parent in a forked child stays as it is:
/// `FC_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_mem_free(backend: *const c_char, memory: *mut c_void) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a nul-terminated string.
        let backend = Backend::named(unsafe { ffi::text(backend, "backend") }?)?;
        if memory.is_null() {
            return Ok(());
        }
        backend.release(memory.addr())
    })
}

/// Memory of `bytes` bytes on GPU number `device` that NCCL can register with every transport; NULL when
/// there is none to be had, with the reason as the last error. In the form that torch's pluggable
/// allocators have, for memory pools; `stream` does not matter. Given back with `fc_nccl_pool_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_nccl_pool_alloc(
    bytes: isize,
    device: i32,
    stream: *mut c_void,
) -> *mut c_void {
    let _any = stream;
    guard_value(std::ptr::null_mut(), || {
        let bytes = usize::try_from(bytes).map_err(|_| invalid("bytes is negative").got(bytes))?;
        let memory = ferrocomm_engine::allocate_on_gpu(device, bytes)?;
        Ok(memory.as_ptr().cast())
    })
}

/// Gives back `memory`, which `fc_nccl_pool_alloc` handed out and no operation uses any more; NULL does
/// nothing. The other arguments are there for the form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_nccl_pool_free(
    memory: *mut c_void,
    bytes: isize,
    device: i32,
    stream: *mut c_void,
) {
    let _for_the_form = (bytes, device, stream);
    guard_value((), || {
        if memory.is_null() {
            return Ok(());
        }
        Backend::Nccl.release(memory.addr())
    });
}

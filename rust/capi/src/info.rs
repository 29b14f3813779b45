//! Questions about the library that need no communicator. Must not know communicators: the engine
//! lists those that live.

use std::ffi::c_char;

use ferrocomm_abi::*;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::{Error, Result};
use ferrocomm_engine::Backend;

use crate::ffi::{self, Out, guard, invalid};
use crate::text::{fc_string, give_text};

/// The element type with this code.
#[inline(always)]
pub(crate) fn dtype_of(code: fc_dtype) -> Result<Dtype> {
    Dtype::from_code(code).ok_or_else(|| unknown("no such dtype", code, "one of FC_DTYPE_*"))
}

/// The reduce op with this code.
#[inline(always)]
pub(crate) fn reduce_op_of(code: fc_reduce_op, premul_factor: f64) -> Result<ReduceOp> {
    ReduceOp::from_code(code, premul_factor)
        .ok_or_else(|| unknown("no such reduce op", code, "one of FC_REDUCE_*"))
}

#[cold]
fn unknown(what: &'static str, code: u32, expected: &'static str) -> Error {
    invalid(what).got(code).expected(expected)
}

/// What this library is and serves, as JSON: {"version", "abi", "backends": [{"name", "aliases",
/// "usable", "reason", "findings": {..}}], "transports": [..], "recorder_entries", "communicators": [..]},
/// each communicator as `fc_comm_info` has it. `*json` receives an owned string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_engine_info(json: *mut *mut fc_string) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a place for one pointer.
        let out = unsafe { Out::new(json, "json") }?;
        out.set(give_text(&ferrocomm_engine::engine_info(FC_ABI_VERSION)));
        Ok(())
    })
}

/// Tells where NCCL's library lies in the client's installation; NULL forgets it. It comes after
/// `FERROCOMM_NCCL_LIB` and a copy that the process has mapped, and counts until the library is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_nccl_locate(path: *const c_char) -> fc_status {
    guard(|| {
        let path = if path.is_null() {
            None
        } else {
            // SAFETY: the caller passes NULL or a nul-terminated string.
            Some(unsafe { ffi::text(path, "path") }?.into())
        };
        ferrocomm_engine::locate_nccl(path);
        Ok(())
    })
}

/// Size of one element of `dtype` in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_dtype_size(dtype: fc_dtype, out: *mut usize) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a place for one number.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(dtype_of(dtype)?.size());
        Ok(())
    })
}

/// Whether `backend` can combine elements of `dtype` with `op`: `FC_OK`, or `FC_ERR_UNSUPPORTED`
/// with the reason as the last error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_reduction_supported(
    backend: *const c_char,
    op: fc_reduce_op,
    dtype: fc_dtype,
) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a nul-terminated string.
        let backend = Backend::named(unsafe { ffi::text(backend, "backend") }?)?;
        backend.reduction_supported(&reduce_op_of(op, 1.0)?, dtype_of(dtype)?)
    })
}

//! NCCL's results as errors: its words, its last error, the call, and CUDA's error behind it.
//! Must not know which operation it was.

use std::ffi::CStr;

use ferrocomm_core::call::Stream;
use ferrocomm_core::{Error, ErrorKind};
use ferrocomm_nccl_sys::sys::{ncclComm_t, ncclResult_t};
use ferrocomm_nccl_sys::{Missing, Nccl, symbol};

use crate::driver;

/// A function that the loaded NCCL lacks.
pub(crate) fn missing(missing: &Missing) -> Error {
    Error::new(ErrorKind::Unsupported, missing.to_string())
        .remedy("install a newer NCCL, or name one with FERROCOMM_NCCL_LIB")
}

/// What kind of failure a result is.
fn kind(result: ncclResult_t) -> ErrorKind {
    match result {
        ncclResult_t::ncclInvalidArgument => ErrorKind::InvalidArgument,
        ncclResult_t::ncclInvalidUsage => ErrorKind::Mismatch,
        ncclResult_t::ncclRemoteError => ErrorKind::PeerLost,
        ncclResult_t::ncclTimeout => ErrorKind::Timeout,
        _ => ErrorKind::Transport,
    }
}

/// The error for `result`, which `call` returned on `comm` (NULL where there is none yet). CUDA is
/// asked about `stream` when NCCL says that CUDA failed.
///
/// # Safety
/// `comm` is NULL or a communicator that is not destroyed meanwhile.
pub(crate) unsafe fn failed(
    nccl: &Nccl,
    comm: ncclComm_t,
    call: &str,
    result: ncclResult_t,
    stream: Option<Stream>,
) -> Error {
    let name = symbol!(nccl, ncclGetErrorString)
        // SAFETY: takes any number, answers with static text.
        .map(|text| unsafe { text(result) })
        .ok()
        .filter(|text| !text.is_null())
        .map(|text| {
            // SAFETY: static, nul-terminated text.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        })
        .unwrap_or_default();
    let last = symbol!(nccl, ncclGetLastError)
        // SAFETY: takes NULL or a live communicator, by the caller's promise.
        .map(|text| unsafe { text(comm) })
        .ok()
        .filter(|text| !text.is_null())
        .map(|text| {
            // SAFETY: nul-terminated; a later call may replace it, so it is copied at once.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        })
        .filter(|text| !text.is_empty());
    let mut got = format!("NCCL error {} ({name})", result.0);
    if let Some(last) = last {
        got = format!("{got}; its last error: {}", last.trim_end());
    }
    if result == ncclResult_t::ncclUnhandledCudaError
        && let Some(fault) = stream.and_then(driver::fault_of)
    {
        got = format!("{got}; {fault}");
    }
    Error::new(kind(result), format!("{call} failed")).got(got)
}

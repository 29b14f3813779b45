//! Device memory that NCCL can register with every transport. Must not know communicators: each
//! registers it for itself.

use std::ptr::{self, NonNull};

use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::symbol;
use ferrocomm_nccl_sys::sys::ncclResult_t;

use crate::driver::{Device, driver};
use crate::errors;
use crate::library::library;

/// Memory of `bytes` bytes on the thread's current device; given back with `release`.
///
/// # Errors
/// `Unsupported` without NCCL or a driver; `Resources`, when the device is full.
pub fn allocate(bytes: usize) -> Result<NonNull<u8>> {
    driver()?;
    let nccl = library()?;
    let allocate = symbol!(nccl, ncclMemAlloc).map_err(|error| errors::missing(&error))?;
    let mut memory = ptr::null_mut();
    // SAFETY: a place for one pointer.
    let result = unsafe { allocate(&raw mut memory, bytes.max(1)) };
    if result != ncclResult_t::ncclSuccess {
        // SAFETY: no communicator is asked about.
        return Err(unsafe { errors::failed(nccl, ptr::null_mut(), "ncclMemAlloc", result, None) });
    }
    NonNull::new(memory.cast()).ok_or_else(|| {
        Error::new(ErrorKind::Resources, "ncclMemAlloc gave no memory")
            .got(format!("{bytes} bytes"))
    })
}

/// As `allocate`, on device number `device`.
///
/// # Errors
/// As `allocate`; `InvalidArgument`, when there is no such device.
pub fn allocate_on(device: i32, bytes: usize) -> Result<NonNull<u8>> {
    let _entered = Device::open(device)?.enter()?;
    allocate(bytes)
}

/// Gives back what `allocate` returned as `address`.
///
/// # Errors
/// NCCL's, when it is no such memory.
pub fn release(address: usize) -> Result<()> {
    let nccl = library()?;
    let free = symbol!(nccl, ncclMemFree).map_err(|error| errors::missing(&error))?;
    // SAFETY: NCCL looks the address up and refuses what it did not hand out.
    let result = unsafe { free(ptr::with_exposed_provenance_mut(address)) };
    if result == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: no communicator is asked about.
    Err(unsafe { errors::failed(nccl, ptr::null_mut(), "ncclMemFree", result, None) })
}

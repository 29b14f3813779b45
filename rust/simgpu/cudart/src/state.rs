//! What the runtime keeps per thread: the last error. And the context it sets without being asked.

use std::cell::Cell;
use std::ffi::c_int;

use simgpu_common::driver::{Driver, driver};

pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const NOT_SUPPORTED: c_int = 801;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
}

/// Keeps a status, when it is an error, as this thread's last one.
pub(crate) fn remember(status: c_int) -> c_int {
    if status != 0 {
        LAST.set(status);
    }
    status
}

/// The last error of this thread.
pub(crate) fn last() -> c_int {
    LAST.get()
}

/// The last error of this thread, which is forgotten.
pub(crate) fn take_last() -> c_int {
    LAST.replace(0)
}

/// Makes a device's primary context current.
pub(crate) fn use_device(device: c_int) -> c_int {
    let driver = driver();
    let mut context = std::ptr::null_mut();
    // SAFETY: the out pointer is a local's.
    let status = unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, device) };
    if status != 0 {
        return status;
    }
    // SAFETY: the context was just given.
    unsafe { (driver.cuCtxSetCurrent)(context) }
}

/// The driver, started, with a context on this thread: device 0's, when there was none.
pub(crate) fn ready() -> Result<&'static Driver, c_int> {
    let driver = driver();
    let mut context = std::ptr::null_mut();
    // SAFETY: the out pointer is a local's.
    if unsafe { (driver.cuCtxGetCurrent)(&mut context) } == 0 && !context.is_null() {
        return Ok(driver);
    }
    // SAFETY: no flags exist.
    let status = unsafe { (driver.cuInit)(0) };
    if status != 0 {
        return Err(status);
    }
    match use_device(0) {
        0 => Ok(driver),
        status => Err(status),
    }
}

/// Calls the driver once there is a context.
macro_rules! call {
    ($function:ident($($arg:expr),* $(,)?)) => {
        match crate::state::ready() {
            // SAFETY: the caller of the runtime function promised for these arguments what the
            // driver's function asks.
            Ok(driver) => unsafe { (driver.$function)($($arg),*) },
            Err(status) => status,
        }
    };
}
pub(crate) use call;

/// Writes a result; NULL is an invalid value.
pub(crate) fn put<T>(out: *mut T, value: T) -> c_int {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: callers of the runtime pass pointers that are valid for a write.
    unsafe { out.write(value) };
    0
}

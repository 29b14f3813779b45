//! Names: of statuses, and of entry points.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::{driver_api, put, put_wanted};
use crate::status::{Outcome, Status, describe};

/// From this version on, the third form of a function is meant by its plain name.
const THIRD_FORMS: c_int = 12_030;

/// This library, for looking up its own functions.
fn own_library() -> *mut c_void {
    // SAFETY: all zero is a value of Dl_info, and dladdr only writes to it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of this library.
    let found = unsafe { libc::dladdr(own_library as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: dladdr gave the path of a library that is loaded already.
    unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) }
}

/// The newest form of a function that a program built for `version` means.
fn look_up(name: &CStr, version: c_int) -> Outcome<*mut c_void> {
    let library = own_library();
    let plain = name.to_str().map_err(|_| Status::INVALID_VALUE)?;
    let forms = if version >= THIRD_FORMS {
        &["_v3", "_v2", ""][..]
    } else {
        &["_v2", ""][..]
    };
    for form in forms {
        let Ok(text) = CString::new(format!("{plain}{form}")) else {
            continue;
        };
        // SAFETY: the library is loaded, and the name ends with a zero.
        let found = unsafe { libc::dlsym(library, text.as_ptr()) };
        if !found.is_null() {
            return Ok(found);
        }
    }
    Err(Status::NOT_FOUND)
}

driver_api! {
    /// The name of a status.
    fn cuGetErrorName(status: c_int, text: *mut *const c_char) {
        let known = describe(status).ok_or(Status::INVALID_VALUE);
        put(text, known.map_or(std::ptr::null(), |known| known.0.as_ptr()))?;
        known.map(drop)
    }

    /// What a status says.
    fn cuGetErrorString(status: c_int, text: *mut *const c_char) {
        let known = describe(status).ok_or(Status::INVALID_VALUE);
        put(text, known.map_or(std::ptr::null(), |known| known.1.as_ptr()))?;
        known.map(drop)
    }

    /// An entry point; the result says whether it was found: 0, or 1 for no such symbol.
    fn cuGetProcAddress_v2(
        name: *const c_char, pointer: *mut *mut c_void, version: c_int, _flags: u64,
        result: *mut c_int,
    ) {
        if name.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and a text of the caller's.
        let found = look_up(unsafe { CStr::from_ptr(name) }, version);
        put(pointer, found.unwrap_or(std::ptr::null_mut()))?;
        put_wanted(result, c_int::from(found.is_err()));
        // A caller that asks for the result has its answer there.
        if result.is_null() { found.map(drop) } else { Ok(()) }
    }

    /// An entry point.
    fn cuGetProcAddress(
        name: *const c_char, pointer: *mut *mut c_void, version: c_int, flags: u64,
    ) {
        // SAFETY: the same contract.
        match unsafe { cuGetProcAddress_v2(name, pointer, version, flags, std::ptr::null_mut()) } {
            0 => Ok(()),
            other => Err(Status(other)),
        }
    }

    /// Would call back with the driver's log lines; this driver writes none.
    fn cuLogsRegisterCallback(_callback: *mut c_void, _data: *mut c_void, handle: *mut usize) {
        put_wanted(handle, 1);
        Ok(())
    }

    /// Ends what was registered.
    fn cuLogsUnregisterCallback(_handle: usize) { Ok(()) }
}

//! Text that C owns. Must not know what it says.

use std::ffi::{CString, c_char};

use ferrocomm_core::Result;

use crate::ffi::{self, Handle, guard_value};
use crate::status::c_string;

/// Text owned by the caller; corresponds to a boxed string. Given back with `fc_string_destroy`.
pub struct fc_string {
    _opaque: [u8; 0],
}

impl Handle for fc_string {
    type Value = CString;
    const NOUN: &'static str = "string";
}

/// Hands text to C.
pub(crate) fn give_text(text: &str) -> *mut fc_string {
    ffi::give(c_string(text))
}

/// The text, nul-terminated UTF-8, valid until the string is destroyed; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_string_data(string: *const fc_string) -> *const c_char {
    guard_value(std::ptr::null(), || -> Result<_> {
        // SAFETY: the caller passes NULL or a live string.
        Ok(unsafe { ffi::value(string) }?.as_ptr())
    })
}

/// Length of the text in bytes, without the final nul; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_string_len(string: *const fc_string) -> usize {
    guard_value(0, || -> Result<_> {
        // SAFETY: the caller passes NULL or a live string.
        Ok(unsafe { ffi::value(string) }?.as_bytes().len())
    })
}

/// Gives the text back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_string_destroy(string: *mut fc_string) {
    // SAFETY: the caller gives up its string, once.
    drop(unsafe { ffi::take(string) });
}

//! Statuses, the last error of a thread, and the version. Must not know calls or handles.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use ferrocomm_abi::*;
use ferrocomm_core::{Error, ErrorKind};

/// One line per status: its code, its kind of error, its name in C.
const STATUSES: [(fc_status, ErrorKind, &CStr); 16] = [
    (
        FC_ERR_INVALID_ARGUMENT,
        ErrorKind::InvalidArgument,
        c"invalid_argument",
    ),
    (FC_ERR_UNSUPPORTED, ErrorKind::Unsupported, c"unsupported"),
    (FC_ERR_STATE, ErrorKind::State, c"state"),
    (FC_ERR_TIMEOUT, ErrorKind::Timeout, c"timeout"),
    (FC_ERR_PEER_LOST, ErrorKind::PeerLost, c"peer_lost"),
    (FC_ERR_MISMATCH, ErrorKind::Mismatch, c"mismatch"),
    (FC_ERR_ABORTED, ErrorKind::Aborted, c"aborted"),
    (FC_ERR_TRANSPORT, ErrorKind::Transport, c"transport"),
    (FC_ERR_STORE, ErrorKind::Store, c"store"),
    (
        FC_ERR_STORE_TIMEOUT,
        ErrorKind::StoreTimeout,
        c"store_timeout",
    ),
    (
        FC_ERR_STORE_DISCONNECTED,
        ErrorKind::StoreDisconnected,
        c"store_disconnected",
    ),
    (FC_ERR_RESOURCES, ErrorKind::Resources, c"resources"),
    (FC_ERR_PANIC, ErrorKind::Panic, c"panic"),
    (FC_ERR_CANCELLED, ErrorKind::Cancelled, c"cancelled"),
    (FC_ERR_INTERRUPTED, ErrorKind::Interrupted, c"interrupted"),
    (FC_ERR_FORKED, ErrorKind::Forked, c"forked"),
];

/// The status of a kind of error.
pub(crate) fn code_of(kind: ErrorKind) -> fc_status {
    // Every kind has a line (see the test); a kind without one is a fault of the engine.
    STATUSES
        .iter()
        .find(|status| status.1 == kind)
        .map_or(FC_ERR_PANIC, |status| status.0)
}

/// The kind of error of a status, for statuses that clients return.
pub(crate) fn kind_of(code: fc_status) -> Option<ErrorKind> {
    STATUSES
        .iter()
        .find(|status| status.0 == code)
        .map(|status| status.1)
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Text as a C string; bytes of zero, which would end it early, are replaced.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Keeps the text of a failure for `fc_last_error`.
pub(crate) fn set_last_error(error: &Error) {
    let text = c_string(&error.to_string());
    // The thread may be ending and have no such storage left: then nobody can ask either.
    let _gone = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Version of this ABI; a client compares it with `FC_ABI_VERSION` before its first call.
#[unsafe(no_mangle)]
pub extern "C" fn fc_abi_version() -> u32 {
    FC_ABI_VERSION
}

/// Version of the library, such as "0.1.0"; static.
#[unsafe(no_mangle)]
pub extern "C" fn fc_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Text of the last failure on this thread, empty if there was none: kind, sentence, what was got
/// and expected, communicator, rank, peer, operation, sequence, remedy. Valid until the next
/// failing call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn fc_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Short name of a status, such as "timeout"; "unknown" for a number that is none. Static.
#[unsafe(no_mangle)]
pub extern "C" fn fc_status_name(status: fc_status) -> *const c_char {
    let name = match status {
        FC_OK => c"ok",
        FC_IN_PROGRESS => c"in_progress",
        code => STATUSES
            .iter()
            .find(|status| status.0 == code)
            .map_or(c"unknown", |s| s.2),
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_one_kind_and_one_name() {
        for (at, (code, kind, name)) in STATUSES.into_iter().enumerate() {
            // Numbers are never reused: the table is in their order, without gaps.
            assert_eq!(code, at as fc_status + 1);
            assert_eq!((code_of(kind), kind_of(code)), (code, Some(kind)));
            // SAFETY: a static nul-terminated string.
            assert_eq!(unsafe { CStr::from_ptr(fc_status_name(code)) }, name);
        }
        assert_eq!(kind_of(FC_OK), None);
        assert_eq!(kind_of(99), None);
    }
}

//! Statuses of the driver API that the simulator gives, with their names. The runtime API uses the
//! same numbers.

use std::ffi::{CStr, c_int};

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub c_int);

/// What a call of the driver ends with.
pub type Outcome<T = ()> = Result<T, Status>;

macro_rules! statuses {
    ($($constant:ident = $number:literal, $name:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = concat!($text, ".")] pub const $constant: Status = Status($number);)*
        }

        /// The name of a status, and what it says.
        pub fn describe(number: c_int) -> Option<(&'static CStr, &'static CStr)> {
            const fn text(bytes: &'static str) -> &'static CStr {
                match CStr::from_bytes_with_nul(bytes.as_bytes()) {
                    Ok(text) => text,
                    Err(_) => panic!("a text with a zero inside"),
                }
            }
            Some(match number {
                0 => (c"CUDA_SUCCESS", c"no error"),
                $($number => const {
                    (text(concat!($name, "\0")), text(concat!("simulated CUDA: ", $text, "\0")))
                },)*
                _ => return None,
            })
        }
    };
}

statuses! {
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "the driver was not initialized";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no device";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "no context is current on this thread";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "not in a state for this operation";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "memory is already pinned";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "memory is not pinned";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "not permitted in a host function";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED",
        "not simulated; standard error names the function";
    CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "capture failed because of an earlier error";
    CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would merge two captures";
    CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        "capture was not started in this stream";
    CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        "capture has work that was not joined to the stream it started in";
    CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "dependency crosses the capture's boundary";
    CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        "operation would make a capturing stream depend on the legacy stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "event was last recorded in a capture";
    CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "capture was not started by this thread";
}

/// The number that a C function returns.
pub fn number(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(status) => status.0,
    }
}

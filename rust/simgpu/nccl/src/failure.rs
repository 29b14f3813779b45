//! Result codes, and the last error, which NCCL keeps once per process.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::sync::Mutex;

use crate::locked;

/// A result code of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// Nothing is wrong.
    pub const SUCCESS: Code = Code(0);
    /// A CUDA call failed.
    pub const UNHANDLED_CUDA_ERROR: Code = Code(1);
    /// A system call failed.
    pub const SYSTEM_ERROR: Code = Code(2);
    /// The simulator is wrong.
    pub const INTERNAL_ERROR: Code = Code(3);
    /// An argument is wrong.
    pub const INVALID_ARGUMENT: Code = Code(4);
    /// The call is wrong at this time.
    pub const INVALID_USAGE: Code = Code(5);
    /// Another rank is gone.
    pub const REMOTE_ERROR: Code = Code(6);
    /// Not done yet.
    pub const IN_PROGRESS: Code = Code(7);
}

/// What a call fails with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub code: Code,
    /// What is wrong, in one sentence.
    pub text: String,
}

/// What a call of the API ends with.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure of a kind.
    pub fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure {
            code,
            text: text.into(),
        }
    }

    /// A wrong argument.
    pub fn argument(text: impl Into<String>) -> Failure {
        Failure::new(Code::INVALID_ARGUMENT, text)
    }

    /// A call at the wrong time.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::new(Code::INVALID_USAGE, text)
    }

    /// A system call that failed just now.
    pub fn system(call: &str) -> Failure {
        let error = std::io::Error::last_os_error();
        Failure::new(Code::SYSTEM_ERROR, format!("{call}: {error}"))
    }
}

/// Refuses the status of a CUDA call that failed.
pub(crate) fn cuda(status: c_int, call: &str) -> Outcome {
    match status {
        0 => Ok(()),
        _ => Err(Failure::new(
            Code::UNHANDLED_CUDA_ERROR,
            format!("{call}: CUDA error {status}"),
        )),
    }
}

const ROOM: usize = 1024;

struct LastError(UnsafeCell<[u8; ROOM]>);
// SAFETY: writes happen under `WRITING`. Readers are C callers that get the pointer, as NCCL's own
// do, and the last byte is zero for ever.
unsafe impl Sync for LastError {}

static LAST_ERROR: LastError = LastError(UnsafeCell::new([0; ROOM]));
static WRITING: Mutex<()> = Mutex::new(());

/// Keeps a failure's text, and says it where `NCCL_DEBUG` asks for words.
pub(crate) fn remember(failure: &Failure) {
    if std::env::var_os("NCCL_DEBUG").is_some() {
        simgpu_common::report("nccl", &failure.text);
    }
    let _writing = locked(&WRITING);
    let length = failure.text.len().min(ROOM - 1);
    // SAFETY: one writer at a time, and never the last byte.
    let room = unsafe { &mut *LAST_ERROR.0.get() };
    room[..length].copy_from_slice(&failure.text.as_bytes()[..length]);
    room[length] = 0;
}

/// The text of the last failure, for ever at the same place.
pub(crate) fn last_text() -> *const c_char {
    LAST_ERROR.0.get().cast()
}

/// The number that a C function returns.
pub(crate) fn number(outcome: Outcome<Code>) -> c_int {
    match outcome {
        Ok(code) => code.0,
        Err(failure) => {
            remember(&failure);
            failure.code.0
        }
    }
}

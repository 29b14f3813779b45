//! What every entry point is made of: the panic guard, handles, borrowed pointers, option structs.
//!
//! This module must not know any single function of the ABI.

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ferrocomm_abi::{FC_OK, fc_status};
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::status::{code_of, set_last_error};

/// A C type behind which a boxed Rust value lives. The association is what keeps a pointer given
/// to C from coming back as another type.
pub(crate) trait Handle: Sized {
    /// the Rust value
    type Value;
    /// what users call it, for messages
    const NOUN: &'static str;
}

/// Hands `value` to C; `take` gets it back.
pub(crate) fn give<H: Handle>(value: H::Value) -> *mut H {
    Box::into_raw(Box::new(value)).cast()
}

/// Gets back what `give` handed out; nothing for NULL.
///
/// # Safety
/// `handle` is NULL or came from `give`, and is used by nobody else, now or later.
pub(crate) unsafe fn take<H: Handle>(handle: *mut H) -> Option<Box<H::Value>> {
    // SAFETY: by the caller's promise the pointer is the box `give` turned into a pointer, once.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast::<H::Value>()) })
}

/// The value behind a handle.
///
/// # Safety
/// `handle` is NULL or a live handle that stays alive for `'a`.
pub(crate) unsafe fn value<'a, H: Handle>(handle: *const H) -> Result<&'a H::Value> {
    // SAFETY: by the caller's promise; the pointee is the `H::Value` that `give` boxed.
    unsafe { handle.cast::<H::Value>().as_ref() }.ok_or_else(|| null(H::NOUN))
}

/// The value behind a handle, to change.
///
/// # Safety
/// As for `value`, and nobody else uses the handle during `'a`.
pub(crate) unsafe fn value_mut<'a, H: Handle>(handle: *mut H) -> Result<&'a mut H::Value> {
    // SAFETY: by the caller's promise, exclusivity included.
    unsafe { handle.cast::<H::Value>().as_mut() }.ok_or_else(|| null(H::NOUN))
}

/// The error for a pointer that must not be NULL.
pub(crate) fn null(name: &'static str) -> Error {
    invalid(format!("{name} is NULL"))
}

/// An argument that does not fit.
pub(crate) fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

/// A place to write a result to, checked before the work that makes the result.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Wraps an output pointer.
    ///
    /// # Safety
    /// `pointer` is NULL or valid for one write while the value lives.
    pub(crate) unsafe fn new(pointer: *mut T, name: &'static str) -> Result<Self> {
        if pointer.is_null() {
            Err(null(name))
        } else {
            Ok(Self(pointer))
        }
    }

    /// Writes the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` was promised a pointer valid for writing and refused NULL.
        unsafe { self.0.write(value) }
    }
}

/// Runs an entry that returns a status: errors and panics become its code and the last error.
pub(crate) fn guard(body: impl FnOnce() -> Result<()>) -> fc_status {
    guard_poisoning(body, |_| {})
}

/// Like `guard`, and tells `poison` about a panic.
pub(crate) fn guard_poisoning(
    body: impl FnOnce() -> Result<()>,
    poison: impl FnOnce(&str),
) -> fc_status {
    // Unwind safety: what a panic may leave half done belongs to the communicator that `poison`
    // puts out of use, or to this call alone.
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return FC_OK,
        Ok(Err(error)) => error,
        Err(payload) => {
            let message = panic_message(payload.as_ref());
            let poisoned = catch_unwind(AssertUnwindSafe(|| poison(&message)));
            // The panic being reported comes first; one while poisoning adds nothing to it.
            drop(poisoned);
            Error::new(ErrorKind::Panic, message)
        }
    };
    set_last_error(&error);
    code_of(error.kind())
}

/// Runs an entry that returns a value and cannot report: `otherwise` on an error or a panic, whose
/// text is the last error.
pub(crate) fn guard_value<T>(otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    let mut answer = None;
    let status = guard(|| {
        answer = Some(body()?);
        Ok(())
    });
    if status == FC_OK {
        answer.unwrap_or(otherwise)
    } else {
        otherwise
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

/// Text given by C.
///
/// # Safety
/// `text` is NULL or a nul-terminated string that stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<&'a str> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: not NULL, and nul-terminated by the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| invalid(format!("{name} is not valid UTF-8")))
}

/// A list given by C; an empty one may be NULL.
///
/// # Safety
/// `list` is NULL or points to `count` values that stay unchanged for `'a`.
pub(crate) unsafe fn list<'a, T>(
    list: *const T,
    count: usize,
    name: &'static str,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(null(name));
    }
    // SAFETY: not NULL, and `count` values long by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

/// A struct of the ABI that starts with its own size. All-zero bytes are a value of it.
///
/// # Safety
/// The implementor is `repr(C)`, starts with a `usize` and is valid as all zeros.
pub(crate) unsafe trait SizeTagged: Copy {
    /// what users call it
    const NAME: &'static str;
}

/// No struct of this ABI will ever be as large: a larger size is a struct that was not initialised.
const LARGEST: usize = 4096;

/// Reads a size-tagged struct: as many bytes as its client knows, zeros for the rest. A newer
/// client's extra fields must be zero, so that no wish of its is dropped in silence.
///
/// # Safety
/// `pointer` is not NULL and points to as many readable bytes as its first `usize` says.
pub(crate) unsafe fn read_sized<T: SizeTagged>(pointer: *const T) -> Result<T> {
    let ours = size_of::<T>();
    // SAFETY: every size-tagged struct starts with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(size_of::<usize>()..=LARGEST).contains(&size) {
        return Err(invalid(format!("{} is not initialised", T::NAME))
            .got(format!("size {size}"))
            .expected(format!("size {ours}"))
            .remedy(format!("call {}_init, or set its size", T::NAME)));
    }
    // SAFETY: the client vouches for `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    if bytes.iter().skip(ours).any(|byte| *byte != 0) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} has fields this library does not know", T::NAME),
        )
        .got(format!("size {size}"))
        .expected(format!("size {ours}"))
        .remedy("use the header that belongs to this library"));
    }
    // SAFETY: `SizeTagged` promises that zeros are a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: both sides hold at least the bytes copied, and `value` is ours alone.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            std::ptr::from_mut(&mut value).cast::<u8>(),
            size.min(ours),
        );
    }
    Ok(value)
}

/// A time-out in nanoseconds; zero means that another one decides.
pub(crate) fn timeout(nanoseconds: i64) -> Result<Option<Duration>> {
    match u64::try_from(nanoseconds) {
        Ok(0) => Ok(None),
        Ok(nanoseconds) => Ok(Some(Duration::from_nanos(nanoseconds))),
        Err(_) => Err(invalid("the time-out is negative")
            .got(format!("{nanoseconds} ns"))
            .expected("a positive time-out, or 0 for the default")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::fc_last_error;
    use ferrocomm_abi::{FC_ERR_INVALID_ARGUMENT, FC_ERR_PANIC, FC_ERR_UNSUPPORTED};

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Sample {
        size: usize,
        first: u64,
        second: u64,
    }
    // SAFETY: `repr(C)`, starts with its size; zeros are a value.
    unsafe impl SizeTagged for Sample {
        const NAME: &'static str = "sample";
    }

    fn read(words: &[usize]) -> Result<Sample> {
        // SAFETY: `words` holds as many bytes as its first word says, where the test lets it.
        unsafe { read_sized(words.as_ptr().cast::<Sample>()) }
    }

    fn last_error() -> String {
        // SAFETY: the last error is a nul-terminated string.
        unsafe { CStr::from_ptr(fc_last_error()) }
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    #[test]
    fn structs_of_older_and_newer_clients_are_read() {
        let (word, ours) = (size_of::<usize>(), size_of::<Sample>());
        assert_eq!(
            read(&[ours, 1, 2]).unwrap(),
            Sample {
                size: ours,
                first: 1,
                second: 2
            }
        );
        // Only the bytes the client has are looked at: 7 lies behind its struct.
        assert_eq!(read(&[2 * word, 1, 7]).unwrap().second, 0);
        assert_eq!(read(&[4 * word, 1, 2, 0]).unwrap().second, 2);
        assert_eq!(
            read(&[4 * word, 1, 2, 3]).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
    }

    #[test]
    fn structs_that_were_not_initialised_are_refused() {
        for size in [0, 1, usize::MAX, LARGEST + 1] {
            let error = read(&[size, 1, 2]).unwrap_err();
            assert!(
                error.to_string().contains(&format!("got size {size}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_panic_becomes_a_status_and_poisons() {
        let mut poisoned = String::new();
        let status = guard_poisoning(
            || panic!("index {} out of range", 3),
            |message| poisoned = message.to_owned(),
        );
        assert_eq!(status, FC_ERR_PANIC);
        assert_eq!(poisoned, "index 3 out of range");
        assert_eq!(last_error(), "engine panic: index 3 out of range");
        assert_eq!(
            guard_poisoning(|| panic!("first"), |_| panic!("second")),
            FC_ERR_PANIC
        );
        assert!(last_error().contains("first"));
        assert_eq!(
            guard_value(-1, || -> Result<i32> { panic!("no value") }),
            -1
        );
    }

    #[test]
    fn an_error_becomes_its_status_and_the_last_error_of_this_thread() {
        assert_eq!(guard(|| Err(null("buffer"))), FC_ERR_INVALID_ARGUMENT);
        assert_eq!(last_error(), "invalid argument: buffer is NULL");
        assert_eq!(guard(|| Ok(())), FC_OK);
        assert_eq!(last_error(), "invalid argument: buffer is NULL");
        let elsewhere = std::thread::spawn(last_error).join().expect("no panic");
        assert_eq!(elsewhere, "");
        let nul = Error::new(ErrorKind::Unsupported, "a\0b");
        assert_eq!(guard(|| Err(nul)), FC_ERR_UNSUPPORTED);
        assert_eq!(last_error(), "not supported: a\u{fffd}b");
    }

    #[test]
    fn time_outs_are_positive_or_left_to_others() {
        assert_eq!(timeout(0).unwrap(), None);
        assert_eq!(timeout(5).unwrap(), Some(Duration::from_nanos(5)));
        assert!(timeout(i64::MIN).is_err());
    }
}

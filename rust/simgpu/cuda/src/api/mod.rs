//! The C functions of the driver API. Each checks its pointers, calls the module that does the
//! work, and gives the status's number.

pub mod devices;
pub mod entry;
pub mod events;
pub mod graphs;
pub mod memory;
pub mod refused;
pub mod streams;
pub mod test_only;

use std::ffi::c_void;

use crate::status::{Outcome, Status};

/// Declares exported functions whose body gives an outcome.
macro_rules! driver_api {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// Pointers are null or valid for what the driver API does with them.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            let run = || -> crate::status::Outcome { $body };
            crate::status::number(run())
        }
    )*};
}
pub(crate) use driver_api;

/// Writes a result; NULL is an invalid value.
fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: callers of the C functions pass pointers that are valid for a write.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a result where the caller wants one.
fn put_wanted<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: as for `put`.
        unsafe { out.write(value) };
    }
}

/// A pointer that may go to another thread, because its user promised so.
#[derive(Clone, Copy)]
struct Carried(*mut c_void);
// SAFETY: the pointer is only handed back to the caller's own function, whose contract is that it
// runs on a thread of the driver.
unsafe impl Send for Carried {}
// SAFETY: as above.
unsafe impl Sync for Carried {}

impl Carried {
    fn get(self) -> *mut c_void {
        self.0
    }
}

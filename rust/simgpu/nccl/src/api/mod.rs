//! The C functions of NCCL 2.30. Each checks its arguments, calls the module that does the work,
//! and gives the result code's number.

pub mod comms;
pub mod operations;
pub mod refused;
pub mod windows;

use crate::failure::{Failure, Outcome};

/// Declares exported functions whose body gives a result code.
macro_rules! nccl_api {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// Pointers are null or valid for what NCCL's header says of the function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            let run = || -> crate::failure::Outcome<crate::failure::Code> { $body };
            crate::failure::number(run())
        }
    )*};
}
pub(crate) use nccl_api;

/// Writes a result; NULL is a wrong argument.
fn put<T>(out: *mut T, name: &str, value: T) -> Outcome {
    not_null(out, name)?;
    // SAFETY: callers of the C functions pass pointers that are valid for a write.
    unsafe { out.write(value) };
    Ok(())
}

/// Refuses NULL.
fn not_null<T>(pointer: *const T, name: &str) -> Outcome {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} argument is NULL")));
    }
    Ok(())
}

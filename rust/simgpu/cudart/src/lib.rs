//! A simulated CUDA runtime for tests. It translates calls into those of the simulated driver and
//! adds what the runtime alone has: a current device without being asked for, a last error per
//! thread, and the registration of kernels, whose launch fails with the kernel's name.
//!
//! It must not keep streams, events, graphs or memory: they are the driver's.

#![expect(non_snake_case, reason = "functions have the names of the runtime API")]

mod device;
mod graphs;
mod kernels;
mod memory;
mod refused;
mod state;
mod streams;

/// Declares functions under the version that programs ask for. A symbol carries its version in
/// its own assembly, since rustc's list of exports would take a version script's place.
macro_rules! exported {
    ($name:ident) => {
        std::arch::global_asm!(
            concat!(".globl simgpu_", stringify!($name)),
            concat!(".type simgpu_", stringify!($name), ",@function"),
            concat!("simgpu_", stringify!($name), ": jmp {function}"),
            concat!(".size simgpu_", stringify!($name), ", .-simgpu_", stringify!($name)),
            concat!(
                ".symver simgpu_", stringify!($name), ",",
                stringify!($name), "@@@libcudart.so.13"
            ),
            function = sym $name,
        );
    };
}
pub(crate) use exported;

/// Declares runtime functions whose body is the number of a status, which becomes the last error.
macro_rules! runtime_api {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$attribute])*
        unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            let run = || -> std::ffi::c_int { $body };
            crate::state::remember(run())
        }
        crate::exported!($name);
    )*};
}
pub(crate) use runtime_api;

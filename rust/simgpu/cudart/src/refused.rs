//! Runtime functions that are not simulated, made by the build script from the list of all. Each
//! says its name on standard error and fails.

use std::ffi::c_int;

use crate::exported;
use crate::state::{NOT_SUPPORTED, remember};

macro_rules! refused {
    ($($name:ident)*) => {$(
        extern "C" fn $name() -> c_int {
            simgpu_common::report("cudart", concat!(stringify!($name), " is not simulated"));
            remember(NOT_SUPPORTED)
        }
        exported!($name);
    )*};
}

include!(concat!(env!("OUT_DIR"), "/refused.rs"));

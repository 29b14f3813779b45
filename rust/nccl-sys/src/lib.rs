//! NCCL's C API, loaded at run time: bindings, the search for the library, its version.
//!
//! A function that the loaded library lacks is an error with the version that has it, never a panic.
//! This crate must not know what the functions are called for, nor CUDA's driver.

mod load;
mod version;

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::expect_used,
    reason = "generated"
)]
mod bindings;

/// The types, constants and the table of functions, under NCCL's own names.
pub mod sys {
    pub use crate::bindings::*;
}

pub use load::{Attempt, LoadError, Nccl, Origin, PeerPointer, Search};
pub use version::{Missing, Version, first_version};

/// A function of a loaded library: `symbol!(nccl, ncclAllReduce)` is a `Result` of the function's
/// pointer, or of `Missing` where the library is older than the function.
#[macro_export]
macro_rules! symbol {
    ($nccl:expr, $name:ident) => {
        $nccl.find(stringify!($name), &$nccl.symbols().$name)
    };
}

#[cfg(test)]
mod tests {
    use super::sys;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structs_have_the_layout_of_the_header() {
        assert_eq!(size_of::<sys::ncclUniqueId>(), 128);
        assert_eq!(size_of::<sys::ncclConfig_t>(), 120);
        assert_eq!(offset_of!(sys::ncclConfig_t, blocking), 16);
        assert_eq!(offset_of!(sys::ncclConfig_t, netName), 32);
        assert_eq!(offset_of!(sys::ncclConfig_t, splitShare), 40);
        assert_eq!(offset_of!(sys::ncclConfig_t, commName), 48);
        assert_eq!(offset_of!(sys::ncclConfig_t, nvlsHostMode), 112);
        assert_eq!(size_of::<sys::ncclWaitSignalDesc_t>(), 16);
    }
}

//! The C ABI: what `include/ferrocomm.h` declares, and nothing else.
//!
//! Checks pointers, turns C arguments into the engine's, and turns what comes back into statuses
//! and handles. It must not know how data moves. Every entry runs inside `ffi::guard` or one of
//! its forms, so nothing unwinds into the client.
#![allow(non_camel_case_types, reason = "types are called as C calls them")]
#![allow(
    unreachable_pub,
    reason = "functions leave by their symbols, not by their paths"
)]

mod arguments;
mod batch;
mod comm;
mod ffi;
mod info;
mod log;
mod memory;
mod notices;
mod operation;
mod reconfigure;
mod recorder;
mod resources;
mod status;
mod store;
mod text;
mod window;
mod work;

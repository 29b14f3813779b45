//! The GPU engine: collectives and messages through NCCL, on streams of the caller and its own.
//!
//! NCCL and CUDA's driver are loaded at run time. Where one is missing the engine says so in words,
//! and nothing here panics. This crate must not know the C ABI nor torch, and no other engine.

mod bootstrap;
mod bounded;
mod capture;
mod comm;
mod driver;
mod errors;
mod events;
mod flights;
mod group;
mod handle;
mod hints;
mod issuing;
mod joining;
mod library;
mod memory;
mod memory_ops;
mod plan;
mod reductions;
mod regroup;
mod resources;
mod retiring;
mod ties;
mod traffic;
mod watchdog;
mod windows;

pub use joining::{GroupOptions, OnFatal, create};
pub use library::{describe, locate, usable};
pub use memory::{allocate, allocate_on, release};
pub use reductions::reduction_supported;
pub use regroup::presence;

/// What can carry data between ranks.
pub fn transports() -> Vec<&'static str> {
    vec!["nccl"]
}

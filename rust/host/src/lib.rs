//! The host engine: CPU tensors, through shared memory within a machine and TCP between machines.
//!
//! Must not know torch, Python, the C ABI or CUDA.

mod address;
mod allocator;
mod arena;
mod asking;
mod at_once;
mod barrier;
mod bell;
mod bootstrap;
mod budget;
mod choosing;
mod collectives;
mod copying;
mod core;
mod cores;
mod endpoint;
mod engine;
mod failing;
mod forks;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gathering;
mod hints;
mod instructions;
mod link;
mod location;
mod meeting;
mod membership;
mod memory;
mod messages;
mod near;
mod numbered;
mod op;
mod points;
mod print;
mod program;
mod progress;
mod pulling;
#[cfg(test)]
mod random;
mod regroup;
mod seat;
mod segments;
mod slab;
mod spin;
mod stream;
mod sync;
#[cfg(test)]
mod testing;
mod traffic;
mod views;
mod windows;

pub use allocator::{allocate, release};
pub use engine::{GroupOptions, HostEngine, reduction_supported, transports};

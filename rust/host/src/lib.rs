//! The host engine: CPU tensors, through shared memory within a machine and TCP between machines.
//!
//! Must not know torch, Python, the C ABI or CUDA.

mod address;
mod bootstrap;
mod budget;
mod collectives;
mod core;
mod endpoint;
mod engine;
mod failing;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod membership;
mod memory;
mod messages;
mod program;
mod progress;
#[cfg(test)]
mod random;
mod slab;
mod stream;
mod sync;
mod traffic;

pub use engine::{GroupOptions, HostEngine, reduction_supported, transports};

//! The host engine: CPU tensors, through shared memory within a machine and TCP between machines.
//!
//! Must not know torch, Python, the C ABI or CUDA.

mod address;
mod bootstrap;
mod collectives;
mod program;
#[cfg(test)]
mod random;

//! Words every layer shares: element types, reductions, errors, deadlines, calls and works, and the
//! traits an engine implements.
//!
//! This crate does no I/O. It must not know sockets, shared memory, CUDA, the C ABI or torch.
#![forbid(unsafe_code)]

pub mod call;
pub mod deadline;
pub mod dtype;
pub mod error;
pub mod group;
pub mod ids;
pub mod interrupt;
pub mod reconfigure;
pub mod reduce_op;
pub mod reduction;
pub mod store;
mod sync;
pub mod window;
pub mod work;

pub use error::{Error, ErrorKind, Result};

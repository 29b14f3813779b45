//! A simulated NCCL for tests: the C API of 2.30 between processes of one machine. Operations are
//! queued on their CUDA stream through the simulated driver, and move data through memory that
//! the ranks share.

pub mod api;
pub mod arena;
pub mod comm;
pub mod config;
pub mod dtype;
pub mod exchange;
pub mod failure;
pub mod fp8;
pub mod group;
pub mod launch;
pub mod management;
pub mod registered;
pub mod window;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever happened to an earlier holder: each guarded state is changed in one step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

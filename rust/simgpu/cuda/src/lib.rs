//! A simulated CUDA driver for tests. Device memory is host memory, a stream is a thread that takes
//! its operations in order, and events, capture and graphs follow from that. The runtime and NCCL
//! simulated beside it keep no device state of their own and call this library.
//!
//! It must not know what torch or NCCL do with it.

pub mod api;
pub mod capture;
pub mod context;
pub mod event;
pub mod graph;
mod handles;
pub mod memory;
pub mod status;
pub mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever happened to an earlier holder: each guarded state is changed in one step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device for a test, which then runs alone: captures forbid calls of other threads.
#[cfg(test)]
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = locked(&ALONE);
    context::initialize().unwrap();
    context::set_current(Some(0));
    guard
}

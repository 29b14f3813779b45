//! What `work` is made of between threads.
//!
//! `tests/models` compiles `work` with a model checker's in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
pub(crate) use std::sync::{Mutex, OnceLock};

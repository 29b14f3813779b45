//! What `work` is made of between threads.
//!
//! `tests/models` compiles `work` with a model checker's in their place. Must not know what it is
//! used for.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
pub(crate) use std::sync::{Mutex, OnceLock};

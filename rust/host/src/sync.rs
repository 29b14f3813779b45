//! The atomics that shared memory is made of.
//!
//! Modules that order accesses to shared memory take them from here, and `tests/models` compiles
//! these modules with a model checker's in their place. Must not know what they are used for.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

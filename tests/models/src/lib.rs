//! Exhaustive models: shipping modules, compiled with a model checker's atomics, locks and memory,
//! under every order of their threads' steps.
//!
//! A module that is modelled takes its atomics from `crate::sync` and its memory from
//! `crate::memory`; here both are the checker's. To model one more, include its file where `arena`
//! and `work` are, write the scenario as a public function, and name it in `tests/models.rs`.
//! A plain access that another may run into, a deadlock and a failed assertion end a model.

pub mod arena_model;
mod barrier;
mod bell;
mod budget;
mod choosing;
mod cores;
mod memory;
mod near;
mod print;
mod pulling;
mod segments;
pub mod stream;
mod sync;
mod views;
pub mod window_model;
pub mod work_model;

#[allow(dead_code, reason = "a model uses what it needs")]
#[path = "../../../rust/host/src/arena.rs"]
mod arena;
#[path = "../../../rust/host/src/windows/words.rs"]
mod words;
#[allow(dead_code, reason = "a model uses what it needs")]
#[path = "../../../rust/core/src/work.rs"]
mod work;

use ferrocomm_core::{call, error, ids};

/// How often a thread may be interrupted where it could go on. Faults of ordering show with two;
/// unbounded, the larger models would take hours.
const INTERRUPTIONS: usize = 3;

/// Tries `scenario` in every order, with at most `interruptions` of them.
fn check(interruptions: Option<usize>, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = interruptions;
    builder.check(scenario);
}

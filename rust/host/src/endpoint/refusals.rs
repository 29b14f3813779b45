//! What the log says of refused connections: one at once, a flood of them in sums. Must not know why
//! one is refused.

use std::time::{Duration, Instant};

/// Refused connections are told of at most so often.
pub(super) const TELL_EVERY: Duration = Duration::from_secs(1);

/// Refused connections, and what of them was told.
#[derive(Default)]
pub(super) struct Refusals {
    pub(super) told_at: Option<Instant>,
    pub(super) untold: u64,
}

impl Refusals {
    /// Tells of a refused connection, or counts it when one has just been told of.
    pub(super) fn note(&mut self, from: impl FnOnce() -> String, why: &str) {
        self.tell_sum();
        if self.told_at.is_some() {
            self.untold += 1;
            return;
        }
        self.told_at = Some(Instant::now());
        tracing::warn!(from = from(), why, "refused a connection");
    }

    /// Tells how many more there were, once in a while.
    pub(super) fn tell_sum(&mut self) {
        if self.told_at.is_none_or(|at| at.elapsed() < TELL_EVERY) {
            return;
        }
        self.told_at = None;
        if self.untold > 0 {
            let count = std::mem::take(&mut self.untold);
            self.told_at = Some(Instant::now());
            tracing::warn!(count, "refused more connections");
        }
    }
}

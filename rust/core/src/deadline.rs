//! One point in time that covers a whole operation. Must not know what waits for it.

use std::time::{Duration, Instant};

/// When an operation must be over. Steps of the operation share it; none has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now. A limit too long to represent means about thirty years.
    pub fn after(limit: Duration) -> Self {
        let now = Instant::now();
        let far = Duration::from_secs(30 * 365 * 24 * 3600);
        Self {
            at: now.checked_add(limit).unwrap_or(now + far),
            limit,
        }
    }

    /// The limit it was made from, for messages.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The instant itself.
    pub fn instant(&self) -> Instant {
        self.at
    }

    /// What is left; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }
}

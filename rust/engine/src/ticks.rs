//! Time for the recorder at the price of one instruction: the processor's own counter where it runs
//! at one rate on all cores, the monotonic clock elsewhere.
//!
//! Counts become nanoseconds when somebody reads the records: the rate is what the counter made since
//! the start, over the time that passed. Must not know what is recorded.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Counts, and what they are in nanoseconds since 1970. Never goes back.
pub(crate) struct Ticks {
    counter: Counter,
    origin: Instant,
    /// count at `origin`
    start: u64,
    /// nanoseconds since 1970 at `origin`
    epoch: u64,
}

#[derive(Clone, Copy)]
enum Counter {
    #[cfg(target_arch = "x86_64")]
    Processor,
    Clock,
}

/// From counts to nanoseconds since 1970, as far as is known now.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    start: u64,
    epoch: u64,
    nanos: u128,
    counts: u128,
}

impl Ticks {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut this = Self {
            counter: Counter::best(),
            origin: Instant::now(),
            start: 0,
            epoch: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
        };
        this.start = this.now();
        this
    }

    /// A count; for `Scale::nanos`.
    pub(crate) fn now(&self) -> u64 {
        match self.counter {
            // SAFETY: reads a counter that `best` found to be there.
            #[cfg(target_arch = "x86_64")]
            Counter::Processor => unsafe { std::arch::x86_64::_rdtsc() },
            Counter::Clock => u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// How counts up to now are read.
    pub(crate) fn scale(&self) -> Scale {
        let counts = self.now().saturating_sub(self.start);
        Scale {
            start: self.start,
            epoch: self.epoch,
            nanos: self.origin.elapsed().as_nanos(),
            counts: u128::from(counts.max(1)),
        }
    }
}

impl Scale {
    pub(crate) fn nanos(&self, count: u64) -> u64 {
        let counts = u128::from(count.saturating_sub(self.start));
        let passed = counts.saturating_mul(self.nanos) / self.counts;
        self.epoch
            .saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

impl Counter {
    #[cfg(target_arch = "x86_64")]
    fn best() -> Self {
        use std::arch::x86_64::__cpuid;
        const POWER: u32 = 0x8000_0007;
        /// the counter keeps its rate in all states of the processor
        const INVARIANT: u32 = 1 << 8;
        let highest = __cpuid(0x8000_0000).eax;
        if highest >= POWER && __cpuid(POWER).edx & INVARIANT != 0 {
            Self::Processor
        } else {
            Self::Clock
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn best() -> Self {
        Self::Clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn counts_tell_the_time_of_day_and_do_not_go_back() {
        let ticks = Ticks::new();
        let before = ticks.now();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let after = ticks.now();
        let scale = ticks.scale();
        let passed = scale.nanos(after) - scale.nanos(before);
        assert!(passed >= 19_000_000, "{passed}");
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let off = (today.as_nanos() as u64).abs_diff(scale.nanos(after));
        assert!(off < 60_000_000_000, "{off}");
    }
}

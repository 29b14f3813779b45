//! Whether two ranks run on processors that share a cache, as it is right now: a hypervisor moves
//! processors about, and on one machine, within minutes, lines that another processor had written were
//! seen to come four and ten times as fast as at other times.
//!
//! Told by reading some lines that the other rank has just written, with a clock beside it. Must not
//! know what the lines are for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LINE: usize = 64;
/// How many bytes are looked at: few enough to cost less than a microsecond wherever they are.
pub(crate) const LOOKED_AT: usize = 32 * LINE;
/// Near ones took 110 ns, with the clock, and others 290.
const SOON: Duration = Duration::from_nanos(190);

/// What is thought of the other rank.
#[derive(Debug)]
pub(crate) enum Near {
    /// as the last look told
    Seen(AtomicBool),
    /// of more than one other rank none is looked at
    No,
}

impl Near {
    /// For a group of so many ranks.
    pub(crate) fn of(ranks: usize) -> Self {
        if ranks == 2 {
            Self::Seen(AtomicBool::new(false))
        } else {
            Self::No
        }
    }

    /// Whether it may pay to put lines where it is looked at.
    pub(crate) fn looks(&self) -> bool {
        matches!(self, Self::Seen(_))
    }

    pub(crate) fn is_near(&self) -> bool {
        match self {
            Self::Seen(near) => near.load(Ordering::Relaxed),
            Self::No => false,
        }
    }

    #[cfg(test)]
    pub(crate) fn pretend(&self, is_near: bool) {
        if let Self::Seen(near) = self {
            near.store(is_near, Ordering::Relaxed);
        }
    }

    /// Looks at `LOOKED_AT` bytes that the other rank has written through its caches.
    ///
    /// # Safety
    /// `from` is valid for reads of as many bytes, and nobody writes there.
    pub(crate) unsafe fn look(&self, from: *const u8) {
        let Self::Seen(near) = self else {
            return;
        };
        let begun = Instant::now();
        let mut all = 0;
        for at in (0..LOOKED_AT).step_by(LINE) {
            // SAFETY: by the caller's promise.
            all |= unsafe { from.add(at).read_volatile() };
        }
        // The clock is read after the last line has come.
        std::hint::black_box(all);
        near.store(begun.elapsed() <= SOON, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether asking for the time, or reading under a sanitizer, takes longer than a look may: then all
    /// ranks are taken to be apart, which is right everywhere.
    fn clock_is_slow() -> bool {
        let least = (0..1000).map(|_| Instant::now().elapsed()).min();
        cfg!(sanitized) || least.is_none_or(|least| least > SOON / 2)
    }

    #[test]
    fn own_lines_are_near_and_a_group_of_three_is_not_looked_at() {
        let lines = vec![1_u8; LOOKED_AT];
        let near = Near::of(2);
        assert!(!near.is_near());
        // Whatever else runs here cannot hold up every one of so many looks.
        let seen = (0..10_000).any(|_| {
            // SAFETY: they are as many bytes.
            unsafe { near.look(lines.as_ptr()) }
            near.is_near()
        });
        assert!(seen || clock_is_slow());
        let many = Near::of(3);
        // SAFETY: as above.
        unsafe { many.look(lines.as_ptr()) }
        assert!(!many.is_near() && !many.looks());
    }
}

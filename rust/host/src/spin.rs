//! How long a thread of this process that waits for other ranks spins before it sleeps: while every
//! rank of the machine has a processor, a while, else not at all.
//!
//! How many ranks there are is known when a communicator is made. Where they may be more than the
//! processors that this process may run on, each may still have its own: then ranks say so when they
//! connect. Must not know who waits for what.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::cores::{self, Processors};

/// Longer than it takes to wake a sleeping process.
const SPIN: Duration = Duration::from_micros(200);

/// What is known about it.
#[derive(Default)]
pub(crate) struct Spin {
    /// ranks on this machine, in the largest communicator
    ranks: AtomicUsize,
    /// a rank was met that has other processors than this one
    apart: AtomicBool,
    /// a rank was met that shares some
    mixed: AtomicBool,
}

impl Spin {
    /// Takes note of a communicator with `ranks` ranks on this machine.
    pub(crate) fn note_ranks(&self, ranks: usize) {
        self.ranks.fetch_max(ranks, Ordering::Relaxed);
    }

    /// Takes note of the processors of another rank.
    pub(crate) fn note_peer(&self, processors: Processors) {
        let word = if cores::apart(cores::own(), processors) {
            &self.apart
        } else {
            &self.mixed
        };
        word.store(true, Ordering::Relaxed);
    }

    /// How long to spin.
    pub(crate) fn long(&self) -> Duration {
        let ranks = self.ranks.load(Ordering::Relaxed);
        let shared = ranks > cores::usable()
            && (self.mixed.load(Ordering::Relaxed)
                || !self.apart.load(Ordering::Relaxed)
                || ranks > cores::online());
        if shared { Duration::ZERO } else { SPIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_say_that_they_have_a_processor_each_spin() {
        let own = cores::own();
        let others = own.map(|word| !word);
        let spin = Spin::default();
        assert!(!spin.long().is_zero());
        spin.note_ranks(cores::online() + 1);
        spin.note_peer(others);
        assert!(spin.long().is_zero());
        let spin = Spin::default();
        spin.note_ranks(cores::usable() + 1);
        spin.note_peer(others);
        assert_eq!(spin.long().is_zero(), cores::usable() == cores::online());
        spin.note_peer(own);
        assert!(spin.long().is_zero());
    }
}

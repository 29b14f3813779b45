//! How often each operation was called and how many bytes it carried. Must not know
//! whether it succeeded.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrocomm_core::call::Operation;

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    bytes: AtomicU64,
}

/// Adds to a number that nobody else changes now.
pub(crate) fn raise(number: &AtomicU64, by: u64) -> u64 {
    let raised = number.load(Ordering::Relaxed).wrapping_add(by);
    number.store(raised, Ordering::Relaxed);
    raised
}

/// The counters of one communicator.
#[derive(Default)]
pub(crate) struct Counters([Counter; Operation::ALL.len()]);

impl Counters {
    /// Counts one call. Relaxed: the numbers are for people, nothing is ordered by them. Whoever
    /// counts holds the communicator's order, so that no addition is lost.
    pub(crate) fn add(&self, operation: Operation, bytes: usize) {
        // Codes start at 1 and are dense, as `Operation::ALL` and its test say.
        let counter = &self.0[operation as usize - 1];
        raise(&counter.count, 1);
        raise(&counter.bytes, bytes as u64);
    }

    /// What was called so far: (operation, calls, bytes).
    pub(crate) fn used(&self) -> impl Iterator<Item = (Operation, u64, u64)> {
        Operation::ALL
            .into_iter()
            .zip(&self.0)
            .filter_map(|(operation, counter)| {
                let count = counter.count.load(Ordering::Relaxed);
                (count > 0).then(|| (operation, count, counter.bytes.load(Ordering::Relaxed)))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_own_counter() {
        let counters = Counters::default();
        for operation in Operation::ALL {
            counters.add(operation, operation as usize);
        }
        counters.add(Operation::Split, 1);
        let used: Vec<_> = counters.used().collect();
        assert_eq!(used.len(), Operation::ALL.len());
        for (operation, count, bytes) in used {
            let extra = u64::from(operation == Operation::Split);
            assert_eq!((count, bytes), (1 + extra, operation as u64 + extra));
        }
    }
}

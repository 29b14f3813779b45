//! How many asynchronous works of a communicator are not over, and a wait for all of them. Must not know
//! what they do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use ferrocomm_core::{Result, interrupt};

/// The count. Adding and taking away cost one atomic operation each where nobody waits.
#[derive(Default)]
pub(crate) struct Outstanding {
    works: AtomicUsize,
    waiting: AtomicUsize,
    /// guards nothing but the sleep: a waiter looks at `works` under it
    asleep: Mutex<()>,
    none_left: Condvar,
}

impl Outstanding {
    pub(crate) fn add(&self) {
        self.works.fetch_add(1, Ordering::Relaxed);
    }

    /// One is over.
    pub(crate) fn remove(&self) {
        // Sequentially consistent, as is the waiter's entry: one of the two sees the other.
        if self.works.fetch_sub(1, Ordering::SeqCst) == 1 && self.waiting.load(Ordering::SeqCst) > 0
        {
            drop(self.asleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.none_left.notify_all();
        }
    }

    pub(crate) fn any(&self) -> bool {
        self.works.load(Ordering::SeqCst) > 0
    }

    /// Waits until there is none.
    ///
    /// # Errors
    /// `Interrupted`, when the client wants its thread back.
    pub(crate) fn wait_for_none(&self) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let outcome = self.sleep();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    fn sleep(&self) -> Result<()> {
        while self.any() {
            let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
            // Without an end of its own it would not notice the client's interrupt.
            let (asleep, _timed_out) = self
                .none_left
                .wait_timeout_while(asleep, interrupt::INTERVAL, |()| self.any())
                .unwrap_or_else(PoisonError::into_inner);
            drop(asleep);
            interrupt::check()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_of_them() {
        let outstanding = Arc::new(Outstanding::default());
        outstanding.wait_for_none().expect("nothing to wait for");
        for _ in 0..2 {
            outstanding.add();
        }
        let start = Arc::new(Barrier::new(2));
        let ending = {
            let (outstanding, start) = (outstanding.clone(), start.clone());
            thread::spawn(move || {
                start.wait();
                outstanding.remove();
                outstanding.remove();
            })
        };
        start.wait();
        outstanding.wait_for_none().expect("nobody interrupts");
        assert!(!outstanding.any());
        ending.join().expect("it does not panic");
    }
}

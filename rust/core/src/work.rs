//! A call on its way: complete exactly once, watched by any number of threads.
//! Must not know who serves it, nor what its callbacks do.

use std::fmt;
use std::sync::PoisonError;

use crate::call::Operation;
use crate::error::Result;
use crate::ids::GroupRank;
use crate::sync::{AtomicBool, AtomicI64, Mutex, OnceLock, Ordering};

type Callback = Box<dyn FnOnce(&Result<()>) + Send>;

/// What a work's engine runs after completing it, once no lock is held.
#[must_use = "callbacks must be run once no lock is held"]
pub struct Callbacks(Vec<Callback>);

/// A call on its way.
pub struct Work {
    operation: Operation,
    sequence: u64,
    source: AtomicI64,
    done: AtomicBool,
    outcome: OnceLock<Result<()>>,
    callbacks: Mutex<Vec<Callback>>,
}

impl Work {
    /// A work that is not complete yet.
    pub fn new(operation: Operation, sequence: u64) -> Self {
        Self {
            operation,
            sequence,
            source: AtomicI64::new(-1),
            done: AtomicBool::new(false),
            outcome: OnceLock::new(),
            callbacks: Mutex::new(Vec::new()),
        }
    }

    /// Which operation it is.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Its sequence number on the communicator.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The rank a receive was matched with.
    pub fn source(&self) -> Option<GroupRank> {
        u32::try_from(self.source.load(Ordering::Acquire))
            .ok()
            .map(GroupRank::new)
    }

    /// For engines: notes whom a receive was matched with.
    pub fn set_source(&self, source: GroupRank) {
        self.source
            .store(i64::from(source.get()), Ordering::Release);
    }

    /// Whether it is complete; one load.
    pub fn is_complete(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// How it ended, when it has.
    pub fn outcome(&self) -> Option<Result<()>> {
        if self.is_complete() {
            self.outcome.get().cloned()
        } else {
            None
        }
    }

    /// For engines: completes the work. The first outcome stands; later ones are dropped.
    pub fn complete(&self, outcome: Result<()>) -> Callbacks {
        if self.outcome.set(outcome).is_err() {
            return Callbacks(Vec::new());
        }
        let mut callbacks = self
            .callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Set under the lock: a callback added meanwhile is either in the list or sees `done`.
        self.done.store(true, Ordering::Release);
        Callbacks(std::mem::take(&mut *callbacks))
    }

    /// Runs `callback` once when the work is complete: now if it is, else on the thread that
    /// completes it, with no engine lock held.
    pub fn on_complete(&self, callback: impl FnOnce(&Result<()>) + Send + 'static) {
        {
            let mut callbacks = self
                .callbacks
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if !self.is_complete() {
                callbacks.push(Box::new(callback));
                return;
            }
        }
        if let Some(outcome) = self.outcome.get() {
            callback(outcome);
        }
    }

    /// For engines: runs what `complete` returned.
    pub fn run(&self, callbacks: Callbacks) {
        if let Some(outcome) = self.outcome.get() {
            for callback in callbacks.0 {
                callback(outcome);
            }
        }
    }
}

impl Callbacks {
    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("operation", &self.operation.name())
            .field("sequence", &self.sequence)
            .field("outcome", &self.outcome())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn the_first_outcome_stands_and_callbacks_run_once() {
        let work = Work::new(Operation::Barrier, 1);
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        work.on_complete(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        assert!(work.outcome().is_none());
        work.run(work.complete(Ok(())));
        work.run(work.complete(Err(Error::new(ErrorKind::Timeout, "late"))));
        let seen = calls.clone();
        work.on_complete(move |outcome| {
            assert!(outcome.is_ok());
            seen.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert!(matches!(work.outcome(), Some(Ok(()))));
    }
}

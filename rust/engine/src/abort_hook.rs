//! What the client wants to do before a communicator, or the process, is given up.
//!
//! It must not know states or groups: it keeps the client's function and calls it with no lock held.

use std::sync::{Arc, Mutex, PoisonError};

use ferrocomm_core::Error;

/// What comes after the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// the communicator serves no more; the hook may be told later, and must not wait
    Communicator,
    /// the process ends when the hook returns
    Process,
}

/// Told why. Any thread; may be told more than once.
pub type AbortHook = Arc<dyn Fn(&Error, Ending) + Send + Sync>;

/// A place for one.
#[derive(Default)]
pub(crate) struct AbortHookSlot(Mutex<Option<AbortHook>>);

impl AbortHookSlot {
    /// Replaces the hook.
    pub(crate) fn set(&self, hook: Option<AbortHook>) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *slot, hook);
        // Dropped with no lock held: it may call the client.
        drop(slot);
        drop(old);
    }

    /// The hook, to be called with no lock held.
    pub(crate) fn get(&self) -> Option<AbortHook> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

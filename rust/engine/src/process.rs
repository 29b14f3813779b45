//! The one thing of this crate that a process has once: its flight recorder, its list of live
//! communicators, and the knowledge whether it was forked.
//!
//! A forked child gets a fresh one. What it inherited may be locked by a thread that does not exist
//! any more, so it is left alone for good. Must not know how a communicator works, nor what is
//! recorded of it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, Weak};

use crate::communicator::Communicator;
use crate::recorder::Recorder;

/// What this crate keeps per process.
pub(crate) struct Process {
    pub(crate) recorder: Recorder,
    communicators: Mutex<Vec<Weak<Communicator>>>,
    numbers: AtomicU64,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in the child, where only what is async-signal-safe may be done: two stores.
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

/// How often this process and its ancestors were forked since the library was first used. A handle
/// made under another number was inherited. Costs a load, unlike asking for the process id.
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// This process's one.
#[inline(always)]
pub(crate) fn process() -> &'static Process {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is NULL or comes from `Box::leak` below and is never freed.
    unsafe { current.as_ref() }.unwrap_or_else(begun)
}

/// The first of this process.
#[cold]
fn begun() -> &'static Process {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler does nothing but atomic stores. Without memory for it (the only way
        // to fail) a child would not be told apart, as if this library knew nothing of forks.
        let _out_of_memory = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    let fresh: *mut Process = Box::leak(Box::new(Process::new()));
    match CURRENT.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just leaked; lives for ever.
        Ok(_) => unsafe { &*fresh },
        Err(theirs) => {
            // SAFETY: `fresh` lost the race and was shown to nobody.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: the winner was leaked in the same way.
            unsafe { &*theirs }
        }
    }
}

impl Process {
    fn new() -> Self {
        Self {
            recorder: Recorder::from_environment(),
            communicators: Mutex::new(Vec::new()),
            numbers: AtomicU64::new(0),
        }
    }

    /// A number for a new communicator, from 0.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a communicator, and forgets those that are gone.
    pub(crate) fn register(&self, communicator: Weak<Communicator>) {
        let mut list = self.list();
        list.retain(|other| other.strong_count() > 0);
        list.push(communicator);
    }

    /// The communicators that are alive, oldest first.
    pub(crate) fn communicators(&self) -> Vec<std::sync::Arc<Communicator>> {
        self.list().iter().filter_map(Weak::upgrade).collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Weak<Communicator>>> {
        self.communicators
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

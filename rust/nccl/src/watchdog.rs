//! The one thread per process that looks after operations on devices: it completes their works, sees
//! time-outs and NCCL's asynchronous errors, and buries what graphs leave behind.
//! Must not know NCCL: what it looks after says how it is.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use ferrocomm_core::{Error, ErrorKind, Result};

use crate::driver::{Relaxed, driver};

/// Between two looks while something is on its way.
const BUSY: Duration = Duration::from_millis(5);
/// Between two looks otherwise; whoever issues wakes the thread anyway.
const IDLE: Duration = Duration::from_secs(1);

/// What the thread looks after.
pub(crate) trait Watched: Send + Sync {
    /// Looks once; whether there is something on its way.
    fn look(&self) -> bool;
}

/// Something that may call CUDA or the client when dropped, for the thread to drop.
pub(crate) struct Grave(
    #[expect(dead_code, reason = "dropped, which is its use")] Box<dyn Any + Send>,
);

impl Grave {
    /// Buries `value`.
    pub(crate) fn new(value: impl Any + Send) -> Self {
        Self(Box::new(value))
    }
}

/// The thread, as others see it.
pub(crate) struct Watchdog {
    process: u32,
    state: Mutex<State>,
    wake: Condvar,
    idle: AtomicBool,
}

#[derive(Default)]
struct State {
    watched: Vec<Weak<dyn Watched>>,
    graves: Vec<Grave>,
    woken: bool,
}

impl Watchdog {
    /// The one of this process, started when it is first needed; a forked child gets its own.
    ///
    /// # Errors
    /// `Resources`, when there is no thread to be had.
    pub(crate) fn process() -> Result<Arc<Self>> {
        static PROCESS: Mutex<Option<Arc<Watchdog>>> = Mutex::new(None);
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watchdog) = &*process
            && watchdog.process == std::process::id()
        {
            return Ok(watchdog.clone());
        }
        let watchdog = Arc::new(Self {
            process: std::process::id(),
            state: Mutex::default(),
            wake: Condvar::new(),
            idle: AtomicBool::new(false),
        });
        let thread = watchdog.clone();
        thread::Builder::new()
            .name("fc-watchdog".into())
            .spawn(move || thread.run())
            .map_err(|error| {
                Error::new(ErrorKind::Resources, "a thread could not be started").got(error)
            })?;
        // What a child inherited may be locked by a thread that does not exist here.
        std::mem::forget(process.replace(watchdog.clone()));
        Ok(watchdog)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after `watched` as long as it lives.
    pub(crate) fn watch(&self, watched: Weak<dyn Watched>) {
        self.state().watched.push(watched);
    }

    /// Something is on its way. A load where the thread is awake.
    pub(crate) fn nudge(&self) {
        if self.idle.load(Ordering::SeqCst) {
            self.rouse();
        }
    }

    fn rouse(&self) {
        self.state().woken = true;
        self.wake.notify_one();
    }

    /// Drops what is in `grave` on the thread.
    pub(crate) fn bury(&self, grave: Grave) {
        self.state().graves.push(grave);
        self.rouse();
    }

    fn run(&self) {
        // Its questions are no part of a capture that goes on elsewhere. Without a driver there is
        // nothing to ask.
        let _relaxed = driver()
            .and_then(|_| Relaxed::start())
            .inspect_err(|error| tracing::debug!(error = %error, "not relaxed"));
        loop {
            let busy = self.round();
            if busy {
                self.sleep(BUSY);
                continue;
            }
            // Whoever issues from here on sees the flag; what was issued before is seen below.
            self.idle.store(true, Ordering::SeqCst);
            if !self.round() {
                self.sleep(IDLE);
            }
            self.idle.store(false, Ordering::SeqCst);
        }
    }

    fn sleep(&self, limit: Duration) {
        let state = self.state();
        let (mut state, _) = self
            .wake
            .wait_timeout_while(state, limit, |state| !state.woken)
            .unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
    }

    fn round(&self) -> bool {
        let (watched, graves) = {
            let mut state = self.state();
            state.watched.retain(|watched| watched.strong_count() > 0);
            (state.watched.clone(), std::mem::take(&mut state.graves))
        };
        // Dropped with no lock held: they may call the client.
        drop(graves);
        let mut busy = false;
        for watched in watched.iter().filter_map(Weak::upgrade) {
            busy |= watched.look();
        }
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct Told(Mutex<Option<Sender<&'static str>>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let sender = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(sender) = sender.take() {
                sender.send("dropped").expect("the test listens");
            }
        }
    }

    #[test]
    fn what_is_buried_is_dropped_on_the_thread() {
        let (sender, receiver) = channel();
        let watchdog = Watchdog::process().expect("a thread");
        watchdog.bury(Grave::new(Told(Mutex::new(Some(sender)))));
        let limit = Duration::from_secs(60);
        assert_eq!(receiver.recv_timeout(limit).expect("dropped"), "dropped");
    }

    #[test]
    fn a_process_has_one() {
        let (one, two) = (Watchdog::process(), Watchdog::process());
        assert!(Arc::ptr_eq(
            &one.expect("a thread"),
            &two.expect("a thread")
        ));
    }
}

//! Keeps the client's callbacks out of the time in which a communicator's order is held.
//!
//! An engine may complete other works while it issues one, and runs their callbacks then. A
//! callback that issues the next operation would wait for the order its own thread holds. So a
//! thread that holds it collects callbacks and runs them once it has let go.

use std::cell::RefCell;

type Job = Box<dyn FnOnce()>;

thread_local! {
    /// `Some` while this thread holds a communicator's order.
    static HELD: RefCell<Option<Vec<Job>>> = const { RefCell::new(None) };
}

/// Collects from its making on; runs what was collected when dropped.
pub(crate) struct Collecting(());

impl Collecting {
    /// Starts to collect. Make it before taking the lock, so that it is dropped after it.
    pub(crate) fn start() -> Self {
        HELD.with_borrow_mut(|held| {
            held.get_or_insert_default();
        });
        Self(())
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        for job in HELD.take().unwrap_or_default() {
            job();
        }
    }
}

/// Runs `job` now, or when this thread has let go of the order.
pub(crate) fn run(job: impl FnOnce() + 'static) {
    let now = HELD.with_borrow_mut(|held| match held {
        Some(jobs) => {
            jobs.push(Box::new(job));
            None
        }
        None => Some(job),
    });
    if let Some(job) = now {
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn jobs_wait_for_the_end_of_collecting_and_may_start_anew() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str| {
            let seen = seen.clone();
            move || seen.borrow_mut().push(what)
        };
        let collecting = Collecting::start();
        let (inner, after) = (note("inner"), note("after"));
        run(move || {
            let collecting = Collecting::start();
            run(after);
            inner();
            drop(collecting);
        });
        run(note("second"));
        assert!(seen.borrow().is_empty());
        drop(collecting);
        assert_eq!(*seen.borrow(), ["inner", "after", "second"]);
        run(note("at once"));
        assert_eq!(seen.borrow().len(), 4);
    }
}

//! Keeps the client's callbacks out of the time in which a communicator's order is held.
//!
//! An engine may complete other works while it issues one, and runs their callbacks then. A
//! callback that issues the next operation would wait for the order its own thread holds. So a
//! thread that holds it collects callbacks and runs them once it has let go. Must not know
//! communicators, nor what a callback does.

use std::cell::{Cell, RefCell};

type Job = Box<dyn FnOnce()>;

/// What a thread does with callbacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// runs them
    Free,
    /// holds a communicator's order, and has collected none
    Holds,
    /// holds it, and has collected some
    Collected,
}

thread_local! {
    /// Apart from the jobs, which nearly no operation has: a word that needs no destructor costs one
    /// look.
    static STAGE: Cell<Stage> = const { Cell::new(Stage::Free) };
    static JOBS: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
}

/// Collects from its making on; runs what was collected when dropped.
pub(crate) struct Collecting(());

impl Collecting {
    /// Starts to collect. Make it before taking the lock, so that it is dropped after it.
    #[inline]
    pub(crate) fn start() -> Self {
        STAGE.with(|stage| {
            if stage.get() == Stage::Free {
                stage.set(Stage::Holds);
            }
        });
        Self(())
    }
}

impl Drop for Collecting {
    #[inline]
    fn drop(&mut self) {
        if STAGE.replace(Stage::Free) == Stage::Collected {
            for job in JOBS.take() {
                job();
            }
        }
    }
}

/// Runs `job` now, or when this thread has let go of the order.
pub(crate) fn run(job: impl FnOnce() + 'static) {
    if STAGE.get() == Stage::Free {
        job();
    } else {
        STAGE.set(Stage::Collected);
        JOBS.with_borrow_mut(|jobs| jobs.push(Box::new(job)));
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

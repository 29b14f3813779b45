//! A call on its way: completed by some, watched by others, all at once.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::call::Operation;
use crate::error::{Error, ErrorKind};
use crate::work::Work;

/// One thread completes a work while two others ask to be called: each is called once, with the
/// outcome.
pub fn each_callback_runs_once() {
    crate::check(None, || {
        let work = Arc::new(Work::new(Operation::Barrier, 1));
        let calls = Arc::new(AtomicUsize::new(0));
        let watch = |work: Arc<Work>, calls: Arc<AtomicUsize>| {
            move || {
                let seen = work.clone();
                work.on_complete(move |outcome| {
                    assert!(outcome.is_ok() && seen.is_complete());
                    calls.fetch_add(1, Ordering::Relaxed);
                });
            }
        };
        let watcher = thread::spawn(watch(work.clone(), calls.clone()));
        let completer = {
            let work = work.clone();
            thread::spawn(move || work.run(work.complete(Ok(()))))
        };
        watch(work.clone(), calls.clone())();
        watcher.join().expect("the watcher ends");
        completer.join().expect("the completer ends");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    });
}

/// Two threads complete a work: one outcome stands, whoever sees it complete sees that one, and the
/// callback runs once.
pub fn the_first_outcome_stands() {
    crate::check(None, || {
        let work = Arc::new(Work::new(Operation::Barrier, 1));
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        work.on_complete(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let completer = {
            let work = work.clone();
            thread::spawn(move || work.run(work.complete(Ok(()))))
        };
        let early = work.outcome();
        let late = Err(Error::new(ErrorKind::Timeout, "late"));
        work.run(work.complete(late));
        completer.join().expect("the completer ends");
        let end = work.outcome().expect("it is complete");
        assert!(early.is_none_or(|early| early.is_ok() == end.is_ok()));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

//! Signals of a window: what was put before one is seen by whoever takes it, each is taken once, and no
//! sleeper is left asleep.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::sync::{AtomicU64, Ordering};
use crate::words;

struct Window {
    signals: [AtomicU64; 2],
    asleep: AtomicU64,
    memory: [UnsafeCell<u64>; 2],
    bell: Notify,
}

// SAFETY: the cells are accessed in turns, which is what the model is to find out.
unsafe impl Sync for Window {}
// SAFETY: as above.
unsafe impl Send for Window {}

/// One source puts and signals, as often as asked; `fenced`: with the order that ships.
fn source(window: &Window, own: usize, fenced: bool) {
    window.memory[own].with_mut(|place| {
        // SAFETY: the owner looks once it has seen the signal; the model finds it if it does not.
        unsafe { *place = 7 }
    });
    let asleep = if fenced {
        words::give(&window.signals[own], &window.asleep)
    } else {
        window.signals[own].fetch_add(1, Ordering::Release);
        window.asleep.load(Ordering::Relaxed) != 0
    };
    if asleep {
        window.bell.notify();
    }
}

/// Takes a signal of each source, asleep where there is none.
fn owner(window: &Window, sources: usize) {
    let mut taken = [false; 2];
    loop {
        for (source, taken) in taken.iter_mut().enumerate().take(sources) {
            if !*taken && words::given(&window.signals[source]) > 0 {
                *taken = true;
                let put = window.memory[source].with(|place| {
                    // SAFETY: as in `source`.
                    unsafe { *place }
                });
                assert_eq!(put, 7);
            }
        }
        let missing = |source: usize| !taken[source];
        if !(0..sources).any(missing) {
            return;
        }
        words::lie_down(&window.asleep);
        let quiet = (0..sources)
            .all(|source| !missing(source) || words::given(&window.signals[source]) == 0);
        if quiet {
            window.bell.wait();
        }
        words::get_up(&window.asleep);
    }
}

/// `sources` ranks put and signal once, and the owner takes what they gave.
pub fn signals(sources: usize, fenced: bool) {
    crate::check(Some(crate::INTERRUPTIONS), move || {
        let window = Arc::new(Window {
            signals: [AtomicU64::new(0), AtomicU64::new(0)],
            asleep: AtomicU64::new(0),
            memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
            bell: Notify::new(),
        });
        let threads: Vec<_> = (0..sources)
            .map(|own| {
                let window = window.clone();
                thread::spawn(move || source(&window, own, fenced))
            })
            .collect();
        owner(&window, sources);
        for thread in threads {
            thread.join().expect("a source does not panic");
        }
    });
}

//! Barriers that one thread puts into all others, as the kernel does for processes that registered.
//!
//! The checker knows no interrupts. Here a thread that takes part looks at certain points whether
//! somebody asks for its barrier, and passes one when it is so: where shipping code keeps the
//! compiler from moving accesses (`compiler_fence`), and before and after all it does. A thread that
//! is not running, asleep or at its end, needs none: it passes one on its way out and on its way in,
//! as every switch of context does. Whoever orders all waits for each of the others to do either.
//! What a thread sees of a request may be old, so its interrupt may come late, and never at all before
//! it is away; the one that asks cannot go on before.

use loom::cell::Cell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

/// Threads that a model has at most.
const THREADS: usize = 3;

struct Core {
    /// barriers that others have asked for
    asked: AtomicU64,
    /// of these, how many have been passed
    passed: AtomicU64,
    away: AtomicBool,
}

loom::lazy_static! {
    static ref CORES: [Core; THREADS] = std::array::from_fn(|_| Core {
        asked: AtomicU64::new(0),
        passed: AtomicU64::new(0),
        away: AtomicBool::new(true),
    });
}

loom::thread_local! {
    static ME: Cell<Option<usize>> = Cell::new(None);
}

fn me() -> Option<usize> {
    ME.with(Cell::get)
}

/// Thread `index` of a model runs and takes part, until this ends.
pub(crate) struct Running;

impl Running {
    pub(crate) fn new(index: usize) -> Self {
        ME.with(|me| me.set(Some(index)));
        switch(false);
        interruption();
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        interruption();
        switch(true);
        ME.with(|me| me.set(None));
    }
}

/// This thread stops running, or runs again.
pub(crate) fn switch(away: bool) {
    if let Some(me) = me() {
        fence(Ordering::SeqCst);
        CORES[me].away.store(away, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Where this thread may be interrupted for a barrier.
pub(crate) fn interruption() {
    if let Some(me) = me() {
        let core = &CORES[me];
        let asked = core.asked.load(Ordering::Relaxed);
        if asked != core.passed.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            core.passed.store(asked, Ordering::Relaxed);
        }
    }
}

pub(crate) fn take_part() -> bool {
    me().is_some()
}

pub(crate) fn order_all() -> bool {
    fence(Ordering::SeqCst);
    for (index, core) in CORES.iter().enumerate() {
        if me() == Some(index) {
            continue;
        }
        let mine = core.asked.fetch_add(1, Ordering::Relaxed) + 1;
        while core.passed.load(Ordering::Relaxed) < mine && !core.away.load(Ordering::Relaxed) {
            // Two who ask at one time interrupt each other.
            interruption();
            thread::yield_now();
        }
    }
    fence(Ordering::SeqCst);
    true
}

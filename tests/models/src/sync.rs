//! The checker's twins of what the crates' own `sync` modules offer.

use std::mem::MaybeUninit;

use loom::cell::UnsafeCell;

pub(crate) use loom::sync::Mutex;
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};

/// Keeps the compiler from moving accesses, which the checker never does; here an interrupt may come.
pub(crate) fn compiler_fence(_: Ordering) {
    crate::barrier::interruption();
}

const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const FULL: u8 = 2;

/// A value that is set once, as std's: whoever comes second waits until the first has set it.
pub(crate) struct OnceLock<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by the one thread that took the state from EMPTY, and read only
// after FULL was seen, which is stored after the write.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for OnceLock<T> {}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        (self.state.load(Ordering::Acquire) == FULL).then(|| {
            // SAFETY: FULL was seen, so the value is there and nobody writes it any more.
            self.value
                .with(|value| unsafe { (*value).assume_init_ref() })
        })
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let (from, to) = (EMPTY, FILLING);
        let claimed = self
            .state
            .compare_exchange(from, to, Ordering::Acquire, Ordering::Acquire);
        if claimed.is_err() {
            while self.state.load(Ordering::Acquire) != FULL {
                loom::thread::yield_now();
            }
            return Err(value);
        }
        self.value.with_mut(|place| {
            // SAFETY: this thread alone took the state from EMPTY, and nobody reads before FULL.
            unsafe { (*place).write(value) };
        });
        self.state.store(FULL, Ordering::Release);
        Ok(())
    }
}

impl<T> Drop for OnceLock<T> {
    fn drop(&mut self) {
        if self.state.load(Ordering::Acquire) == FULL {
            self.value.with_mut(|value| {
                // SAFETY: FULL: the value is there, and nobody else can see it any more.
                unsafe { (*value).assume_init_drop() };
            });
        }
    }
}

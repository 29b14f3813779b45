//! Whether this process is a forked child, at the price of a load; asking for the process id is a
//! system call. Must not know who asks.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in the child, where only what is async-signal-safe may be done: one addition.
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How often this process and its ancestors were forked since this was first asked. What was made
/// under another number was inherited.
#[inline]
pub(crate) fn generation() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler does nothing but one atomic addition. Without memory for it (the only
        // way to fail) a child would not be told apart, as if this library knew nothing of forks.
        let _out_of_memory = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    FORKS.load(Ordering::Relaxed)
}

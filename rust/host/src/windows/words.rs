//! The words through which a rank signals another, in the order that loses neither what was put before
//! a signal nor a wake-up. Modelled in `tests/models`. Must not know where the words lie.

use crate::sync::{AtomicU64, Ordering, fence};

/// Gives one signal; whether the owner sleeps, and is to be woken.
pub(crate) fn give(signals: &AtomicU64, asleep: &AtomicU64) -> bool {
    // What was put before is seen by whoever sees this.
    signals.fetch_add(1, Ordering::SeqCst);
    // Either this sees the owner asleep, or the owner's last look before it sleeps sees the signal.
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0
}

/// Signals given so far.
pub(crate) fn given(signals: &AtomicU64) -> u64 {
    signals.load(Ordering::Acquire)
}

/// Announces that the owner sleeps; it looks at all signals once more before it does.
pub(crate) fn lie_down(asleep: &AtomicU64) {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Takes the announcement back.
pub(crate) fn get_up(asleep: &AtomicU64) {
    asleep.store(0, Ordering::Relaxed);
}

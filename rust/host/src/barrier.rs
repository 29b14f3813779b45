//! Full barriers for others: whoever goes to sleep makes all processes of its job order their memory,
//! so that those who post, which they do far more often, need no fence.
//!
//! The kernel does it (`membarrier`, Linux 4.16) for processes that registered. Must not know who
//! sleeps.

use std::sync::LazyLock;

/// Commands of the system call.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn command(command: libc::c_int) -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process takes part: its threads are ordered by `order_all`, and it can call that.
pub(crate) fn take_part() -> bool {
    static REGISTERED: LazyLock<bool> =
        LazyLock::new(|| command(REGISTER_GLOBAL_EXPEDITED) && command(GLOBAL_EXPEDITED));
    *REGISTERED
}

/// Puts a full barrier into every running thread of every process that takes part. `false`: it could
/// not; a process that takes part can.
pub(crate) fn order_all() -> bool {
    command(GLOBAL_EXPEDITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_takes_part_can_order_all() {
        if take_part() {
            assert!(order_all());
        } else {
            eprintln!("skipped: this kernel has no membarrier");
        }
    }
}

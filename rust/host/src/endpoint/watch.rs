//! Watching the processes of this machine: what tells when one ends. Must not know what is then done.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ferrocomm_core::error::Result;
use ferrocomm_core::ids::{CommId, ProcessId};

use super::greeting::Purpose;
use super::{Endpoint, connect_unix, credentials, lost};
use crate::bootstrap::Member;

/// What tells when another process ends.
pub(crate) struct Watch {
    pub(crate) process: ProcessId,
    pidfd: OwnedFd,
}

/// How a process can be watched.
pub(crate) enum Watched {
    By(Watch),
    /// it is this very process
    Own,
    /// it has no number here
    NotByPid,
}

impl Watch {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut entry = libc::pollfd {
            fd: self.pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `entry` is one entry and lives for the call, which does not wait.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }
}

impl Endpoint {
    /// Begins to watch the process of `member`, which is on this machine.
    ///
    /// # Errors
    /// `PeerLost` when it does not listen any more.
    pub(crate) fn watch(&self, member: &Member) -> Result<Watched> {
        let mut socket = connect_unix(member)?;
        let pid = credentials(&socket).map_or(0, |peer| peer.pid);
        if u32::try_from(pid) == Ok(std::process::id()) {
            return Ok(Watched::Own);
        }
        let fd = match pid {
            0 => -1,
            // SAFETY: plain numbers; the kernel gives a new descriptor or an error.
            pid => unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) },
        };
        let greeting = self.greeting(Purpose::Watch, member, CommId(0));
        // It is the right process if it listens still, now that the descriptor is there.
        socket.write_all(&greeting).map_err(lost)?;
        let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
            return Ok(Watched::NotByPid);
        };
        Ok(Watched::By(Watch {
            process: member.process,
            // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
            pidfd: unsafe { OwnedFd::from_raw_fd(fd) },
        }))
    }
}

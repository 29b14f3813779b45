//! What wakes a process that sleeps in a poll: a local datagram socket that any process of the job
//! can write to by name, without a connection. Must not know who sleeps or why.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ferrocomm_core::error::{Error, ErrorKind, Result};

/// This process's bell, and the hand that rings those of others.
pub(crate) struct Bell {
    socket: UnixDatagram,
    own: SocketAddr,
}

/// The bell of the process that listens on the abstract socket `unix`.
fn address(unix: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{unix}-bell"))
}

impl Bell {
    /// Hangs the bell of the process that listens on the abstract socket `unix`.
    ///
    /// # Errors
    /// Whatever keeps the process from having one more socket.
    pub(crate) fn new(unix: &str) -> Result<Self> {
        let failed =
            |error| Error::new(ErrorKind::Transport, "cannot listen on a local socket").got(error);
        let own = address(unix).map_err(failed)?;
        let socket = UnixDatagram::bind_addr(&own).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { socket, own })
    }

    /// The name under which `ring_at` finds the bell of another process.
    ///
    /// # Errors
    /// `Transport` when the name is none of a socket.
    pub(crate) fn name_of(unix: &str) -> Result<SocketAddr> {
        address(unix).map_err(|error| {
            Error::new(ErrorKind::Transport, "a peer has no name on this machine").got(error)
        })
    }

    /// Makes the own poll return.
    pub(crate) fn ring(&self) {
        self.ring_at(&self.own);
    }

    /// Makes the poll of another process return. A full queue is as good as a rung bell, and who is
    /// gone hears nothing.
    pub(crate) fn ring_at(&self, other: &SocketAddr) {
        if let Err(error) = self.socket.send_to_addr(&[1], other)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::trace!(%error, "a bell could not be rung");
        }
    }

    /// Takes note of all rings so far.
    pub(crate) fn silence(&self) {
        // The queue of a datagram socket is short; the bound is for one who rings without end.
        for _ in 0..512 {
            if self.socket.recv(&mut [0; 1]).is_err() {
                return;
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

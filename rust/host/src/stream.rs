//! A stream of bytes to one other process and back: in order, never blocking.
//!
//! This module must not know messages, ranks or operations; `link` does.

mod announcements;
mod fd_passing;
mod ring;
pub(crate) mod shm;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use crate::cores::Processors;
pub(crate) use fd_passing::{receive_with_fd, send_with_fd};

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// memory of this machine
    Shm,
    /// a socket
    Tcp,
}

impl StreamKind {
    /// Its name, as users write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// One end of a stream. One thread at a time uses it.
///
/// An error is final: the stream is broken in that direction. `peer_is_gone` tells the end of the
/// peer from other faults.
///
/// Sleeping. Before a thread sleeps until something happens on streams, it calls `before_sleep` on
/// each; where none says `true` it polls their descriptors for readability (and for writability,
/// where `watch_writable` says so), then calls `after_sleep` on each. Without `before_sleep` a peer
/// that uses shared memory does not wake anybody.
pub(crate) trait Stream: Send {
    /// What carries the bytes.
    fn kind(&self) -> StreamKind;

    /// Takes bytes of `parts`, in order, and returns how many; 0 when there is no room now.
    ///
    /// # Errors
    /// The stream is broken. Bytes taken before may not have arrived.
    fn try_write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Puts the next bytes at the start of `into` and returns how many; 0 when none are there.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer has closed or died and all it sent was read; another kind when
    /// the stream is broken.
    fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Whether `bytes` bytes that are written now go at once and whole. Where that cannot be told: no.
    fn has_room(&mut self, _bytes: usize) -> bool {
        false
    }

    /// Fills `start` with the next bytes and leaves them where they are, once `whole` bytes of which
    /// they are the first have come. Where that cannot be told: no.
    fn peek(&mut self, _start: &mut [u8], _whole: usize) -> bool {
        false
    }

    /// The processors the peer runs on, once it has said so.
    fn processors(&self) -> Option<Processors> {
        None
    }

    /// What to poll while sleeping: readable when bytes have come, room was made or the peer is
    /// gone.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether the last write found no room and room shows as writability of `fd`.
    fn watch_writable(&self) -> bool;

    /// Tells the peer to wake this side: when bytes come and, if the last write found no room, when
    /// there is room. Returns `true` when there is something to do already: then nothing was told,
    /// and the thread must not sleep.
    fn before_sleep(&mut self) -> bool;

    /// Takes back what `before_sleep` told. `ready`: polling reported `fd`.
    fn after_sleep(&mut self, ready: bool);

    /// Looks, with one system call, whether the peer is still there; the next read or write reports
    /// what was found. For a thread that waits long: about twice a second is enough.
    fn probe(&mut self);
}

/// Whether this error of a stream means that the peer closed, died or fell silent.
pub(crate) fn peer_is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}

/// `Ok(0)` for a call that would have to wait.
fn or_would_block(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(0)
        }
        result => result,
    }
}

/// The result of a system call that returns a length or -1.
fn length(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

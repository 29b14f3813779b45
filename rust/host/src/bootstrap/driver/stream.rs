//! A connection between two ranks that join, of either kind. Must not know what is sent.

use std::io::{self, ErrorKind as Io, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// A socket that does not block.
pub(super) enum Socket {
    /// to another machine, or to a rank that joins for itself
    Tcp(TcpStream),
    /// within the machine
    Unix(UnixStream),
}

impl Socket {
    /// The TCP stream, non-blocking and without delay.
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn finish(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

/// A connection and what is still to be sent on it.
pub(super) struct Stream {
    pub(super) socket: Socket,
    pub(super) unsent: Vec<u8>,
    /// nothing more will be sent than `unsent`; whatever comes is dropped
    pub(super) closing: bool,
}

impl Stream {
    /// Sends what the kernel takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(0) => return Err(Io::WriteZero.into()),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == Io::WouldBlock => return Ok(()),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.closing {
            self.socket.finish()
        } else {
            Ok(())
        }
    }

    /// Reads once; `None` when there is nothing at the moment.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.socket.read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == Io::WouldBlock => return Ok(None),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

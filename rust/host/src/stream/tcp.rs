//! A stream through a TCP socket, and what it takes to open one without blocking.
//!
//! A host that falls silent is noticed in two ways: keep-alive while nothing is on its way, and
//! `probe` while sent bytes stay unacknowledged. TCP_USER_TIMEOUT would do for the second, but it
//! also ends connections whose peer is alive and only does not read for a while.
//! This module must not know messages or how addresses are found.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use ferrocomm_core::deadline::Deadline;

use super::{Stream, StreamKind, length, or_would_block};

/// No system call moves more bytes at once.
const MOST_BYTES: usize = 1 << 30;
/// Nor more parts.
const MOST_PARTS: usize = 64;

/// A peer is gone when nothing came from it for so long, and bytes were sent to it again so often
/// in a row without an answer.
const SILENCE: Duration = Duration::from_secs(2);
const RETRIES: u8 = 2;
/// Seconds of quiet before the first keep-alive probe, between probes, and probes without answer.
const KEEPALIVE: [libc::c_int; 3] = [1, 1, 2];

/// Reads of fewer bytes than this are served from a look ahead of as many: the start of a frame and
/// a small payload come with one system call.
const LOOK_AHEAD: usize = 4096;

/// One end of a stream through TCP.
#[derive(Debug)]
pub(crate) struct TcpLink {
    socket: TcpStream,
    state: State,
    /// bytes that were received and not read yet: those in `unread`
    ahead: Box<[u8; LOOK_AHEAD]>,
    unread: Range<usize>,
    /// the last receive took all there was; whoever asks again right away need not ask the system
    drained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// the last write found no room
    Full,
    /// found silent by `probe`
    Silent,
}

impl TcpLink {
    /// Takes a connected socket.
    ///
    /// # Errors
    /// Those of setting its options.
    pub(crate) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let [idle, interval, count] = KEEPALIVE;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval)?;
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, count)?;
        Ok(Self {
            socket,
            state: State::Open,
            ahead: Box::new([0; LOOK_AHEAD]),
            unread: 0..0,
            drained: false,
        })
    }

    /// Copies what was received already.
    fn read_ahead(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.unread.len());
        let start = self.unread.start;
        into[..count].copy_from_slice(&self.ahead[start..start + count]);
        self.unread.start += count;
        count
    }

    fn check(&self) -> io::Result<()> {
        match self.state {
            State::Open | State::Full => Ok(()),
            State::Silent => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Stream for TcpLink {
    fn kind(&self) -> StreamKind {
        StreamKind::Tcp
    }

    fn try_write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        let mut first = [IoSlice::new(&[]); MOST_PARTS];
        let (count, bytes) = take_first(parts, &mut first);
        if bytes == 0 {
            self.state = State::Open;
            return Ok(0);
        }
        // SAFETY: a `msghdr` is numbers and pointers, for which zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // `IoSlice` has the layout of `iovec`, as std promises.
        message.msg_iov = first.as_mut_ptr().cast();
        message.msg_iovlen = count as _;
        // SAFETY: `sendmsg` reads `message`, the parts and the bytes they borrow, all of which live
        // for the call. Not `write_vectored`: that raises SIGPIPE in programs that do not ignore it.
        let sent = or_would_block(length(unsafe {
            libc::sendmsg(
                self.socket.as_raw_fd(),
                &message,
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        }))
        // Whoever reads what a peer sent before it went wants all of it.
        .inspect_err(|_| self.drained = false)?;
        self.state = if sent < bytes {
            State::Full
        } else {
            State::Open
        };
        Ok(sent)
    }

    fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        if into.is_empty() {
            return Ok(0);
        }
        if !self.unread.is_empty() {
            return Ok(self.read_ahead(into));
        }
        if std::mem::take(&mut self.drained) {
            return Ok(0);
        }
        if into.len() < LOOK_AHEAD {
            let count = receive(&self.socket, &mut self.ahead[..])?;
            self.drained = count < LOOK_AHEAD;
            self.unread = 0..count;
            return Ok(self.read_ahead(into));
        }
        let count = receive(&self.socket, into)?;
        self.drained = count < into.len().min(MOST_BYTES);
        Ok(count)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn watch_writable(&self) -> bool {
        self.state == State::Full
    }

    fn before_sleep(&mut self) -> bool {
        // What was received already makes no socket readable.
        self.state == State::Silent || !self.unread.is_empty()
    }

    fn after_sleep(&mut self, _ready: bool) {}

    fn probe(&mut self) {
        if let Ok(info) = information(&self.socket)
            && is_silent(&info)
        {
            self.state = State::Silent;
        }
    }
}

/// The next bytes of a socket; 0 when none are there.
fn receive(socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    let most = into.len().min(MOST_BYTES);
    // SAFETY: receives at most `most` bytes into `into`, on an open descriptor.
    let received = length(unsafe {
        let into = into.as_mut_ptr().cast();
        libc::recv(socket.as_raw_fd(), into, most, libc::MSG_DONTWAIT)
    });
    match received {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        received => or_would_block(received),
    }
}

/// Whether bytes were sent again and again while nothing at all came back. A peer that merely does
/// not read acknowledges what fits, and then nothing is sent again; after a long pause, the first
/// new bytes have not been sent twice.
fn is_silent(info: &libc::tcp_info) -> bool {
    let quiet = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
    info.tcpi_unacked > 0
        && info.tcpi_retransmits >= RETRIES
        && Duration::from_millis(u64::from(quiet)) > SILENCE
}

/// Copies parts, the last one perhaps cut, up to the limits of one system call; returns how many
/// and their bytes.
fn take_first<'a>(parts: &'a [IoSlice<'a>], into: &mut [IoSlice<'a>]) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for (place, part) in into
        .iter_mut()
        .zip(parts.iter().filter(|part| !part.is_empty()))
    {
        let taken = part.len().min(MOST_BYTES - bytes);
        if taken == 0 {
            break;
        }
        *place = IoSlice::new(&part[..taken]);
        count += 1;
        bytes += taken;
    }
    (count, bytes)
}

/// What the kernel knows of a connection.
fn information(socket: &TcpStream) -> io::Result<libc::tcp_info> {
    // SAFETY: a `tcp_info` is numbers alone, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: writes at most `size` bytes into `info`, which is that large.
    let result = unsafe {
        let into = (&raw mut info).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            into,
            &mut size,
        )
    };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(info)
    }
}

/// Starts to connect and returns at once. The socket becomes writable when `connected` knows more.
///
/// # Errors
/// Those of the system: no descriptor, no route.
pub(crate) fn start_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call; the descriptor is new and owned by nobody else.
    let fd = unsafe {
        let fd = libc::socket(family, kind, 0);
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let result = match address {
        SocketAddr::V4(address) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            connect_to(&fd, &name)
        }
        SocketAddr::V6(address) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: address.ip().octets(),
                },
                sin6_scope_id: address.scope_id(),
            };
            connect_to(&fd, &name)
        }
    };
    match result {
        Err(error)
            if error.raw_os_error() != Some(libc::EINPROGRESS)
                && error.kind() != io::ErrorKind::Interrupted =>
        {
            Err(error)
        }
        _ => Ok(TcpStream::from(fd)),
    }
}

/// `connect` with an address of any family: `T` is a `sockaddr` of some kind.
fn connect_to<T>(fd: &OwnedFd, name: &T) -> io::Result<()> {
    // SAFETY: reads one `T`, which lives for the call, on an open descriptor.
    let result = unsafe {
        let size = size_of::<T>() as libc::socklen_t;
        libc::connect(fd.as_raw_fd(), std::ptr::from_ref(name).cast(), size)
    };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Whether a socket of `start_connect` is connected by now.
///
/// # Errors
/// Why it could not connect.
pub(crate) fn connected(socket: &TcpStream) -> io::Result<bool> {
    if !wait_writable(socket, Duration::ZERO)? {
        return Ok(false);
    }
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    // On one machine, a socket that looks for a listener long enough can find itself.
    if socket.local_addr()? == socket.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(true)
}

/// Connects, waiting until `deadline` at most. For threads that may wait; others use
/// `start_connect` and `connected`.
///
/// # Errors
/// `TimedOut` when the deadline passed, or why it could not connect.
pub(crate) fn connect(address: SocketAddr, deadline: Deadline) -> io::Result<TcpStream> {
    let socket = start_connect(address)?;
    while !connected(&socket)? {
        let left = deadline.left();
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        wait_writable(&socket, left)?;
    }
    Ok(socket)
}

/// Waits until `socket` is writable or broken, or `limit` has passed. Returns whether it is.
fn wait_writable(socket: &TcpStream, limit: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // Rounded up, so that a wait never ends just before its deadline and starts again.
    let milliseconds = libc::c_int::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: reads and writes one `pollfd` that lives for the call.
    let result = unsafe { libc::poll(&mut entry, 1, milliseconds) };
    if result == -1 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok(false)
        } else {
            Err(error)
        };
    }
    Ok(result > 0)
}

/// The next connection of a non-blocking listener; `None` when none waits.
///
/// # Errors
/// Those of the listener. A connection that ended while it waited is none.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    match listener.accept() {
        Ok((socket, from)) => Ok(Some((socket, from))),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn set_option(
    socket: &TcpStream,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: reads one `c_int` that lives for the call, on an open descriptor.
    let result = unsafe {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size,
        )
    };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_repeats_without_an_answer_make_a_peer_silent() {
        // SAFETY: a `tcp_info` is numbers alone, for which zero is valid.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        info.tcpi_last_ack_recv = 60_000;
        info.tcpi_last_data_recv = 60_000;
        assert!(!is_silent(&info), "an idle connection");
        info.tcpi_unacked = 1;
        assert!(!is_silent(&info), "the first bytes after a long pause");
        info.tcpi_retransmits = 5;
        assert!(is_silent(&info));
        info.tcpi_last_data_recv = 10;
        assert!(!is_silent(&info), "it sends, and the way to it loses much");
    }
}

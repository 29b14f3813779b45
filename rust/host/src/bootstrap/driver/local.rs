//! The meeting of the ranks of one machine: an abstract Unix socket, which the kernel frees with the
//! process that has it. Must not know what ranks say there.

use std::io::{self, ErrorKind as Io};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::bootstrap::wire::Nonce;
use crate::endpoint::same_user;

/// How often the name may turn out taken and then free again.
const ATTEMPTS: usize = 3;

/// What coming to a meeting leads to.
pub(super) enum Met {
    /// nobody was there: the others come to this socket
    Host(UnixListener),
    /// connected to whoever was there first
    Guest(UnixStream),
}

/// The name under which ranks meet.
fn address(name: &Nonce) -> Vec<u8> {
    format!("ferrocomm-join-{:032x}", u128::from_be_bytes(*name)).into_bytes()
}

/// Comes to the meeting `name`, without blocking.
///
/// # Errors
/// `PermissionDenied` when another user has the name; `WouldBlock` when too many wait at the door;
/// `ConnectionRefused` when hosts come and go.
pub(super) fn meet(name: &Nonce) -> io::Result<Met> {
    let name = address(name);
    let mut attempt = 0;
    loop {
        attempt += 1;
        match host(&name) {
            Err(error) if error.kind() == Io::AddrInUse => {}
            hosted => return hosted.map(Met::Host),
        }
        match visit(&name) {
            // The host has gone in between.
            Err(error) if error.kind() == Io::ConnectionRefused && attempt < ATTEMPTS => {}
            visited => return visited.map(Met::Guest),
        }
    }
}

fn host(name: &[u8]) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects; the standard library's way would block while too many wait at the door.
fn visit(name: &[u8]) -> io::Result<UnixStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes plain numbers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    // The first byte of an abstract name is zero.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    // SAFETY: `address` is a socket address, of which the first `length` bytes count; the name is
    // shorter than its field.
    let failed = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            length as libc::socklen_t,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    let stream = UnixStream::from(socket);
    if same_user(&stream) {
        Ok(stream)
    } else {
        Err(Io::PermissionDenied.into())
    }
}

/// Accepts one connection; `None` when there is none at the moment, or only another user's.
pub(super) fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    let (stream, _) = listener.accept()?;
    if !same_user(&stream) {
        tracing::warn!("another user's process came to join; it was sent away");
        return Ok(None);
    }
    stream.set_nonblocking(true)?;
    Ok(Some(stream))
}

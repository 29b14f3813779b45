//! The meeting of the ranks of one machine: an abstract Unix socket, which the kernel frees with the
//! process that has it. Must not know what ranks say there.

use std::io::{self, ErrorKind as Io};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

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

/// Comes to the meeting `name`, without blocking.
///
/// # Errors
/// `PermissionDenied` when another user has the name; `WouldBlock` when too many wait at the door;
/// `ConnectionRefused` when hosts come and go.
pub(super) fn meet(name: &Nonce) -> io::Result<Met> {
    let address = Address::of(name);
    // One socket for both: nearly all ranks find the name taken.
    let socket = socket()?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        match host(&socket, &address) {
            Err(error) if error.kind() == Io::AddrInUse => {}
            hosted => return hosted.map(|()| Met::Host(socket.into())),
        }
        match visit(&socket, &address) {
            // The host has gone in between.
            Err(error) if error.kind() == Io::ConnectionRefused && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    let stream = UnixStream::from(socket);
    if same_user(&stream) {
        Ok(Met::Guest(stream))
    } else {
        Err(Io::PermissionDenied.into())
    }
}

/// The name under which ranks meet, as the kernel takes it.
struct Address {
    bytes: libc::sockaddr_un,
    /// how many of them count
    length: libc::socklen_t,
}

impl Address {
    fn of(name: &Nonce) -> Self {
        let name = format!("ferrocomm-join-{:032x}", u128::from_be_bytes(*name));
        let mut bytes = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as libc::sa_family_t,
            sun_path: [0; 108],
        };
        // The first byte of an abstract name is zero.
        for (to, from) in bytes.sun_path[1..].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let length = size_of::<libc::sa_family_t>() + 1 + name.len();
        Self {
            bytes,
            length: length as libc::socklen_t,
        }
    }
}

/// A socket that does not block: the standard library's would, while too many wait at the door.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes plain numbers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn host(socket: &OwnedFd, address: &Address) -> io::Result<()> {
    // SAFETY: `bytes` is a socket address, of which the first `length` bytes count; the name is
    // shorter than its field.
    done(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address.bytes).cast(),
            address.length,
        )
    })?;
    // As many as the kernel lets wait.
    // SAFETY: takes plain numbers.
    done(unsafe { libc::listen(socket.as_raw_fd(), -1) })
}

fn visit(socket: &OwnedFd, address: &Address) -> io::Result<()> {
    // SAFETY: as in `host`.
    done(unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address.bytes).cast(),
            address.length,
        )
    })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
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

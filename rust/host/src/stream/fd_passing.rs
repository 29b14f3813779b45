//! A descriptor that travels with the first bytes of a local connection.
//!
//! This module must not know what either means.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::length;

/// Room for the control message of a few descriptors; the kernel closes what does not fit.
const CONTROL: usize = 64;

/// The buffer of a control message, aligned as one.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Sends `bytes` with a copy of `fd`, in one piece.
///
/// # Errors
/// Those of the socket; `WriteZero` when it did not take all of `bytes`, which a new connection
/// does for a few hundred.
pub(crate) fn send_with_fd(socket: &UnixStream, bytes: &[u8], fd: impl AsFd) -> io::Result<()> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = empty_message(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the macros compute with sizes and write a header and one descriptor into `control`,
    // which is aligned and large enough for both. `sendmsg` reads `message` and what it points to,
    // all of which lives until the end of this function.
    let sent = unsafe {
        let size = size_of::<libc::c_int>() as libc::c_uint;
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header)
            .cast::<libc::c_int>()
            .write_unaligned(fd.as_fd().as_raw_fd());
        length(libc::sendmsg(
            socket.as_raw_fd(),
            &message,
            libc::MSG_NOSIGNAL,
        ))?
    };
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Receives bytes at the start of `into`, and the descriptor that came with them, if one did. It is
/// closed on exec. Returns how many bytes; 0 when the peer has closed.
///
/// # Errors
/// Those of the socket; `InvalidData` when the peer sent more than one descriptor.
pub(crate) fn receive_with_fd(
    socket: &UnixStream,
    into: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let mut message = empty_message(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // SAFETY: `recvmsg` writes into `into` and `control`, both of the lengths given.
    let received = unsafe {
        length(libc::recvmsg(
            socket.as_raw_fd(),
            &mut message,
            libc::MSG_CMSG_CLOEXEC,
        ))?
    };
    let mut fds = take_fds(&message);
    if fds.len() > 1 || message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more than one descriptor",
        ));
    }
    Ok((received, fds.pop()))
}

/// Every descriptor of a message the kernel has just filled in, so that none leaks.
fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in `message`; the macros walk its control buffer within the length
    // it set. Descriptors in it are new and owned by nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..bytes / size_of::<libc::c_int>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn empty_message(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a `msghdr` is numbers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_descriptor_arrives_with_the_bytes() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send_with_fd(&left, b"hello", &writer).unwrap();
        drop(writer);
        let mut bytes = [0; 5];
        let (received, fd) = receive_with_fd(&right, &mut bytes).unwrap();
        assert_eq!((received, &bytes), (5, b"hello"));
        std::fs::File::from(fd.unwrap())
            .write_all(b"through")
            .unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn bytes_alone_bring_no_descriptor() {
        let (mut left, right) = UnixStream::pair().unwrap();
        left.write_all(b"x").unwrap();
        let (received, fd) = receive_with_fd(&right, &mut [0; 5]).unwrap();
        assert_eq!((received, fd.is_none()), (1, true));
        drop(left);
        assert_eq!(receive_with_fd(&right, &mut [0; 5]).unwrap().0, 0);
    }
}

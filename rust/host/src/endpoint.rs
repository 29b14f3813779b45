//! How this process can be reached and how it reaches others: its listening sockets, and the
//! greeting that keeps strangers out. Must not know frames or communicators.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::ProcessId;

use crate::address;
use crate::bootstrap::Member;
use crate::budget::Budget;
use crate::stream::shm::{RING_BYTES, ShmStream};
use crate::stream::tcp::{self, TcpLink};
use crate::stream::{Stream, StreamKind, receive_with_fd};

const MAGIC: &[u8; 8] = b"FERROCM1";
/// magic, the dialler's process, the listener's nonce
const GREETING: usize = 8 + 16 + 16;
/// Half-open connections that are kept, and for how long.
const STRANGERS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// Which streams may be used, from `FERROCOMM_HOST_TRANSPORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportChoice {
    Auto,
    Shm,
    Tcp,
}

impl TransportChoice {
    pub(crate) fn from_environment() -> Result<Self> {
        match std::env::var("FERROCOMM_HOST_TRANSPORT").as_deref() {
            Err(_) | Ok("" | "auto") => Ok(Self::Auto),
            Ok("shm") => Ok(Self::Shm),
            Ok("tcp") => Ok(Self::Tcp),
            Ok(other) => Err(Error::new(
                ErrorKind::InvalidArgument,
                "FERROCOMM_HOST_TRANSPORT names no transport",
            )
            .got(other)
            .expected("auto, shm or tcp")),
        }
    }
}

/// A connection somebody has dialled and greeted on.
pub(crate) struct Arrival {
    pub(crate) process: ProcessId,
    pub(crate) stream: Box<dyn Stream>,
}

enum Socket {
    Unix(UnixStream, Option<OwnedFd>),
    Tcp(std::net::TcpStream),
}

struct Stranger {
    socket: Socket,
    bytes: [u8; GREETING],
    got: usize,
    since: Instant,
}

/// This process on the network.
pub(crate) struct Endpoint {
    pub(crate) me: Member,
    choice: TransportChoice,
    budget: Budget,
    unix: UnixListener,
    tcp: TcpListener,
    strangers: Vec<Stranger>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::new(ErrorKind::Transport, what).got(error)
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(failed("the system gives no random numbers"))?;
    Ok(bytes)
}

impl Endpoint {
    pub(crate) fn open(choice: TransportChoice) -> Result<Self> {
        let process = ProcessId(random()?);
        let unix_name: String = std::iter::once("ferrocomm-".to_owned())
            .chain(process.0.iter().map(|byte| format!("{byte:02x}")))
            .collect();
        let unix = UnixAddress::from_abstract_name(unix_name.as_bytes())
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(failed("cannot listen on a local socket"))?;
        let local = address::local_address()?;
        let tcp = TcpListener::bind(SocketAddr::new(unspecified_like(local), 0))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(failed("cannot listen on a TCP port"))?;
        let port = tcp
            .local_addr()
            .map_err(failed("a listening socket has no address"))?
            .port();
        let me = Member {
            process,
            machine: address::machine_id(),
            unix: unix_name,
            addresses: vec![SocketAddr::new(local, port)],
            nonce: random()?,
        };
        Ok(Self {
            me,
            choice,
            budget: Budget::of_machine(),
            unix,
            tcp,
            strangers: Vec::new(),
        })
    }

    /// What would carry data to `member`.
    pub(crate) fn kind_for(&self, member: &Member) -> StreamKind {
        match self.choice {
            TransportChoice::Tcp => StreamKind::Tcp,
            TransportChoice::Shm => StreamKind::Shm,
            TransportChoice::Auto if member.machine == self.me.machine => StreamKind::Shm,
            TransportChoice::Auto => StreamKind::Tcp,
        }
    }

    /// Connects to `member` and greets it. Does not wait for it.
    pub(crate) fn dial(&self, member: &Member) -> Result<Box<dyn Stream>> {
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(MAGIC);
        greeting[8..24].copy_from_slice(&self.me.process.0);
        greeting[24..].copy_from_slice(&member.nonce);
        match self.kind_for(member) {
            StreamKind::Shm => self.dial_unix(member, &greeting),
            StreamKind::Tcp => dial_tcp(member, &greeting),
        }
    }

    fn dial_unix(&self, member: &Member, greeting: &[u8]) -> Result<Box<dyn Stream>> {
        if member.machine != self.me.machine {
            return Err(Error::new(
                ErrorKind::Transport,
                "shared memory reaches this machine alone",
            )
            .remedy("set FERROCOMM_HOST_TRANSPORT=auto for ranks on several machines"));
        }
        let lost = |error| {
            Error::new(
                ErrorKind::PeerLost,
                "a peer on this machine cannot be reached; it has ended or never listened",
            )
            .got(error)
            .remedy("look at what the named rank printed before it ended")
        };
        let socket = UnixAddress::from_abstract_name(member.unix.as_bytes())
            .and_then(|address| UnixStream::connect_addr(&address))
            .map_err(lost)?;
        socket
            .set_nonblocking(true)
            .map_err(failed("cannot set up a local socket"))?;
        Ok(Box::new(ShmStream::dial(
            socket,
            greeting,
            RING_BYTES,
            &self.budget,
        )?))
    }

    /// Connections that have greeted rightly since the last call.
    pub(crate) fn arrivals(&mut self) -> Vec<Arrival> {
        while let Ok((socket, _)) = self.unix.accept() {
            if socket.set_nonblocking(true).is_ok() && same_user(&socket) {
                self.meet(Socket::Unix(socket, None));
            }
        }
        while let Ok(Some((socket, _))) = tcp::accept(&self.tcp) {
            self.meet(Socket::Tcp(socket));
        }
        let mut arrivals = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.listen() {
                Some(true) => match stranger.admit(&self.me.nonce) {
                    Ok(arrival) => arrivals.push(arrival),
                    Err(error) => tracing::warn!(%error, "refused a connection"),
                },
                Some(false) if stranger.since.elapsed() < PATIENCE => self.strangers.push(stranger),
                Some(false) | None => tracing::warn!("dropped a connection that did not greet"),
            }
        }
        arrivals
    }

    fn meet(&mut self, socket: Socket) {
        if self.strangers.len() == STRANGERS {
            self.strangers.remove(0);
        }
        self.strangers.push(Stranger {
            socket,
            bytes: [0; GREETING],
            got: 0,
            since: Instant::now(),
        });
    }

    /// What becomes readable when somebody dials or greets.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.unix.as_fd(), self.tcp.as_fd()];
        fds.extend(
            self.strangers
                .iter()
                .map(|stranger| match &stranger.socket {
                    Socket::Unix(socket, _) => socket.as_fd(),
                    Socket::Tcp(socket) => socket.as_fd(),
                }),
        );
        fds
    }
}

impl Stranger {
    /// Reads on: `Some(true)` when the greeting is whole, `None` when the connection is no good.
    fn listen(&mut self) -> Option<bool> {
        let rest = &mut self.bytes[self.got..];
        let read = match &mut self.socket {
            Socket::Unix(socket, fd) => receive_with_fd(socket, rest).map(|(count, received)| {
                if received.is_some() {
                    *fd = received;
                }
                count
            }),
            Socket::Tcp(socket) => socket.read(rest),
        };
        match read {
            Ok(0) => None,
            Ok(count) => {
                self.got += count;
                Some(self.got == GREETING)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(false),
            Err(_) => None,
        }
    }

    fn admit(self, nonce: &[u8; 16]) -> Result<Arrival> {
        let stranger = |what| Err(Error::new(ErrorKind::Transport, what));
        if &self.bytes[..8] != MAGIC || &self.bytes[24..] != nonce {
            return stranger("a stranger dialled: it does not know this job's secret");
        }
        let mut process = [0; 16];
        process.copy_from_slice(&self.bytes[8..24]);
        let stream: Box<dyn Stream> = match self.socket {
            Socket::Unix(socket, Some(fd)) => Box::new(ShmStream::accept(socket, &fd)?),
            Socket::Unix(_, None) => {
                return stranger("a local connection came without shared memory");
            }
            Socket::Tcp(socket) => {
                Box::new(TcpLink::new(socket).map_err(failed("cannot set up a connection"))?)
            }
        };
        Ok(Arrival {
            process: ProcessId(process),
            stream,
        })
    }
}

fn dial_tcp(member: &Member, greeting: &[u8]) -> Result<Box<dyn Stream>> {
    let lost = |error| {
        Error::new(ErrorKind::PeerLost, "a peer cannot be reached")
            .got(error)
            .expected(list(&member.addresses))
            .remedy(
                "check that the peer lives and that FERROCOMM_INTERFACE names a network both share",
            )
    };
    let address = member
        .addresses
        .first()
        .ok_or_else(|| Error::new(ErrorKind::Transport, "a peer told no address"))?;
    // One second at most: a host that does not answer at all; a living one answers at once.
    let deadline = ferrocomm_core::deadline::Deadline::after(Duration::from_secs(1));
    let mut socket = tcp::connect(*address, deadline).map_err(lost)?;
    // The socket's buffer is empty, so the greeting always fits.
    socket.write_all(greeting).map_err(lost)?;
    Ok(Box::new(TcpLink::new(socket).map_err(lost)?))
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn unspecified_like(address: IpAddr) -> IpAddr {
    // A loopback address is listened on alone: nobody from outside needs to come in.
    if address.is_loopback() {
        return address;
    }
    match address {
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    }
}

pub(crate) fn same_user(socket: &UnixStream) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the descriptor is open, and `peer` has room for `size` bytes.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    // SAFETY: takes no argument and cannot fail.
    let own = unsafe { libc::geteuid() };
    outcome == 0 && (peer.uid == own || peer.uid == 0)
}

/// A counter that makes a poll return when another thread writes to it.
pub(crate) struct Bell(File);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: takes plain numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("cannot make an event counter")(
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    pub(crate) fn ring(&self) {
        // A full counter is as good as a rung bell.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

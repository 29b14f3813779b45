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
use ferrocomm_core::ids::{CommId, ProcessId};

use crate::address;
use crate::arena::Arena;
use crate::bootstrap::Member;
use crate::budget::Budget;
use crate::gathering::Offer;
use crate::stream::shm::{RING_BYTES, ShmStream};
use crate::stream::tcp::{self, TcpLink};
use crate::stream::{Stream, StreamKind, receive_with_fd, send_with_fd};

/// What a connection is for: to carry frames, to hand over an arena, only to see who listens.
const LINK: &[u8; 8] = b"FERROCM2";
const ARENA: &[u8; 8] = b"FERROCA2";
const WATCH: &[u8; 8] = b"FERROCW2";
/// purpose, the dialler's process, the listener's nonce, the communicator (0: none)
const GREETING: usize = 8 + 16 + 16 + 8;
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
pub(crate) enum Arrival {
    Link {
        process: ProcessId,
        stream: Box<dyn Stream>,
    },
    Arena {
        comm: CommId,
        offer: Offer,
    },
    /// closed again
    Watch,
}

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
        let greeting = self.greeting(LINK, member, CommId(0));
        match self.kind_for(member) {
            StreamKind::Shm => self.dial_unix(member, &greeting),
            StreamKind::Tcp => dial_tcp(member, &greeting),
        }
    }

    fn greeting(&self, purpose: &[u8; 8], member: &Member, comm: CommId) -> [u8; GREETING] {
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(purpose);
        greeting[8..24].copy_from_slice(&self.me.process.0);
        greeting[24..40].copy_from_slice(&member.nonce);
        greeting[40..].copy_from_slice(&comm.0.to_le_bytes());
        greeting
    }

    /// Makes the arena of `ranks` ranks.
    ///
    /// # Errors
    /// `Resources` when memory runs short.
    pub(crate) fn make_arena(&self, ranks: usize) -> Result<(Arena, OwnedFd)> {
        Arena::create(ranks, &self.budget)
    }

    /// Hands the arena of `comm` to `member`, or word that there is none. Does not wait for it.
    ///
    /// # Errors
    /// `PeerLost` when it does not listen any more.
    pub(crate) fn hand_arena(
        &self,
        member: &Member,
        comm: CommId,
        fd: Option<&OwnedFd>,
    ) -> Result<()> {
        let greeting = self.greeting(ARENA, member, comm);
        let socket = connect_unix(member)?;
        match fd {
            Some(fd) => send_with_fd(&socket, &greeting, fd),
            None => (&socket).write_all(&greeting),
        }
        .map_err(failed("shared memory could not be handed over"))
    }

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
        let greeting = self.greeting(WATCH, member, CommId(0));
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

    fn dial_unix(&self, member: &Member, greeting: &[u8]) -> Result<Box<dyn Stream>> {
        if member.machine != self.me.machine {
            return Err(Error::new(
                ErrorKind::Transport,
                "shared memory reaches this machine alone",
            )
            .remedy("set FERROCOMM_HOST_TRANSPORT=auto for ranks on several machines"));
        }
        let socket = connect_unix(member)?;
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
        let (purpose, rest) = self.bytes.split_at(8);
        let (process, rest) = rest.split_at(16);
        let (theirs, comm) = rest.split_at(16);
        if theirs != nonce {
            return stranger("a stranger dialled: it does not know this job's secret");
        }
        let process = ProcessId(process.try_into().unwrap_or_default());
        let comm = CommId(u64::from_le_bytes(comm.try_into().unwrap_or_default()));
        match (purpose, &self.socket) {
            (purpose, _) if purpose == LINK => {}
            (purpose, Socket::Unix(..)) if purpose == WATCH => return Ok(Arrival::Watch),
            (purpose, Socket::Unix(..)) if purpose == ARENA => {
                let Socket::Unix(_, memory) = self.socket else {
                    return stranger("an arena came through no local socket");
                };
                let from = process;
                return Ok(Arrival::Arena {
                    comm,
                    offer: Offer { from, memory },
                });
            }
            _ => return stranger("a stranger dialled: it speaks another language"),
        }
        let stream: Box<dyn Stream> = match self.socket {
            Socket::Unix(socket, Some(fd)) => Box::new(ShmStream::accept(socket, &fd)?),
            Socket::Unix(_, None) => {
                return stranger("a local connection came without shared memory");
            }
            Socket::Tcp(socket) => {
                Box::new(TcpLink::new(socket).map_err(failed("cannot set up a connection"))?)
            }
        };
        Ok(Arrival::Link { process, stream })
    }
}

fn lost(error: io::Error) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        "a peer on this machine cannot be reached; it has ended or never listened",
    )
    .got(error)
    .remedy("look at what the named rank printed before it ended")
}

/// A connection to the local socket of `member`; nobody has to accept it yet.
fn connect_unix(member: &Member) -> Result<UnixStream> {
    UnixAddress::from_abstract_name(member.unix.as_bytes())
        .and_then(|address| UnixStream::connect_addr(&address))
        .map_err(lost)
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
    // SAFETY: takes no argument and cannot fail.
    let own = unsafe { libc::geteuid() };
    credentials(socket).is_some_and(|peer| peer.uid == own || peer.uid == 0)
}

/// Who is at the other end, as it was when it began to listen or dialled.
fn credentials(socket: &UnixStream) -> Option<libc::ucred> {
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
    (outcome == 0).then_some(peer)
}

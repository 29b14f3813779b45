//! How this process can be reached and how it reaches others: its listening sockets, and the
//! greeting that keeps strangers out. Must not know frames, nor what a communicator
//! does with the memory that is handed over for it.
//!
//! Anybody may connect. A connection is looked at as soon as it is taken in, so that one which has
//! greeted never gives way to those that have not; of those, the newest are kept, for a while. What
//! is refused is told in the log, and a flood of it in sums.

mod greeting;
mod refusals;
mod settings;
#[cfg(test)]
mod strangers;
mod watch;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, ProcessId};

use crate::address;
use crate::arena::Arena;
use crate::bootstrap::Member;
use crate::budget::Budget;
use crate::choosing::Choice;
use crate::gathering::Offer;
use crate::location::Location;
use crate::stream::shm::{RING_BYTES, ShmStream};
use crate::stream::tcp::{self, TcpLink};
use crate::stream::{Stream, StreamKind, receive_with_fd, send_with_fd};
#[cfg(any(test, fuzzing))]
pub use greeting::fuzz_greeting;
use greeting::{GREETING, Greeting, Purpose, Said, read_greeting};
use refusals::Refusals;
pub(crate) use settings::{StreamCount, TransportChoice};
pub(crate) use watch::{Watch, Watched};

/// Half-open connections that are kept, and for how long.
const STRANGERS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that are taken in before the engine goes on with its work.
const AT_ONCE: usize = 256;

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
    streams: StreamCount,
    budget: Budget,
    unix: UnixListener,
    tcp: TcpListener,
    strangers: Vec<Stranger>,
    refusals: Refusals,
    /// The last connection could not be taken in: descriptors are short. It waits at the listening
    /// socket, which is readable as long.
    deaf: bool,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::new(ErrorKind::Transport, what).got(error)
}

pub(crate) fn random() -> Result<[u8; 16]> {
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
            .and_then(|listener| widen(&listener).map(|()| listener))
            .map_err(failed("cannot listen on a TCP port"))?;
        let port = tcp
            .local_addr()
            .map_err(failed("a listening socket has no address"))?
            .port();
        let me = Member {
            process,
            machine: address::machine_id(),
            location: Location::from_environment()?,
            unix: unix_name,
            addresses: vec![SocketAddr::new(local, port)],
            nonce: random()?,
        };
        Ok(Self {
            me,
            choice,
            streams: StreamCount::from_environment()?,
            budget: Budget::of_machine(),
            unix,
            tcp,
            strangers: Vec::new(),
            refusals: Refusals::default(),
            deaf: false,
        })
    }

    /// Which streams may be used, in a word.
    pub(crate) fn choice(&self) -> &'static str {
        match self.choice {
            TransportChoice::Auto => "auto",
            TransportChoice::Shm => "shm",
            TransportChoice::Tcp => "tcp",
        }
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

    /// How many connections carry long messages to `member`.
    pub(crate) fn streams_to(&self, member: &Member) -> usize {
        self.streams.to(member.machine == self.me.machine)
    }

    /// Connects to `member` and greets it. Does not wait for it.
    pub(crate) fn dial(&self, member: &Member) -> Result<Box<dyn Stream>> {
        let greeting = self.greeting(Purpose::Link, member, CommId(0));
        match self.kind_for(member) {
            StreamKind::Shm => self.dial_unix(member, &greeting),
            StreamKind::Tcp => dial_tcp(member, &greeting),
        }
    }

    fn greeting(&self, purpose: Purpose, member: &Member, comm: CommId) -> [u8; GREETING] {
        let process = self.me.process;
        let greeting = Greeting {
            purpose,
            process,
            comm,
        };
        greeting.encode(&member.nonce)
    }

    /// Makes the arena of `ranks` ranks, which copy as `choice` says.
    ///
    /// # Errors
    /// `Resources` when memory runs short.
    pub(crate) fn make_arena(&self, ranks: usize, choice: Choice) -> Result<(Arena, OwnedFd)> {
        Arena::create(ranks, choice, &self.budget)
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
        let greeting = self.greeting(Purpose::Arena, member, comm);
        let socket = connect_unix(member)?;
        match fd {
            Some(fd) => send_with_fd(&socket, &greeting, fd),
            None => (&socket).write_all(&greeting),
        }
        .map_err(failed("shared memory could not be handed over"))
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
        let mut arrivals = Vec::new();
        for stranger in std::mem::take(&mut self.strangers) {
            self.hear(stranger, &mut arrivals);
        }
        self.deaf = false;
        for _ in 0..AT_ONCE {
            let Some(socket) = self.next_local() else {
                break;
            };
            self.meet(socket, &mut arrivals);
        }
        for _ in 0..AT_ONCE {
            let Some(socket) = self.next_remote() else {
                break;
            };
            self.meet(socket, &mut arrivals);
        }
        self.refusals.tell_sum();
        arrivals
    }

    fn next_local(&mut self) -> Option<Socket> {
        let next = self.unix.accept();
        next.map_err(|error| self.heed(&error))
            .ok()
            .map(|(socket, _)| Socket::Unix(socket, None))
    }

    fn next_remote(&mut self) -> Option<Socket> {
        let next = tcp::accept(&self.tcp);
        next.map_err(|error| self.heed(&error))
            .ok()
            .flatten()
            .map(|(socket, _)| Socket::Tcp(socket))
    }

    /// Whether an error of a listening socket means that it cannot take in what waits there.
    fn heed(&mut self, error: &io::Error) {
        if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted
        ) {
            return;
        }
        self.deaf = true;
        // The oldest stranger's descriptor may be the one that is wanting.
        let oldest = (!self.strangers.is_empty()).then(|| self.strangers.remove(0));
        let from = oldest.map_or_else(|| "the listening socket".into(), |oldest| oldest.name());
        let why = format!("a connection cannot be taken in: {error}");
        self.refusals.note(|| from, &why);
    }

    fn meet(&mut self, socket: Socket, arrivals: &mut Vec<Arrival>) {
        let stranger = Stranger::new(socket);
        // An accepted socket waits for bytes, whatever its listener does.
        match stranger.do_not_block() {
            Ok(()) => self.hear(stranger, arrivals),
            Err(error) => self.refusals.note(|| stranger.name(), &error.to_string()),
        }
    }

    /// Reads on what `stranger` says: admits it, keeps it or drops it.
    fn hear(&mut self, mut stranger: Stranger, arrivals: &mut Vec<Arrival>) {
        let why = match stranger.listen(&self.me.nonce) {
            Ok(Said::Part) if stranger.since.elapsed() < PATIENCE => {
                return self.keep(stranger);
            }
            Ok(Said::Part) => "it did not greet in time".to_owned(),
            Ok(Said::Wrong(why)) => why.to_owned(),
            Err(error) => error.to_string(),
            Ok(Said::Whole(greeting)) => {
                let from = stranger.name();
                match stranger.admit(greeting) {
                    Ok(arrival) => return arrivals.push(arrival),
                    Err(error) => return self.refusals.note(|| from, &error.to_string()),
                }
            }
        };
        self.refusals.note(|| stranger.name(), &why);
    }

    fn keep(&mut self, stranger: Stranger) {
        if self.strangers.len() == STRANGERS {
            let oldest = self.strangers.remove(0);
            let why = "too many connections that do not greet";
            self.refusals.note(|| oldest.name(), why);
        }
        self.strangers.push(stranger);
    }

    /// What becomes readable when somebody dials or greets.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = Vec::with_capacity(2 + self.strangers.len());
        // Polling for what cannot be taken in would never sleep.
        if !self.deaf {
            fds.extend([self.unix.as_fd(), self.tcp.as_fd()]);
        }
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
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            bytes: [0; GREETING],
            got: 0,
            since: Instant::now(),
        }
    }

    fn do_not_block(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(socket, _) => socket.set_nonblocking(true),
            Socket::Tcp(socket) => socket.set_nonblocking(true),
        }
    }

    /// Reads on. An error: the connection is no good.
    fn listen(&mut self, nonce: &[u8; 16]) -> io::Result<Said> {
        let rest = &mut self.bytes[self.got..];
        let read = match &mut self.socket {
            Socket::Unix(socket, _) if !same_user(socket) => {
                return Ok(Said::Wrong("it belongs to another user"));
            }
            Socket::Unix(socket, fd) => receive_with_fd(socket, rest).map(|(count, received)| {
                if received.is_some() {
                    *fd = received;
                }
                count
            }),
            Socket::Tcp(socket) => socket.read(rest),
        };
        match read {
            Ok(0) => return Ok(Said::Wrong("it closed without a greeting")),
            Ok(count) => self.got += count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(read_greeting(&self.bytes[..self.got], nonce))
    }

    /// What a connection that has greeted brings.
    fn admit(self, greeting: Greeting) -> Result<Arrival> {
        let Greeting {
            purpose,
            process,
            comm,
        } = greeting;
        let stream: Box<dyn Stream> = match (purpose, self.socket) {
            (Purpose::Link, Socket::Unix(socket, Some(fd))) => {
                Box::new(ShmStream::accept(socket, &fd)?)
            }
            (Purpose::Link, Socket::Tcp(socket)) => {
                Box::new(TcpLink::new(socket).map_err(failed("cannot set up a connection"))?)
            }
            (Purpose::Link, Socket::Unix(_, None)) => {
                return Err(Error::new(
                    ErrorKind::Transport,
                    "a local connection came without shared memory",
                ));
            }
            (Purpose::Arena, Socket::Unix(_, memory)) => {
                let from = process;
                let offer = Offer { from, memory };
                return Ok(Arrival::Arena { comm, offer });
            }
            (Purpose::Watch, Socket::Unix(..)) => return Ok(Arrival::Watch),
            (Purpose::Arena | Purpose::Watch, Socket::Tcp(_)) => {
                return Err(Error::new(
                    ErrorKind::Transport,
                    "what concerns this machine alone came over the network",
                ));
            }
        };
        Ok(Arrival::Link { process, stream })
    }

    /// Who it is, for the log.
    fn name(&self) -> String {
        match &self.socket {
            Socket::Unix(socket, _) => credentials(socket).map_or_else(
                || "a process of this machine".into(),
                |peer| format!("process {} of user {}", peer.pid, peer.uid),
            ),
            Socket::Tcp(socket) => socket.peer_addr().map_or_else(
                |_| "an address that is gone".into(),
                |from| from.to_string(),
            ),
        }
    }
}

/// Lets as many connections wait as the system allows; std allows 128, and dialling the 129th rank
/// fails while this process computes.
fn widen(listener: &TcpListener) -> io::Result<()> {
    // SAFETY: a plain system call on an open descriptor, which listens already.
    if unsafe { libc::listen(listener.as_raw_fd(), libc::c_int::MAX) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
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

//! Drives the protocol of joining with real sockets and a store, on the caller's thread.
//!
//! Sockets do not block. A look at the store does, so it is short. Must not know what messages mean.

mod local;
mod stream;

use std::collections::HashMap;
use std::io::{self, ErrorKind as Io};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::interrupt;
use ferrocomm_core::store::Store;

use super::machine::{Action, Door, Link, Machine, Meeting, Setup};
use super::{JoinRequest, Table};
use local::Met;
use stream::{Socket, Stream};

/// How long a failed rank stays to tell the others.
const LINGER: Duration = Duration::from_millis(500);
/// One attempt to connect blocks no longer than this.
const DIAL: Duration = Duration::from_secs(1);
/// Connections let in at once, before those that are there get their turn.
const ACCEPTED: usize = 64;
/// Bytes read at once: the table of a hundred ranks.
const CHUNK: usize = 16 << 10;

/// Joins as `request` says, with keys below `prefix`.
pub(super) fn drive(
    request: &JoinRequest<'_>,
    facts: String,
    prefix: &str,
    meeting: Option<Meeting>,
    store: &dyn Store,
) -> Result<Table> {
    let setup = Setup {
        rank: request.rank.get(),
        size: request.size as u32,
        facts,
        name: request.name.into(),
        member: request.me.clone(),
        nonce: random()?,
        meeting,
        limit: request.deadline.left(),
    };
    let mut driver = Driver {
        machine: Machine::new(setup),
        start: Instant::now(),
        end: request.deadline.instant(),
        advertise: request.advertise,
        meeting,
        host: None,
        listener: None,
        streams: HashMap::new(),
        incoming: vec![0; CHUNK],
        store,
        prefix,
        published: Vec::new(),
        looks: None,
    };
    driver.run();
    driver.say_goodbye();
    for rank in &driver.published {
        if let Err(error) = store.remove(&driver.key(*rank)) {
            tracing::debug!(%error, "the key used for joining stays in the store");
        }
    }
    driver.machine.into_outcome()
}

/// A listener at `address`, and where it is.
fn listen(address: IpAddr) -> Result<(TcpListener, SocketAddr)> {
    let open = || {
        let listener = TcpListener::bind(SocketAddr::new(address, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    open().map_err(|error| {
        transport("cannot listen for other ranks", &error)
            .got(format!("address {address}"))
            .remedy("name another interface in FERROCOMM_INTERFACE")
    })
}

fn transport(what: &'static str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Transport, format!("{what}: {error}"))
}

/// Random bytes from the kernel.
fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the kernel writes at most `bytes.len()` bytes to `bytes`.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // Requests of up to 256 bytes are filled whole or not at all.
    if filled == bytes.len() as isize {
        return Ok(bytes);
    }
    let error = io::Error::last_os_error();
    Err(Error::new(
        ErrorKind::Resources,
        format!("the kernel gives no random bytes: {error}"),
    ))
}

struct Driver<'a> {
    machine: Machine,
    start: Instant,
    end: Instant,
    /// address of this machine for others
    advertise: IpAddr,
    meeting: Option<Meeting>,
    /// the meeting of this machine, if it is here
    host: Option<UnixListener>,
    listener: Option<TcpListener>,
    streams: HashMap<Link, Stream>,
    /// where reads put what came: one for all, since clearing it costs more than a read
    incoming: Vec<u8>,
    store: &'a dyn Store,
    prefix: &'a str,
    /// whose keys it has set
    published: Vec<u32>,
    /// the key to look for, and for how long
    looks: Option<(u32, Duration)>,
}

impl Driver<'_> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn key(&self, rank: u32) -> String {
        format!("{}/{rank}", self.prefix)
    }

    fn run(&mut self) {
        loop {
            while let Some(action) = self.machine.action() {
                self.act(action);
            }
            if self.machine.outcome().is_some() {
                return;
            }
            if let Err(error) = interrupt::check().and_then(|()| self.wait()) {
                self.machine.fail(error);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Meet { link } => self.meet(link),
            Action::Listen => match listen(self.advertise) {
                Ok((listener, address)) => {
                    self.listener = Some(listener);
                    self.machine.listening(address);
                }
                Err(error) => self.machine.fail(error),
            },
            Action::Publish { rank, value } => {
                self.published.push(rank);
                if let Err(error) = self.store.set(&self.key(rank), &value) {
                    self.machine.fail(error);
                }
            }
            Action::Fetch { rank, patience } => self.looks = Some((rank, patience)),
            Action::Dial { link, address } => self.dial(link, address),
            Action::Send { link, bytes } => {
                if let Some(stream) = self.streams.get_mut(&link) {
                    stream.unsent.extend(bytes);
                    self.flush(link);
                }
            }
            Action::Close { link } if self.machine.outcome().is_none() => {
                self.streams.remove(&link);
            }
            Action::Close { link } => {
                if let Some(stream) = self.streams.get_mut(&link) {
                    stream.closing = true;
                    self.flush(link);
                }
            }
        }
    }

    fn flush(&mut self, link: Link) {
        let Some(stream) = self.streams.get_mut(&link) else {
            return;
        };
        if stream.flush().is_err() {
            self.lose(link);
        }
    }

    fn lose(&mut self, link: Link) {
        self.streams.remove(&link);
        let now = self.now();
        self.machine.closed(now, link);
    }

    fn meet(&mut self, link: Link) {
        let met = match &self.meeting {
            Some(meeting) => local::meet(&meeting.name),
            None => Err(Io::Unsupported.into()),
        };
        let now = self.now();
        match met {
            Ok(Met::Host(listener)) => {
                self.host = Some(listener);
                self.machine.hosting(now);
            }
            Ok(Met::Guest(stream)) => {
                self.add(link, Socket::Unix(stream));
                self.machine.dialed(now, link);
            }
            Err(error) if matches!(error.kind(), Io::WouldBlock | Io::ConnectionRefused) => {
                self.machine.closed(now, link);
            }
            Err(error) => {
                tracing::debug!(%error, "this rank cannot meet those of its machine");
                self.machine.alone(now);
            }
        }
    }

    fn dial(&mut self, link: Link, address: SocketAddr) {
        let left = self.end.saturating_duration_since(Instant::now());
        let limit = DIAL.min(left).max(Duration::from_millis(1));
        let socket = TcpStream::connect_timeout(&address, limit).and_then(Socket::tcp);
        let now = self.now();
        match socket {
            Ok(socket) => {
                self.add(link, socket);
                self.machine.dialed(now, link);
            }
            Err(error) => {
                tracing::debug!(%address, %error, "a rank cannot be reached yet");
                self.machine.closed(now, link);
            }
        }
    }

    fn add(&mut self, link: Link, socket: Socket) {
        self.streams.insert(
            link,
            Stream {
                socket,
                unsent: Vec::new(),
                closing: false,
            },
        );
    }

    /// Waits for something to happen, not longer than until the next look at the interrupt.
    fn wait(&mut self) -> Result<()> {
        if let Some((rank, patience)) = self.looks.take() {
            // Those below come first: what they have said must not wait for the store.
            self.poll(Duration::ZERO)?;
            if self.machine.is_seeking() {
                self.look(rank, patience)?;
            }
            return Ok(());
        }
        let idle = self.machine.wake_at().saturating_sub(self.now());
        self.poll(idle.min(interrupt::INTERVAL))
    }

    fn look(&mut self, rank: u32, patience: Duration) -> Result<()> {
        let patience = patience.max(Duration::from_millis(1));
        let answer = self.store.get(&self.key(rank), patience);
        let now = self.now();
        match answer {
            Ok(value) => self.machine.found(now, &value),
            Err(error) if error.kind() == ErrorKind::StoreTimeout => self.machine.absent(now),
            Err(error) => return Err(error),
        }
        self.machine.tick(now);
        Ok(())
    }

    /// Serves what is ready within `limit`.
    fn poll(&mut self, limit: Duration) -> Result<()> {
        let links: Vec<Link> = self.streams.keys().copied().collect();
        let mut polled: Vec<libc::pollfd> = links
            .iter()
            .map(|link| {
                let stream = &self.streams[link];
                let writes = if stream.unsent.is_empty() {
                    0
                } else {
                    libc::POLLOUT
                };
                pollfd(&stream.socket, libc::POLLIN | writes)
            })
            .collect();
        let host = self.host.as_ref().map(|host| pollfd(host, libc::POLLIN));
        let listener = self.listener.as_ref();
        let listener = listener.map(|listener| pollfd(listener, libc::POLLIN));
        polled.extend(host.into_iter().chain(listener));
        poll(&mut polled, limit).map_err(|error| transport("cannot wait for sockets", &error))?;
        for (link, polled) in links.iter().zip(&polled) {
            if polled.revents & libc::POLLOUT != 0 {
                self.flush(*link);
            }
            if polled.revents & !libc::POLLOUT != 0 {
                self.read(*link);
            }
        }
        if polled[links.len()..].iter().any(|door| door.revents != 0) {
            self.accept(Door::Local)?;
            self.accept(Door::Remote)?;
        }
        let now = self.now();
        self.machine.tick(now);
        Ok(())
    }

    fn read(&mut self, link: Link) {
        let Some(stream) = self.streams.get_mut(&link) else {
            return;
        };
        let now = self.start.elapsed();
        match stream.read(&mut self.incoming) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => self.lose(link),
            Ok(Some(_)) if stream.closing => {}
            Ok(Some(length)) => self.machine.received(now, link, &self.incoming[..length]),
        }
    }

    /// Lets in whoever waits at `door`.
    fn accept(&mut self, door: Door) -> Result<()> {
        for _ in 0..ACCEPTED {
            let accepted = match (door, &self.host, &self.listener) {
                (Door::Local, Some(host), _) => {
                    local::accept(host).map(|stream| stream.map(Socket::Unix))
                }
                (Door::Remote, _, Some(listener)) => {
                    // One that has gone already is none.
                    listener
                        .accept()
                        .map(|(stream, _)| Socket::tcp(stream).ok())
                }
                _ => return Ok(()),
            };
            match accepted {
                Ok(Some(socket)) => {
                    let now = self.now();
                    let link = self.machine.accepted(now, door);
                    self.add(link, socket);
                    // Whoever connects greets at once: most have by now, and another wait is spared.
                    self.read(link);
                }
                Ok(None) => {}
                Err(error) if error.kind() == Io::WouldBlock => return Ok(()),
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    return Err(transport(
                        "cannot accept connections of other ranks",
                        &error,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Delivers what is still to be sent. After a failure it also takes what others still send:
    /// closing over unread bytes would take the report of the failure back.
    fn say_goodbye(&mut self) {
        self.host = None;
        self.listener = None;
        let failed = !matches!(self.machine.outcome(), Some(Ok(_)));
        let end = if failed {
            Instant::now() + LINGER
        } else {
            self.end
        };
        loop {
            self.streams
                .retain(|_, stream| stream.closing && (failed || !stream.unsent.is_empty()));
            let left = end.saturating_duration_since(Instant::now());
            if self.streams.is_empty() || left.is_zero() || self.poll(left).is_err() {
                return;
            }
        }
    }
}

/// Whether `accept` failed for a connection that has gone.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), Io::Interrupted | Io::ConnectionAborted)
}

fn pollfd(socket: &impl AsRawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd: socket.as_raw_fd(),
        events,
        revents: 0,
    }
}

fn poll(polled: &mut [libc::pollfd], limit: Duration) -> io::Result<()> {
    // Rounded up: a wait that ends early would spin.
    let limit = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: the pointer and length are those of a slice, which poll alone uses meanwhile.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit) };
    if ready >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == Io::Interrupted {
        Ok(())
    } else {
        Err(error)
    }
}

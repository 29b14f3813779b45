//! Drives the protocol of joining with real sockets and a store, on the caller's thread.
//!
//! Sockets do not block. A look at the store does, so it is short. Must not know what messages mean.

use std::collections::HashMap;
use std::io::{self, ErrorKind as Io, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::interrupt;
use ferrocomm_core::store::Store;

use super::machine::{Action, Link, Machine, Setup, is_inner};
use super::{JoinRequest, Table};

/// How long a failed rank stays to tell the others.
const LINGER: Duration = Duration::from_millis(500);
/// One attempt to connect blocks no longer than this.
const DIAL: Duration = Duration::from_secs(1);
/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// Joins as `request` says, with keys below `prefix`.
pub(super) fn drive(
    request: &JoinRequest<'_>,
    facts: String,
    prefix: &str,
    store: &dyn Store,
) -> Result<Table> {
    let size = request.size as u32;
    let rank = request.rank.get();
    let listener = is_inner(rank, size).then(|| listen(request)).transpose()?;
    let listening = listener
        .as_ref()
        .map(|listener| listener.local_addr())
        .transpose();
    let setup = Setup {
        rank,
        size,
        facts,
        name: request.name.into(),
        member: request.me.clone(),
        nonce: random()?,
        listening: listening.map_err(|error| transport("cannot tell where it listens", &error))?,
        limit: request.deadline.left(),
    };
    let mut driver = Driver {
        machine: Machine::new(setup),
        start: Instant::now(),
        end: request.deadline.instant(),
        listener,
        streams: HashMap::new(),
        store,
        prefix,
        rank,
        published: false,
        looks: None,
    };
    driver.run();
    driver.say_goodbye();
    if driver.published
        && let Err(error) = store.remove(&driver.key(rank))
    {
        tracing::debug!(%error, "the key used for joining stays in the store");
    }
    driver.machine.into_outcome()
}

fn listen(request: &JoinRequest<'_>) -> Result<TcpListener> {
    TcpListener::bind(SocketAddr::new(request.advertise, 0))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| {
            transport("cannot listen for other ranks", &error)
                .got(format!("address {}", request.advertise))
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

/// A connection and what is still to be sent on it.
struct Stream {
    stream: TcpStream,
    unsent: Vec<u8>,
    /// nothing more will be sent than `unsent`; whatever comes is dropped
    closing: bool,
}

impl Stream {
    /// Sends what the kernel takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(Io::WriteZero.into()),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == Io::WouldBlock => return Ok(()),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.closing {
            self.stream.shutdown(Shutdown::Write)
        } else {
            Ok(())
        }
    }

    /// Reads once; `None` when there is nothing at the moment.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == Io::WouldBlock => return Ok(None),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

struct Driver<'a> {
    machine: Machine,
    start: Instant,
    end: Instant,
    listener: Option<TcpListener>,
    streams: HashMap<Link, Stream>,
    store: &'a dyn Store,
    prefix: &'a str,
    rank: u32,
    published: bool,
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
            Action::Publish { value } => {
                self.published = true;
                if let Err(error) = self.store.set(&self.key(self.rank), &value) {
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

    fn dial(&mut self, link: Link, address: SocketAddr) {
        let left = self.end.saturating_duration_since(Instant::now());
        let limit = DIAL.min(left).max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&address, limit).and_then(ready);
        let now = self.now();
        match stream {
            Ok(stream) => {
                self.add(link, stream);
                self.machine.dialed(now, link);
            }
            Err(error) => {
                tracing::debug!(%address, %error, "a rank cannot be reached yet");
                self.machine.closed(now, link);
            }
        }
    }

    fn add(&mut self, link: Link, stream: TcpStream) {
        self.streams.insert(
            link,
            Stream {
                stream,
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
            if self.machine.outcome().is_none() {
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
                pollfd(&stream.stream, libc::POLLIN | writes)
            })
            .collect();
        polled.extend(
            self.listener
                .as_ref()
                .map(|listener| pollfd(listener, libc::POLLIN)),
        );
        poll(&mut polled, limit).map_err(|error| transport("cannot wait for sockets", &error))?;
        for (link, polled) in links.iter().zip(&polled) {
            if polled.revents & libc::POLLOUT != 0 {
                self.flush(*link);
            }
            if polled.revents & !libc::POLLOUT != 0 {
                self.read(*link);
            }
        }
        if polled
            .get(links.len())
            .is_some_and(|listener| listener.revents != 0)
        {
            self.accept()?;
        }
        let now = self.now();
        self.machine.tick(now);
        Ok(())
    }

    fn read(&mut self, link: Link) {
        let mut buffer = vec![0; CHUNK];
        let Some(stream) = self.streams.get_mut(&link) else {
            return;
        };
        let now = self.start.elapsed();
        match stream.read(&mut buffer) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => self.lose(link),
            Ok(Some(_)) if stream.closing => {}
            Ok(Some(length)) => self.machine.received(now, link, &buffer[..length]),
        }
    }

    fn accept(&mut self) -> Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        match listener.accept() {
            Ok((stream, _)) => {
                // One that has gone already is none.
                if let Ok(stream) = ready(stream) {
                    let now = self.now();
                    let link = self.machine.accepted(now);
                    self.add(link, stream);
                }
                Ok(())
            }
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(transport(
                "cannot accept connections of other ranks",
                &error,
            )),
        }
    }

    /// Delivers what is still to be sent. After a failure it also takes what others still send:
    /// closing over unread bytes would take the report of the failure back.
    fn say_goodbye(&mut self) {
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

/// Whether `accept` failed for a connection that has gone, or for nothing.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        Io::WouldBlock | Io::Interrupted | Io::ConnectionAborted
    )
}

/// The stream, non-blocking and without delay.
fn ready(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
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

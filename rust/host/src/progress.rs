//! Who drives the engine, and how threads sleep.
//!
//! Whoever waits drives: a waiting thread polls the streams itself, spins for as long as that can
//! help, then sleeps in one poll over everything. One thread at a time sleeps there; others that
//! wait sleep on a condition and are woken when their work is done or the place is free. A
//! background thread takes over asynchronous works nobody waits for, and ends when there are none.
//! Must not know collectives or frames.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::interrupt;
use ferrocomm_core::work::Work;

use crate::bell::Bell;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::forks;
use crate::spin::Spin;

/// Longest sleep: interrupts and deadlines are looked at this often.
const NAP: Duration = interrupt::INTERVAL;
/// Where ranks share cores, how often a waiting thread gives its own away before it sleeps. Being
/// woken costs many times as much, and a yield costs little where nobody else wants to run.
pub(crate) const YIELDS: u32 = 300;
/// The same where others have much to do before they come.
pub(crate) const FEW_YIELDS: u32 = 20;
/// How often silent peers are looked at.
const PROBE: Duration = Duration::from_millis(500);
/// An idle background thread ends after so long.
const IDLE: Duration = Duration::from_secs(5);
/// A processor that was offered to others is back within this time where nobody but peers wants it;
/// within the longer one if they did something for this process meanwhile.
const TURN: Duration = Duration::from_micros(100);
const LONG_TURN: Duration = Duration::from_millis(1);
/// For so long nobody spins after another program took the processor.
const CROWDED: Duration = Duration::from_millis(100);
/// A wait is soon over, or it takes long: for so long it only looks, and offers the processor to nobody.
const SOON: Duration = Duration::from_micros(50);
/// For a while after it was needed, the background thread looks this often whether it is again. Waking
/// it for every operation costs many times what most operations do, and most are waited for by then.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
const FOR_A_WHILE: Duration = Duration::from_millis(5);
/// Rounds between looks for new connections while spinning.
const ACCEPT_EVERY: u64 = 1024;

#[derive(Default)]
struct Turn {
    /// a thread sleeps over the streams
    taken: bool,
    /// the background thread runs
    background: bool,
    /// how often the background thread was called
    calls: u64,
    /// threads that sleep until they are told of a change
    sleepers: usize,
}

/// The engine of one process, shared by its threads.
pub(crate) struct Progress {
    generation: u32,
    core: Mutex<Core>,
    bell: Arc<Bell>,
    asleep: AtomicBool,
    waiters: AtomicUsize,
    asynchronous: AtomicUsize,
    spin: Arc<Spin>,
    made: Instant,
    /// nanoseconds after `made` until which nobody spins; 0 at first
    crowded_until: AtomicU64,
    rounds: AtomicU64,
    turn: Mutex<Turn>,
    changed: Condvar,
}

impl Progress {
    pub(crate) fn new(endpoint: Endpoint) -> Result<Arc<Self>> {
        let bell = Arc::new(Bell::new(&endpoint.me.unix)?);
        let core = Core::new(endpoint, bell.clone());
        let spin = core.spin.clone();
        Ok(Arc::new(Self {
            generation: forks::generation(),
            core: Mutex::new(core),
            bell,
            asleep: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            asynchronous: AtomicUsize::new(0),
            spin,
            made: Instant::now(),
            crowded_until: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            turn: Mutex::new(Turn::default()),
            changed: Condvar::new(),
        }))
    }

    /// Whether this process made it, and no ancestor.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == forks::generation()
    }

    /// How long a waiting thread spins before it sleeps.
    pub(crate) fn spin(&self) -> Duration {
        self.spin.long()
    }

    /// How long a wait that begins now spins: not at all for a while after the processor was lost to
    /// others.
    pub(crate) fn spin_from(&self, now: Instant) -> Duration {
        let crowded = self.crowded_until.load(Ordering::Relaxed);
        if crowded > 0 && nanos(now - self.made) < crowded {
            return Duration::ZERO;
        }
        self.spin()
    }

    /// Judges a processor that a spinning thread offered to others for `given_way`. Short turns are
    /// those of peers; who is kept away for longer, or for nothing, shares it with another program,
    /// and is served sooner asleep: the kernel runs a woken thread before one that was busy all along.
    pub(crate) fn lost_processor(&self, given_way: Duration, moved: bool, now: Instant) -> bool {
        if given_way < if moved { LONG_TURN } else { TURN } {
            return false;
        }
        let until = nanos(now - self.made).saturating_add(nanos(CROWDED));
        self.crowded_until.store(until, Ordering::Relaxed);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic under the lock fails its communicator at the border; the table stays consistent
        // enough to fail the others in words instead of hanging them.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` under the lock, then the callbacks of works that it finished, with no lock held.
    pub(crate) fn with<R>(self: &Arc<Self>, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = act(&mut core);
        core.run_ready();
        self.release(core);
        result
    }

    /// The same for an act that mostly finishes nothing.
    pub(crate) fn look<R>(self: &Arc<Self>, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let asynchronous = core.asynchronous;
        let result = act(&mut core);
        if core.has_news() || core.asynchronous != asynchronous {
            core.run_ready();
            self.release(core);
        }
        result
    }

    fn release(self: &Arc<Self>, mut core: MutexGuard<'_, Core>) {
        let finished = std::mem::take(&mut core.finished);
        let asynchronous = core.asynchronous;
        // Under the lock: of two threads that let go of it one after the other, the later one's number
        // stays, or nobody would drive what it has issued.
        let before = self.asynchronous.swap(asynchronous, Ordering::SeqCst);
        drop(core);
        let completed = !finished.is_empty();
        for (work, callbacks) in finished {
            if !callbacks.is_empty() {
                work.run(callbacks);
            }
        }
        if completed {
            self.wake();
        }
        if asynchronous > before {
            self.call_background();
        }
    }

    /// Wakes every sleeping thread to look again.
    fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.bell.ring();
        }
        if self.waiters.load(Ordering::SeqCst) > 1 || self.asynchronous.load(Ordering::SeqCst) > 0 {
            self.tell(&self.turn());
        }
    }

    /// Tells the threads that sleep until then that something has changed, if there are any.
    fn tell(&self, turn: &Turn) {
        if turn.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Sleeps until something has changed, at most `nap`.
    fn await_change<'a>(
        &self,
        mut turn: MutexGuard<'a, Turn>,
        nap: Duration,
    ) -> MutexGuard<'a, Turn> {
        turn.sleepers += 1;
        let mut turn = self.nap(turn, nap);
        turn.sleepers -= 1;
        turn
    }

    fn nap<'a>(&self, turn: MutexGuard<'a, Turn>, nap: Duration) -> MutexGuard<'a, Turn> {
        self.changed
            .wait_timeout(turn, nap)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn call_background(self: &Arc<Self>) {
        let mut turn = self.turn();
        turn.calls += 1;
        if turn.background {
            self.tell(&turn);
            return;
        }
        let progress = self.clone();
        let spawned = std::thread::Builder::new()
            .name("ferrocomm".into())
            .spawn(move || progress.guarded_background());
        match spawned {
            Ok(_) => turn.background = true,
            // Works then progress when somebody waits for them.
            Err(error) => tracing::warn!(%error, "no background thread"),
        }
    }

    /// A panic fails every communicator in words; without the thread nobody would ever hear of it.
    fn guarded_background(self: Arc<Self>) {
        let loops = std::panic::AssertUnwindSafe(|| self.background());
        if let Err(panic) = std::panic::catch_unwind(loops) {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            let error = Error::new(ErrorKind::Panic, "the engine's background thread panicked")
                .got(text)
                .remedy("report this with the message; other processes are not affected");
            {
                let mut turn = self.turn();
                turn.background = false;
                turn.taken = false;
            }
            self.with(|core| core.fail_all(&error));
        }
    }

    fn background(self: &Arc<Self>) {
        let (mut calls, mut needed) = (0, Instant::now());
        loop {
            let mut turn = self.turn();
            let idle = Instant::now();
            while self.waiters.load(Ordering::SeqCst) > 0
                || self.asynchronous.load(Ordering::SeqCst) == 0
            {
                if self.asynchronous.load(Ordering::SeqCst) == 0 && idle.elapsed() >= IDLE {
                    turn.background = false;
                    return;
                }
                let now = Instant::now();
                if calls != turn.calls {
                    (calls, needed) = (turn.calls, now);
                }
                turn = if now - needed < FOR_A_WHILE {
                    self.nap(turn, LOOK_AGAIN)
                } else {
                    self.await_change(turn, IDLE)
                };
            }
            drop(turn);
            if !self.step() {
                let awake = || {
                    self.asynchronous.load(Ordering::SeqCst) == 0
                        || self.waiters.load(Ordering::SeqCst) > 0
                };
                self.sleep(awake, NAP);
            }
        }
    }

    /// One round of the engine; whether anything moved.
    pub(crate) fn step(self: &Arc<Self>) -> bool {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        self.with(|core| {
            if round.is_multiple_of(ACCEPT_EVERY) {
                core.accept_arrivals();
            }
            core.poll()
        })
    }

    /// Waits until `done`, driving the engine. `limit` ends the wait earlier.
    ///
    /// # Errors
    /// `Timeout` when `limit` passed, `Interrupted` when the client wants its thread back.
    pub(crate) fn wait_until(
        self: &Arc<Self>,
        done: impl Fn() -> bool,
        limit: Option<Duration>,
    ) -> Result<()> {
        if done() {
            return Ok(());
        }
        let _waiting = Waiting::new(self);
        self.drive(&done, limit)
    }

    /// Waits until `work` is complete and returns how it ended. When `limit` passes first it fails with a
    /// time-out.
    ///
    /// # Errors
    /// How it ended; `Interrupted`, and it goes on.
    pub(crate) fn wait_for(
        self: &Arc<Self>,
        work: &Arc<Work>,
        limit: Option<Duration>,
    ) -> Result<()> {
        if let Err(error) = self.wait_until(done(work), limit) {
            // An interrupt ends the wait, not the operation: the caller decides about that.
            if error.kind() != ErrorKind::Timeout {
                return Err(error);
            }
            self.with(|core| {
                if let Some(op) = core.op_of(work) {
                    core.time_out(op, limit);
                }
            });
        }
        // The work may be completing on another thread this very moment.
        self.wait_until(done(work), None)?;
        work.outcome().unwrap_or(Ok(()))
    }

    fn drive(self: &Arc<Self>, done: &impl Fn() -> bool, limit: Option<Duration>) -> Result<()> {
        let start = Instant::now();
        let mut spin = self.spin_from(start);
        let mut given_way = Duration::ZERO;
        let mut quiet_since = start;
        let mut asked = start;
        // The ranks themselves share processors; other programs do not let one yield in vain.
        let crowded = self.spin().is_zero();
        let mut yields = 0;
        loop {
            let moved = self.step();
            if done() {
                return Ok(());
            }
            let now = Instant::now();
            if self.lost_processor(given_way, moved, now) {
                spin = Duration::ZERO;
            }
            given_way = Duration::ZERO;
            if moved {
                quiet_since = now;
                yields = 0;
                continue;
            }
            if now - quiet_since < spin.min(SOON) {
                std::hint::spin_loop();
                continue;
            }
            if now - quiet_since < spin {
                // A peer on this very processor gets on meanwhile.
                std::thread::yield_now();
                given_way = now.elapsed();
                continue;
            }
            if crowded && yields < FEW_YIELDS {
                yields += 1;
                std::thread::yield_now();
                continue;
            }
            if limit.is_some_and(|limit| now - start >= limit) {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "the wait's own limit passed",
                ));
            }
            if now - asked >= NAP {
                asked = now;
                interrupt::check()?;
            }
            self.with(|core| core.check_deadlines(now));
            if done() {
                return Ok(());
            }
            let left = limit.map_or(NAP, |limit| limit.saturating_sub(now - start));
            self.sleep(done, NAP.min(left));
        }
    }

    /// Sleeps until something may have happened, at most `nap`; not at all when `awake` holds.
    fn sleep(self: &Arc<Self>, awake: impl Fn() -> bool, nap: Duration) {
        let mut turn = self.turn();
        if turn.taken {
            if !awake() {
                // Whoever sleeps over the streams may be the background thread: it gives way.
                drop(self.await_change(turn, nap));
            }
            return;
        }
        turn.taken = true;
        drop(turn);
        self.doze(awake, nap);
        let mut turn = self.turn();
        turn.taken = false;
        // Whoever waits for the place has said so before it looked at `taken`.
        self.tell(&turn);
    }

    fn doze(self: &Arc<Self>, awake: impl Fn() -> bool, nap: Duration) {
        let mut core = self.lock();
        let arrivals = 1 + core.endpoint.fds().len();
        let Some((mut fds, nap)) = prepare(&mut core, &self.bell, nap) else {
            self.release(core);
            return;
        };
        self.asleep.store(true, Ordering::SeqCst);
        self.release(core);
        std::sync::atomic::fence(Ordering::SeqCst);
        let mut found = 0;
        if !awake() {
            let millis = i32::try_from(nap.as_millis()).unwrap_or(i32::MAX).max(1);
            let count = fds.len() as libc::nfds_t;
            // SAFETY: `fds` holds `count` entries for the length of the call.
            found = unsafe { libc::poll(fds.as_mut_ptr(), count, millis) };
        }
        self.asleep.store(false, Ordering::SeqCst);
        let shown = |fds: &[libc::pollfd]| fds.iter().any(|entry| entry.revents != 0);
        if shown(&fds[..1]) {
            self.bell.silence();
        }
        let mut core = self.lock();
        core.get_up();
        core.look_at_watches();
        for (key, _) in links(&core) {
            if let Some(link) = core.links.get_mut(key) {
                for channel in &mut link.channels {
                    channel.stream.after_sleep(true);
                }
            }
        }
        // Those that do not greet are dropped after a while.
        if found <= 0 || shown(&fds[1..arrivals]) {
            core.accept_arrivals();
        }
        let now = Instant::now();
        if core.probed.is_none_or(|last| now - last >= PROBE) {
            core.probed = Some(now);
            core.probe();
        }
        core.watch_missing(now);
        core.ask_awaited(now);
        core.check_deadlines(now);
        core.run_ready();
        self.release(core);
    }
}

/// A thread that waits, and so drives: while there is one, the background thread rests.
struct Waiting<'a>(&'a Progress);

impl<'a> Waiting<'a> {
    fn new(progress: &'a Progress) -> Self {
        progress.waiters.fetch_add(1, Ordering::SeqCst);
        Self(progress)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::SeqCst);
        if self.0.asynchronous.load(Ordering::SeqCst) > 0 {
            self.0.tell(&self.0.turn());
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn links(core: &Core) -> Vec<(crate::slab::Key, usize)> {
    core.links
        .iter()
        .map(|(key, link)| (key, link.channels.len()))
        .collect()
}

/// Announces the sleep to every stream and lists what to poll; `None` when there is something to
/// do already.
fn prepare(
    core: &mut Core,
    bell: &Bell,
    longest: Duration,
) -> Option<(Vec<libc::pollfd>, Duration)> {
    let mut busy = false;
    let mut announced = Vec::new();
    for (key, channels) in links(core) {
        for index in 0..channels {
            if let Some(channel) = core
                .links
                .get_mut(key)
                .and_then(|l| l.channels.get_mut(index))
                // An ended stream reports its end for ever; nobody would sleep, and look at the
                // other sockets, again.
                .filter(|channel| !channel.ended)
            {
                if channel.stream.before_sleep() {
                    busy = true;
                } else {
                    announced.push((key, index));
                }
            }
        }
    }
    if busy || !core.lie_down() {
        for (key, index) in announced {
            if let Some(channel) = core
                .links
                .get_mut(key)
                .and_then(|l| l.channels.get_mut(index))
            {
                channel.stream.after_sleep(false);
            }
        }
        return None;
    }
    let entry = |fd: i32, events| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut fds = vec![entry(bell.fd().as_raw_fd(), libc::POLLIN)];
    fds.extend(
        core.endpoint
            .fds()
            .iter()
            .map(|fd| entry(fd.as_raw_fd(), libc::POLLIN)),
    );
    fds.extend(
        core.watches
            .iter()
            .map(|watch| entry(watch.fd().as_raw_fd(), libc::POLLIN)),
    );
    for (_, link) in core.links.iter() {
        for channel in link.channels.iter().filter(|channel| !channel.ended) {
            let write = if channel.stream.watch_writable() {
                libc::POLLOUT
            } else {
                0
            };
            fds.push(entry(channel.stream.fd().as_raw_fd(), libc::POLLIN | write));
        }
    }
    let nap = core.next_deadline.map_or(longest, |at| {
        at.saturating_duration_since(Instant::now()).min(longest)
    });
    Some((fds, nap))
}

/// For a wait on one work.
pub(crate) fn done(work: &Arc<Work>) -> impl Fn() -> bool + '_ {
    move || work.is_complete()
}

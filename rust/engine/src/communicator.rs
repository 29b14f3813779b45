//! Communicators: joined, split, asked, closed. How they issue operations is in `issue`. Must not
//! know how ranks meet or data moves: that is the group's.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ferrocomm_core::call::{Operation, Region};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::group::{Group, Part};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::abort_hook::AbortHook;
use crate::backend::{Backend, Joining};
use crate::check::{Checker, invalid};
use crate::counters::{Counters, raise};
use crate::deferred::Collecting;
use crate::place::Place;
use crate::process::{generation, process};
use crate::recorder::{Facts, Label};
use crate::registered::Registered;
use crate::shared::Shared;
use crate::state::{Event, State};

/// The time-out of a communicator that was given none.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// How a communicator is made.
#[derive(Clone, Debug)]
pub struct CommunicatorOptions {
    /// the engine that serves it
    pub backend: Backend,
    /// its name, the same on every rank
    pub name: Arc<str>,
    /// this rank
    pub rank: i32,
    /// number of ranks
    pub size: i32,
    /// default time-out of joining and of every operation; `None`: 600 s
    pub timeout: Option<Duration>,
    /// number of the device whose memory it serves; the host has none
    pub device: i32,
    /// wishes for the engine, by name
    pub hints: Vec<(String, String)>,
}

/// A group of ranks that call operations together. Any thread may use it.
pub struct Communicator {
    shared: Arc<Shared>,
    backend: Backend,
    /// of the process it was made in
    generation: u32,
    /// nanoseconds
    timeout: AtomicU64,
    /// held while an operation gets its number and is issued, and by nothing else
    pub(crate) order: Mutex<()>,
    /// collectives and splits issued; changed under `order`
    pub(crate) collectives: AtomicU64,
    /// sends, receives and batches issued; changed under `order`
    pub(crate) parts: AtomicU64,
    group: OnceLock<Arc<dyn Group>>,
    counters: Counters,
    pub(crate) registered: Registered,
}

impl Communicator {
    /// Makes a communicator; every rank calls it, and it returns when all have joined.
    ///
    /// # Errors
    /// `InvalidArgument`; whatever kept the ranks from joining, on all of them; `Timeout` names
    /// the ranks that did not come.
    pub fn create(options: CommunicatorOptions, store: &dyn Store) -> Result<Arc<Self>> {
        let CommunicatorOptions {
            backend,
            name,
            rank,
            size,
            timeout,
            device,
            hints,
        } = options;
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT);
        let (group_rank, group_size) = checked(&name, rank, size)?;
        let communicator = Self::unconfigured(
            backend,
            Label {
                number: process().number(),
                name: name.clone(),
                engine: backend.name(),
                rank: group_rank,
                size: group_size,
                members: None,
            },
            timeout,
        );
        let joining = Joining {
            name,
            rank: group_rank,
            size: group_size,
            timeout,
            device,
            hints,
        };
        let group = backend
            .join(joining, store)
            .map_err(|error| communicator.shared.named_as(error, "join"))
            .inspect_err(|error| {
                communicator.shared.apply(Event::Failure(error.clone()));
            })?;
        Ok(communicator.joined(group))
    }

    /// A communicator that nobody has joined yet, in the list of this process.
    pub(crate) fn unconfigured(backend: Backend, label: Label, timeout: Duration) -> Arc<Self> {
        let process = process();
        let communicator = Arc::new(Self {
            shared: Arc::new(Shared::new(label)),
            backend,
            generation: generation(),
            timeout: AtomicU64::new(nanoseconds(timeout)),
            order: Mutex::new(()),
            collectives: AtomicU64::new(0),
            parts: AtomicU64::new(0),
            group: OnceLock::new(),
            counters: Counters::default(),
            registered: Registered::default(),
        });
        process.register(Arc::downgrade(&communicator));
        communicator
    }

    pub(crate) fn joined(self: Arc<Self>, group: Arc<dyn Group>) -> Arc<Self> {
        // Nobody else has the communicator yet, so the place is empty.
        self.group.get_or_init(|| group);
        self.shared.apply(Event::Joined);
        self
    }

    /// Where it stands; another may follow it there.
    pub(crate) fn place(&self) -> Place {
        Place {
            backend: self.backend,
            name: self.label().name.clone(),
            rank: self.rank(),
            size: self.size(),
            timeout: self.timeout(),
            abort_hook: self.shared.abort_hook.get(),
        }
    }

    /// Takes over the client's memory that `before` was told of, which is ending.
    pub(crate) fn inherit_registered(&self, before: &Self) {
        let group = self.group_if_joined();
        for (address, bytes) in self.registered.take_over(&before.registered) {
            let prepared = group
                .as_ref()
                .map(|group| group.register_memory(Region { address, bytes }));
            if let Some(Err(error)) = prepared {
                tracing::warn!(%error, address, bytes, "memory is not prepared any more");
            }
        }
    }

    /// Gives it a group that works can be waited on with; it stays without members.
    pub(crate) fn attach(&self, group: Arc<dyn Group>) {
        self.group.get_or_init(|| group);
    }

    /// The group, if it has one in which it may still have something pending.
    pub(crate) fn group_if_joined(&self) -> Option<Arc<dyn Group>> {
        let joined = !matches!(*self.shared.state(), State::Unconfigured);
        self.group.get().filter(|_| joined).cloned()
    }

    /// Another communicator follows in its place: it serves no more.
    pub(crate) fn supersede(&self) {
        let cause = Error::new(
            ErrorKind::State,
            "the communicator was reconfigured since this was made",
        );
        // Nothing went wrong that the client has to be told of.
        self.shared.abort_hook.set(None);
        self.shared.apply(Event::Failure(cause));
    }

    pub(crate) fn is_finalized(&self) -> bool {
        matches!(*self.shared.state(), State::Finalized)
    }

    #[cfg(test)]
    pub(crate) fn of_group(name: &str, group: Arc<dyn Group>) -> Arc<Self> {
        let label = Label {
            number: process().number(),
            name: name.into(),
            engine: "test",
            rank: group.rank(),
            size: group.size(),
            members: None,
        };
        Self::unconfigured(Backend::Host, label, DEFAULT_TIMEOUT).joined(group)
    }

    #[cfg(test)]
    pub(crate) fn pretend_inherited(self: Arc<Self>) -> Arc<Self> {
        let mut this = Arc::try_unwrap(self).unwrap_or_else(|_| unreachable!("the only handle"));
        this.generation = this.generation.wrapping_sub(1);
        Arc::new(this)
    }

    /// The communicator of `ranks`, in that order; `None` when this rank is not among them. Every
    /// rank of this communicator calls it, in order with its collectives, each with the ranks of
    /// the group it will be in. `timeout` is the default of the new one; `None`: of this one. `hints`
    /// count for the new one beside those of this one.
    ///
    /// # Errors
    /// `InvalidArgument`, also for a hint with a value that does not fit; the cause of failure of this
    /// communicator.
    pub fn split(
        &self,
        ranks: &[i32],
        name: &str,
        timeout: Option<Duration>,
        hints: &[(String, String)],
    ) -> Result<Option<Arc<Self>>> {
        self.try_split(ranks, name, timeout, hints)
            .map_err(|error| self.named(error, Operation::Split))
    }

    fn try_split(
        &self,
        ranks: &[i32],
        name: &str,
        timeout: Option<Duration>,
        hints: &[(String, String)],
    ) -> Result<Option<Arc<Self>>> {
        let group = self.group()?;
        let (members, is_member) = self.checker().members(ranks)?;
        if name.is_empty() {
            return Err(invalid("the communicator's name is empty"));
        }
        let timeout = self.timeout_for(timeout)?;
        // The order is held until the split is over: where it moves data, it is one of the group's
        // collectives. Callbacks wait until it is let go.
        let collecting = Collecting::start();
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.admit()?;
        let sequence = raise(&self.collectives, 1);
        let facts = Facts::bare(Operation::Split, Dtype::Byte);
        let recorder = &process().recorder;
        let ticket = recorder.schedule(self.label(), &facts, sequence, timeout);
        recorder.start(ticket);
        self.counters.add(Operation::Split, 0);
        let part = Part {
            name,
            sequence,
            timeout,
            hints,
        };
        let child = if is_member {
            group.split(&members, &part).map(Some)
        } else {
            group.stand_aside(&part).map(|()| None)
        };
        drop(order);
        drop(collecting);
        let child = child.map_err(|error| self.named(error, Operation::Split).sequence(sequence));
        self.shared.settle(
            ticket,
            Operation::Split,
            &child.as_ref().map(drop).map_err(Clone::clone),
        );
        Ok(child?.map(|group| {
            let label = Label {
                number: process().number(),
                name: name.into(),
                engine: self.backend.name(),
                rank: group.rank(),
                size: group.size(),
                members: Some(self.global_ranks(&members)),
            };
            Self::unconfigured(self.backend, label, timeout).joined(group)
        }))
    }

    fn global_ranks(&self, members: &[GroupRank]) -> Arc<[u32]> {
        let own = self.label().members.as_deref();
        members
            .iter()
            .map(|rank| own.map_or(rank.get(), |own| own[rank.index()]))
            .collect()
    }

    /// Waits for what is pending, then closes the communicator; every rank calls it. Again: nothing.
    ///
    /// # Errors
    /// What a peer reported and no call has raised yet, or what kept this from ending; the
    /// communicator is finalized all the same. `Interrupted` leaves it as it was.
    pub fn finalize(&self) -> Result<()> {
        self.check_process()?;
        let before = {
            // Once this is through, no operation gets a number any more.
            let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.apply(Event::Finalize)
        };
        if matches!(before, State::Finalized) {
            return Ok(());
        }
        // Without members there is nothing to wait for.
        let outcome = self
            .group
            .get()
            .map_or(Ok(()), |group| group.finalize(self.timeout()));
        match (before, outcome) {
            (State::Ready, Err(error)) => {
                if error.kind() == ErrorKind::Interrupted {
                    self.shared.enter(&mut self.shared.state(), State::Ready);
                }
                Err(self.shared.named_as(error, "finalize"))
            }
            // A failure or an abort is known already; finalizing after it is how it is put away.
            _ => Ok(()),
        }
    }

    /// Waits until every asynchronous operation is over that was started before, whatever came of it.
    ///
    /// # Errors
    /// `Interrupted`, when the client wants its thread back.
    pub fn wait_pending(&self) -> Result<()> {
        self.check_process()?;
        self.shared.pending.wait_for_none()
    }

    /// Fails everything pending on this rank and wakes its waiters. Never waits for a peer. Again:
    /// nothing.
    pub fn abort(&self) {
        if self.is_inherited() {
            return;
        }
        let before = self.shared.apply(Event::Abort);
        if let (State::Unconfigured | State::Ready | State::Failed(_), Some(group)) =
            (before, self.group.get())
        {
            group.abort();
        }
    }

    /// Replaces the function that is told when the communicator fails and before a process ends. What
    /// the client ends itself it is not told.
    pub fn set_abort_hook(&self, hook: Option<AbortHook>) {
        self.shared.abort_hook.set(hook);
    }

    /// For whoever gives up the communicator: aborts what is still pending.
    pub fn close(&self) {
        if !self.is_inherited() && self.shared.pending.any() {
            self.abort();
        }
    }

    /// Puts the communicator out of use after a panic in a call on it.
    pub fn fail_with_panic(&self, message: &str) {
        let error = Error::new(ErrorKind::Panic, message.to_owned());
        self.shared
            .apply(Event::Failure(self.shared.named_as(error, "call")));
        if let Some(group) = self.group.get().filter(|_| !self.is_inherited()) {
            group.abort();
        }
    }

    fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    /// Whether this process may use the communicator.
    ///
    /// # Errors
    /// `Forked`, in a child of the process that made it.
    #[inline(always)]
    pub fn check_process(&self) -> Result<()> {
        if self.is_inherited() {
            return Err(self.inherited());
        }
        Ok(())
    }

    #[cold]
    fn inherited(&self) -> Error {
        Error::new(ErrorKind::Forked, "the communicator was made before a fork")
            .remedy("make a new communicator in the child")
            .communicator(&self.label().name)
            .rank(self.rank())
    }

    #[cold]
    fn no_group(&self) -> Error {
        match self.admit() {
            Err(error) => error,
            Ok(()) => Error::new(ErrorKind::State, "the communicator has no group"),
        }
    }

    /// The group, for those who may use it.
    #[inline(always)]
    pub(crate) fn group(&self) -> Result<&Arc<dyn Group>> {
        self.check_process()?;
        self.group.get().ok_or_else(|| self.no_group())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn label(&self) -> &Arc<Label> {
        &self.shared.label
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn checker(&self) -> Checker {
        Checker {
            backend: self.backend,
            rank: self.rank(),
            size: self.size(),
        }
    }

    /// Whether an operation may start.
    #[inline(always)]
    pub(crate) fn admit(&self) -> Result<()> {
        self.shared.admit()
    }

    /// Takes over a failure that the group noticed while no operation was pending.
    fn refresh(&self) -> MutexGuard<'_, State> {
        let cause = self.group.get().and_then(|group| group.failure());
        if let Some(cause) = cause {
            let cause = cause.communicator(&self.label().name).rank(self.rank());
            self.shared.apply(Event::Failure(cause));
        }
        self.shared.state()
    }

    /// The state in one word, static and nul-terminated for C.
    pub fn state_name(&self) -> &'static CStr {
        self.refresh().name()
    }

    /// Why the communicator has failed, when it has.
    pub fn failure(&self) -> Option<Error> {
        match &*self.refresh() {
            State::Failed(cause) => Some(cause.clone()),
            _ => None,
        }
    }

    /// Adds the facts this layer knows to an error.
    pub fn named(&self, error: Error, operation: Operation) -> Error {
        self.shared.named(error, operation)
    }

    /// A rank given by a client.
    ///
    /// # Errors
    /// `InvalidArgument`, when it is none of this communicator.
    pub fn rank_argument(&self, name: &'static str, rank: i32) -> Result<GroupRank> {
        self.checker().rank(name, rank).map_err(|error| {
            error
                .communicator(&self.label().name)
                .rank(self.label().rank)
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.label().name
    }

    /// The engine that serves it.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// This process's rank.
    pub fn rank(&self) -> GroupRank {
        self.label().rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.label().size
    }

    /// How data travels: `shm`, `tcp`, `shm+tcp` or `none`.
    pub fn transport(&self) -> String {
        self.group
            .get()
            .map_or_else(|| "none".into(), |group| group.transport())
    }

    /// Collectives and splits issued so far.
    pub fn sequence(&self) -> u64 {
        self.collectives.load(Ordering::Relaxed)
    }

    /// The default time-out.
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// Sets the default time-out of operations that start from now on.
    ///
    /// # Errors
    /// `InvalidArgument` for zero.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        positive(timeout).map_err(|error| self.shared.named_as(error, "set_timeout"))?;
        self.timeout.store(nanoseconds(timeout), Ordering::Relaxed);
        Ok(())
    }

    /// The time-out of an operation: its own before the communicator's.
    #[inline(always)]
    pub(crate) fn timeout_for(&self, own: Option<Duration>) -> Result<Duration> {
        positive(own.unwrap_or_else(|| self.timeout()))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Its locks may be held by threads that exist in the parent alone.
            std::mem::forget(self.group.take());
        } else {
            self.close();
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[inline(always)]
pub(crate) fn positive(timeout: Duration) -> Result<Duration> {
    if timeout.is_zero() {
        return Err(not_positive());
    }
    Ok(timeout)
}

#[cold]
fn not_positive() -> Error {
    invalid("the time-out is not positive")
        .got("0 ns")
        .expected("at least 1 ns")
}

pub(crate) fn checked(name: &str, rank: i32, size: i32) -> Result<(GroupRank, usize)> {
    if name.is_empty() {
        return Err(invalid("the communicator's name is empty"));
    }
    let outside = || {
        invalid("rank and size do not fit")
            .got(format!("rank {rank}, size {size}"))
            .expected("0 <= rank < size")
    };
    let (rank, size) = (u32::try_from(rank), u32::try_from(size));
    let (Ok(rank), Ok(size)) = (rank, size) else {
        return Err(outside());
    };
    if rank < size {
        Ok((GroupRank::new(rank), size as usize))
    } else {
        Err(outside())
    }
}

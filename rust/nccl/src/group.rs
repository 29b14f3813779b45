//! One communicator of the engine: made, split, asked, ended.

use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Call, Collective, Mode, Stream, Task};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::store::Store;
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};
use ferrocomm_nccl_sys::sys::{NCCL_SPLIT_NOCOLOR, ncclComm_t, ncclResult_t, ncclUniqueId};
use ferrocomm_nccl_sys::{Nccl, symbol};

use crate::bootstrap::{ID_BYTES, Id, Meeting, roots};
use crate::bounded::bounded;
use crate::capture::{Captured, LastCaptured, keep_in};
use crate::driver::{self, Device, Event, OwnStream, Relaxed, Token, driver};
use crate::errors;
use crate::events::{Events, Pooled};
use crate::flights::{Flight, Flights};
use crate::handle::{Comm, Handle, finished};
use crate::hints::Hints;
use crate::issuing::{is_harmless, put};
use crate::library::library;
use crate::plan::{Place, plan};
use crate::watchdog::{Watchdog, Watched};

/// Told of a failure before it ends the process.
pub type OnFatal = Arc<dyn Fn(&Error) + Send + Sync>;

/// How long giving up a communicator waits for a thread that is in a call of it.
const COURTESY: Duration = Duration::from_secs(1);

/// What a group is made with.
#[derive(Clone)]
pub struct GroupOptions {
    /// the same on all ranks
    pub name: Arc<str>,
    /// this rank
    pub rank: GroupRank,
    /// number of ranks
    pub size: usize,
    /// how long joining, and later splitting, may take
    pub timeout: Duration,
    /// number of the device, as CUDA counts them in this process
    pub device: i32,
    /// see `docs/environment.md`
    pub hints: Vec<(String, String)>,
    /// told when a time-out or an error is about to end the process
    pub on_fatal: OnFatal,
}

/// Joins the ranks into a group; returns when all have come.
///
/// # Errors
/// `Unsupported` without a driver or NCCL; `Timeout` naming the ranks that did not come; the store's
/// errors; NCCL's; `Interrupted`.
pub fn create(options: &GroupOptions, store: &dyn Store) -> Result<Arc<dyn Group>> {
    let deadline = Deadline::after(options.timeout);
    let meeting = Meeting::new(store, &options.name, options.rank, options.size, deadline);
    let prepared = Seat::prepare(options).inspect_err(|error| meeting.decline(error))?;
    let nccl = prepared.nccl;
    let roots = roots(
        options.size,
        symbol!(nccl, ncclCommInitRankScalable).is_ok(),
    );
    let ids = meeting.ids(roots, || fresh_id(nccl))?;
    let (size, rank) = (options.size, options.rank);
    let comm = prepared
        .join(deadline, move |nccl, config, comm| {
            init(nccl, config, comm, size, rank, &ids)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Timeout => meeting.late(),
            _ => error,
        })?;
    let own = prepared.open(comm, size, rank)?;
    Ok(Arc::new(own))
}

fn fresh_id(nccl: &Nccl) -> Result<Id> {
    let ask = symbol!(nccl, ncclGetUniqueId).map_err(|error| errors::missing(&error))?;
    let mut id = ncclUniqueId {
        internal: [0; ID_BYTES],
    };
    // SAFETY: a place for one id.
    let result = unsafe { ask(&raw mut id) };
    if result == ncclResult_t::ncclSuccess {
        return Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]));
    }
    // SAFETY: no communicator is asked about.
    Err(unsafe { errors::failed(nccl, ptr::null_mut(), "ncclGetUniqueId", result, None) })
}

type Config = ferrocomm_nccl_sys::sys::ncclConfig_t;
type Made = (&'static str, ncclResult_t);

/// The call that makes a communicator out of ids.
fn init(
    nccl: &Nccl,
    config: *mut Config,
    comm: *mut ncclComm_t,
    size: usize,
    rank: GroupRank,
    ids: &[Id],
) -> Result<Made> {
    let mut ids: Vec<ncclUniqueId> = ids
        .iter()
        .map(|id| ncclUniqueId {
            internal: id.map(|byte| std::ffi::c_char::from_ne_bytes([byte])),
        })
        .collect();
    let size = int(size)?;
    let rank = int(rank.index())?;
    if let [id] = ids[..] {
        let call =
            symbol!(nccl, ncclCommInitRankConfig).map_err(|error| errors::missing(&error))?;
        // SAFETY: places for a communicator and its configuration, which live during the call.
        return Ok(("ncclCommInitRankConfig", unsafe {
            call(comm, size, id, rank, config)
        }));
    }
    let call = symbol!(nccl, ncclCommInitRankScalable).map_err(|error| errors::missing(&error))?;
    let count = int(ids.len())?;
    // SAFETY: as above, and `count` ids.
    Ok(("ncclCommInitRankScalable", unsafe {
        call(comm, size, rank, count, ids.as_mut_ptr(), config)
    }))
}

fn int(number: usize) -> Result<i32> {
    i32::try_from(number).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "more ranks than NCCL can count").got(number)
    })
}

/// What a communicator needs before it exists, and takes along.
struct Seat {
    nccl: &'static Nccl,
    device: Device,
    hints: Arc<Hints>,
    name: Arc<str>,
    timeout: Duration,
    on_fatal: OnFatal,
}

/// A place that a call on another thread writes a communicator to.
struct Slot(Comm);

impl Seat {
    fn prepare(options: &GroupOptions) -> Result<Self> {
        Ok(Self {
            device: Device::open(options.device)?,
            nccl: library()?,
            hints: Arc::new(Hints::read(&options.hints)?),
            name: options.name.clone(),
            timeout: options.timeout,
            on_fatal: options.on_fatal.clone(),
        })
    }

    fn text(&self) -> CString {
        CString::new(self.name.replace('\0', "")).unwrap_or_default()
    }

    /// Makes a communicator with `call`, on another thread, and waits for it.
    fn join(
        &self,
        deadline: Deadline,
        call: impl FnOnce(&Nccl, *mut Config, *mut ncclComm_t) -> Result<Made> + Send + 'static,
    ) -> Result<Arc<Handle>> {
        let (nccl, device, hints, name) = (self.nccl, self.device, self.hints.clone(), self.text());
        bounded("joining", deadline, move || {
            let _entered = device.enter()?;
            let mut config = hints.config(nccl.version(), &name);
            let mut slot = Slot(Comm(ptr::null_mut()));
            let (call, result) = call(nccl, &raw mut config, &raw mut slot.0.0)?;
            let Slot(comm) = slot;
            // SAFETY: made above, and nobody else knows it yet.
            if let Err(error) = unsafe { finished(nccl, comm.0, call, result, deadline) } {
                // What was begun is given up with its owner.
                drop((!comm.0.is_null()).then(|| Handle::new(nccl, device, comm, hints, name)));
                return Err(error);
            }
            Ok(Handle::new(nccl, device, comm, hints, name))
        })
    }

    /// The group of a communicator that was made.
    fn open(self, handle: Arc<Handle>, size: usize, rank: GroupRank) -> Result<NcclGroup> {
        let _entered = self.device.enter()?;
        let events = Events::new(self.device, self.hints.event_limit);
        let watchdog = Watchdog::process()?;
        let core = Arc::new(Core {
            side: OwnStream::new(self.device, self.hints.high_priority_stream)?,
            token: Token::new(self.device)?,
            issuing: Mutex::new(Issuing {
                before: events.take()?,
                last: None,
                last_captured: None,
            }),
            events,
            native_all_to_all: symbol!(self.nccl, ncclAlltoAll).is_ok(),
            flights: Flights::default(),
            captured: Mutex::default(),
            standing: Mutex::default(),
            watchdog,
            handle,
            rank,
            size,
            seat: self,
        });
        let watched: Arc<dyn Watched> = core.clone();
        core.watchdog.watch(Arc::downgrade(&watched));
        Ok(NcclGroup(core))
    }
}

/// What the one thread that issues has to itself.
struct Issuing {
    /// comes after what the caller has on its stream
    before: Pooled,
    /// the newest operation, and the stream it is on
    last: Option<(Arc<Flight>, Stream)>,
    last_captured: Option<LastCaptured>,
}

/// Whether operations can start, and a call of NCCL's that may be stuck.
#[derive(Default)]
struct Standing {
    failure: Option<Error>,
    closed: bool,
    /// when the call in progress is too late
    call: Option<(Instant, Duration)>,
}

struct Core {
    seat: Seat,
    rank: GroupRank,
    size: usize,
    handle: Arc<Handle>,
    /// where asynchronous operations run
    side: OwnStream,
    /// what a barrier combines
    token: Token,
    events: Arc<Events>,
    native_all_to_all: bool,
    issuing: Mutex<Issuing>,
    flights: Flights,
    captured: Mutex<Vec<Captured>>,
    standing: Mutex<Standing>,
    watchdog: Arc<Watchdog>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    fn place(&self) -> Place {
        Place {
            rank: self.rank,
            size: self.size,
            native_all_to_all: self.native_all_to_all,
            token: self.token.address(),
        }
    }

    /// Whether an operation may start.
    fn admit(&self) -> Result<()> {
        let standing = locked(&self.standing);
        match &standing.failure {
            Some(failure) => Err(failure.clone()),
            None if standing.closed => Err(Error::new(
                ErrorKind::State,
                "the communicator is finalized",
            )),
            None => Ok(()),
        }
    }

    fn issue(&self, call: Call, stream: Stream) -> Result<Arc<Work>> {
        let plan = plan(&call.task, call.dtype, self.place())?;
        let work = Arc::new(Work::new(call.task.operation(), call.sequence));
        let outcome = {
            let mut issuing = locked(&self.issuing);
            self.admit()?;
            let _entered = self.seat.device.enter()?;
            locked(&self.standing).call = Some((Instant::now(), call.timeout));
            let outcome = if driver::is_capturing(stream)? {
                self.capture(&mut issuing, &plan, &call, &work, stream)
            } else if plan.steps.is_empty() {
                work.run(work.complete(Ok(())));
                Ok(())
            } else {
                self.launch(&mut issuing, &plan, &call, &work, stream)
            };
            locked(&self.standing).call = None;
            outcome
        };
        if let Err(error) = outcome {
            // A failure that came meanwhile, such as an abort, is why the call failed.
            self.admit()?;
            if !is_harmless(&error) {
                self.fail(error.clone());
            }
            return Err(error);
        }
        self.watchdog.nudge();
        Ok(work)
    }

    /// The stream that `call` runs on.
    fn stream_of(&self, call: &Call, callers: Stream) -> Stream {
        match call.mode {
            Mode::Sync => callers,
            Mode::Async => self.side.handle(),
        }
    }

    fn launch(
        &self,
        issuing: &mut Issuing,
        plan: &crate::plan::Plan,
        call: &Call,
        work: &Arc<Work>,
        callers: Stream,
    ) -> Result<()> {
        let stream = self.stream_of(call, callers);
        let (start, end) = (self.events.take()?, self.events.take()?);
        if stream != callers {
            issuing.before.record(callers)?;
            issuing.before.hold(stream)?;
        }
        // On whatever stream, operations take effect in the order they were issued in.
        if let Some((last, on)) = &issuing.last
            && *on != stream
        {
            last.end.hold(stream)?;
        }
        start.record(stream)?;
        put(plan, &self.handle, stream, Deadline::after(call.timeout))?;
        end.record(stream)?;
        let flight = Flight::new(work.clone(), start, end, call.timeout);
        issuing.last = Some((flight.clone(), stream));
        self.flights.push(flight);
        Ok(())
    }

    fn capture(
        &self,
        issuing: &mut Issuing,
        plan: &crate::plan::Plan,
        call: &Call,
        work: &Arc<Work>,
        callers: Stream,
    ) -> Result<()> {
        if !driver()?.graphs() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the NVIDIA driver is too old for operations in graphs",
            ));
        }
        if matches!(call.task, Task::Collective(Collective::Barrier)) && call.mode == Mode::Sync {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a barrier blocks the host, which a captured graph cannot",
            )
            .remedy("leave it out of the capture"));
        }
        let stream = self.stream_of(call, callers);
        let (id, graph) = driver::capture_of(callers)?;
        if stream != callers {
            let before = Event::new()?;
            before.record(callers)?;
            before.hold(stream)?;
        }
        if let Some(last) = &issuing.last_captured
            && last.id == id
            && last.stream != stream
        {
            last.end.hold(stream)?;
        }
        put(plan, &self.handle, stream, Deadline::after(call.timeout))?;
        let last = Event::new()?;
        last.record(stream)?;
        issuing.last_captured = Some(LastCaptured {
            id,
            stream,
            end: last,
        });
        let end = (stream != callers).then(Event::new).transpose()?;
        if let Some(end) = &end {
            end.record(stream)?;
        }
        let keeper = keep_in(graph, &self.handle, &self.watchdog)?;
        let mut captured = locked(&self.captured);
        captured.retain(Captured::is_held);
        captured.push(Captured::new(work, &keeper, end));
        drop(captured);
        work.run(work.complete(Ok(())));
        Ok(())
    }

    /// Ends the communicator for `error`, or the process where that was asked for.
    fn fail(&self, error: Error) {
        let error = error.communicator(&self.seat.name).rank(self.rank);
        {
            let mut standing = locked(&self.standing);
            if standing.failure.is_some() || standing.closed {
                return;
            }
            standing.failure = Some(error.clone());
        }
        tracing::error!(error = %error, "nccl communicator failed");
        if self.seat.hints.abort_process {
            (self.seat.on_fatal)(&error);
            std::process::abort();
        }
        // What is on the device uses the client's buffers until it is stopped.
        if !self.handle.revoke() {
            self.give_up();
        }
        self.flights.fail(&error);
    }

    /// Gives the communicator up, once a thread that is in a call of it had its chance to leave.
    fn give_up(&self) {
        let until = Instant::now() + COURTESY;
        let held = loop {
            match self.issuing.try_lock() {
                Ok(held) => break Some(held),
                Err(TryLockError::Poisoned(held)) => break Some(held.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > until => break None,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            }
        };
        drop(held);
        self.handle.abort();
    }

    /// Completes what has ended, for a thread of the client's that may be capturing.
    fn reap(&self) {
        let outcome = Relaxed::start().and_then(|_relaxed| self.complete_ended());
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    fn complete_ended(&self) -> Result<()> {
        self.flights.reap(|| {
            if let Some(failure) = locked(&self.standing).failure.clone() {
                return Err(failure);
            }
            self.handle.async_failure().map_or(Ok(()), Err)
        })
    }

    fn look_closely(&self) -> Result<()> {
        self.complete_ended()?;
        if let Some(failure) = self.handle.async_failure() {
            return Err(failure);
        }
        if let Some(late) = self.flights.late()? {
            return Err(self.timed_out(&late.work, late.timeout()));
        }
        Ok(())
    }

    fn timed_out(&self, work: &Work, limit: Duration) -> Error {
        Error::new(
            ErrorKind::Timeout,
            "the operation did not end on the device in time",
        )
        .expected(format!("at most {limit:?}"))
        .operation(work.operation().name())
        .sequence(work.sequence())
        .remedy("see which rank is missing in the flight recorder, or raise the time-out")
    }

    /// A call of NCCL's that has not returned for longer than its operation may take.
    fn stuck_call(&self) -> Option<Error> {
        let (since, limit) = locked(&self.standing).call?;
        (since.elapsed() > limit).then(|| {
            Error::new(
                ErrorKind::Timeout,
                "a call of NCCL's did not return in time",
            )
            .expected(format!("at most {limit:?}"))
        })
    }

    fn is_closed(&self) -> bool {
        let standing = locked(&self.standing);
        standing.closed || standing.failure.is_some()
    }
}

impl Watched for Core {
    fn look(&self) -> bool {
        if self.is_closed() {
            return false;
        }
        if let Some(stuck) = self.stuck_call() {
            self.fail(stuck);
            return false;
        }
        let calling = locked(&self.standing).call.is_some();
        if self.flights.is_empty() {
            return calling;
        }
        if let Err(error) = self.look_closely() {
            self.fail(error);
        }
        !self.flights.is_empty() || calling
    }
}

/// The communicator as the layer above has it.
struct NcclGroup(Arc<Core>);

impl NcclGroup {
    /// `ncclCommSplit` with `colour`; no communicator where it is no colour.
    fn split_by(
        &self,
        colour: i32,
        key: i32,
        name: &Arc<str>,
    ) -> Result<Option<(Seat, Arc<Handle>)>> {
        let core = &self.0;
        let seat = Seat {
            name: name.clone(),
            hints: core.seat.hints.clone(),
            on_fatal: core.seat.on_fatal.clone(),
            ..core.seat
        };
        let _issuing = locked(&core.issuing);
        core.admit()?;
        let parent = core.handle.get()?;
        let deadline = Deadline::after(core.seat.timeout);
        let none = colour == NCCL_SPLIT_NOCOLOR;
        let call = move |nccl: &Nccl, config: *mut Config, comm: *mut ncclComm_t| {
            let Comm(parent) = { parent };
            let split = symbol!(nccl, ncclCommSplit).map_err(|error| errors::missing(&error))?;
            // SAFETY: the parent is the issuing thread's, which waits for this call; places for a
            // communicator and its configuration.
            let result = unsafe { split(parent, colour, key, comm, config) };
            // Where it does not block, the parent tells when the call is over.
            // SAFETY: as above.
            unsafe { finished(nccl, parent, "ncclCommSplit", result, deadline) }?;
            // The child is asked in its turn: it may take longer than the parent.
            Ok(("ncclCommSplit", ncclResult_t::ncclInProgress))
        };
        if none {
            let (nccl, device, hints, text) =
                (seat.nccl, seat.device, seat.hints.clone(), seat.text());
            bounded("splitting", deadline, move || {
                let _entered = device.enter()?;
                let mut config = hints.config(nccl.version(), &text);
                let mut nothing = Slot(Comm(ptr::null_mut()));
                call(nccl, &raw mut config, &raw mut nothing.0.0).map(drop)
            })?;
            return Ok(None);
        }
        let handle = seat.join(deadline, call)?;
        Ok(Some((seat, handle)))
    }
}

impl Group for NcclGroup {
    fn rank(&self) -> GroupRank {
        self.0.rank
    }

    fn size(&self) -> usize {
        self.0.size
    }

    fn issue(&self, call: Call) -> Result<Arc<Work>> {
        self.0.issue(call, Stream::default())
    }

    fn issue_on(&self, call: Call, stream: Stream) -> Result<Arc<Work>> {
        self.0.issue(call, stream)
    }

    fn on_streams(&self) -> bool {
        true
    }

    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()> {
        const SPINS: u32 = 200;
        let deadline = limit.map(Deadline::after);
        let mut rounds = 0u32;
        let mut asked = Instant::now();
        loop {
            if let Some(outcome) = work.outcome() {
                return outcome;
            }
            self.0.reap();
            if work.is_complete() {
                continue;
            }
            if let Some(deadline) = deadline.filter(Deadline::passed) {
                self.0.fail(self.0.timed_out(work, deadline.limit()));
                // Whoever failed it first completes its works; this may be a moment later.
                continue;
            }
            if asked.elapsed() > interrupt::INTERVAL {
                asked = Instant::now();
                interrupt::check()?;
            }
            rounds = rounds.saturating_add(1);
            if rounds < SPINS {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(u64::from(rounds.min(1000))));
            }
        }
    }

    fn wait_on(&self, work: &Arc<Work>, stream: Stream) -> Result<()> {
        {
            let captured = locked(&self.0.captured);
            if let Some(captured) = captured.iter().find(|captured| captured.is(work)) {
                return captured.end.as_ref().map_or(Ok(()), |end| end.hold(stream));
            }
        }
        if let Some(outcome) = work.outcome() {
            return outcome;
        }
        let Some(flight) = self.0.flights.find(work) else {
            return work.outcome().unwrap_or(Ok(()));
        };
        // CUDA would refuse it, and give the capture up.
        if driver::is_capturing(stream)? {
            return Err(Error::new(
                ErrorKind::State,
                "an operation that was started before a capture cannot be waited for in it",
            )
            .remedy("wait for it before the capture begins"));
        }
        flight.end.hold(stream)
    }

    fn poll(&self, work: &Arc<Work>) {
        if !work.is_complete() {
            self.0.reap();
        }
    }

    fn is_captured(&self, work: &Arc<Work>) -> bool {
        locked(&self.0.captured)
            .iter()
            .any(|captured| captured.is(work))
    }

    fn keep(&self, work: &Arc<Work>, release: Box<dyn FnOnce() + Send>) {
        let captured = locked(&self.0.captured);
        match captured.iter().find(|captured| captured.is(work)) {
            Some(captured) => captured.keep(release),
            None => {
                drop(captured);
                work.on_complete(move |_| release());
            }
        }
    }

    fn cancel(&self, work: &Arc<Work>) {
        tracing::debug!(
            operation = work.operation().name(),
            "nccl cannot take an operation back"
        );
    }

    fn can_cancel(&self) -> bool {
        false
    }

    fn split(&self, ranks: &[GroupRank], name: &str, sequence: u64) -> Result<Arc<dyn Group>> {
        let core = &self.0;
        let own = ranks.iter().position(|rank| *rank == core.rank);
        let (Some(own), Some(lowest)) = (own, ranks.iter().min()) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "only a member of the sub-group can make it",
            ));
        };
        let split = self.split_by(int(lowest.index())?, int(own)?, &Arc::from(name));
        let split = split.map_err(|error| error.sequence(sequence));
        let split = split.inspect_err(|error| {
            if !is_harmless(error) {
                core.fail(error.clone());
            }
        })?;
        let Some((seat, handle)) = split else {
            return Err(Error::new(
                ErrorKind::Transport,
                "ncclCommSplit gave no communicator",
            ));
        };
        let rank = GroupRank::new(u32::try_from(own).unwrap_or(u32::MAX));
        Ok(Arc::new(seat.open(handle, ranks.len(), rank)?))
    }

    fn stand_aside(&self, sequence: u64) -> Result<()> {
        let name = self.0.seat.name.clone();
        self.split_by(NCCL_SPLIT_NOCOLOR, 0, &name)
            .map(drop)
            .map_err(|error| error.sequence(sequence))
            .inspect_err(|error| {
                if !is_harmless(error) {
                    self.0.fail(error.clone());
                }
            })
    }

    fn finalize(&self, timeout: Duration) -> Result<()> {
        let core = &self.0;
        let deadline = Deadline::after(timeout);
        if let Some(failure) = locked(&core.standing).failure.clone() {
            core.give_up();
            return Err(failure);
        }
        while !core.flights.is_empty() && !core.is_closed() {
            core.reap();
            interrupt::check()?;
            if deadline.passed() {
                core.fail(
                    Error::new(ErrorKind::Timeout, "operations did not end in time")
                        .expected(format!("at most {timeout:?}")),
                );
            }
            thread::sleep(Duration::from_micros(50));
        }
        {
            let mut standing = locked(&core.standing);
            if let Some(failure) = standing.failure.clone() {
                return Err(failure);
            }
            if std::mem::replace(&mut standing.closed, true) {
                return Ok(());
            }
        }
        let _issuing = locked(&core.issuing);
        // A graph that uses it gives it up when it is gone.
        if Arc::strong_count(&core.handle) > 1 {
            return Ok(());
        }
        let outcome = core.handle.finalize(deadline);
        outcome.map_err(|error| error.communicator(&core.seat.name).rank(core.rank))
    }

    fn abort(&self) {
        let core = &self.0;
        let error = Error::new(ErrorKind::Aborted, "the communicator was aborted")
            .remedy("make a new communicator");
        {
            let mut standing = locked(&core.standing);
            if standing.closed {
                return;
            }
            standing.failure.get_or_insert_with(|| error.clone());
        }
        core.give_up();
        core.flights.fail(&error);
    }

    fn failure(&self) -> Option<Error> {
        if let Some(failure) = locked(&self.0.standing).failure.clone() {
            return Some(failure);
        }
        let failure = self.0.handle.async_failure()?;
        self.0.fail(failure);
        locked(&self.0.standing).failure.clone()
    }

    fn transport(&self) -> String {
        "nccl".into()
    }
}

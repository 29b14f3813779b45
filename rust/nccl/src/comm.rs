//! One communicator at work: operations put on streams, watched, failed and given up. Must not know
//! how ranks meet, nor stores.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Call, Collective, Mode, Stream, Task};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::symbol;

use crate::capture::{Captured, LastCaptured, keep_in};
use crate::driver::{self, Event, OwnStream, Relaxed, Token, driver};
use crate::events::{Events, Pooled};
use crate::flights::Flight;
use crate::handle::Handle;
use crate::issuing::{is_harmless, put};
use crate::joining::Seat;
use crate::plan::{Place, plan};
use crate::resources::Registrations;
use crate::ties::Ties;
use crate::traffic::Traffic;
use crate::watchdog::{Watchdog, Watched};

/// How long giving up a communicator waits for a thread that is in a call of it.
const COURTESY: Duration = Duration::from_secs(1);

/// What the one thread that issues has to itself.
pub(crate) struct Issuing {
    /// comes after what the caller has on its stream
    before: Pooled,
    /// the newest operation, and the stream it is on
    last: Option<(Arc<Flight>, Stream)>,
    last_captured: Option<LastCaptured>,
}

/// Whether operations can start, and a call of NCCL's that may be stuck.
#[derive(Default)]
pub(crate) struct Standing {
    pub(crate) failure: Option<Error>,
    pub(crate) closed: bool,
    /// its memory is given up until it is resumed
    pub(crate) suspended: bool,
    /// when the call in progress is too late
    pub(crate) call: Option<(Instant, Duration)>,
}

/// One communicator: what is on its way, and how it stands.
pub(crate) struct Core {
    pub(crate) seat: Seat,
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
    pub(crate) handle: Arc<Handle>,
    /// where asynchronous operations run
    pub(crate) side: OwnStream,
    /// what a barrier combines
    pub(crate) token: Token,
    pub(crate) events: Arc<Events>,
    pub(crate) native_all_to_all: bool,
    pub(crate) issuing: Mutex<Issuing>,
    pub(crate) flights: Traffic,
    pub(crate) captured: Mutex<Vec<Captured>>,
    pub(crate) standing: Mutex<Standing>,
    pub(crate) registrations: Mutex<Registrations>,
    pub(crate) watchdog: Arc<Watchdog>,
    /// where its members can change
    pub(crate) ties: OnceLock<Ties>,
}

/// The content of a mutex, whoever panicked under it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// The communicator that `handle` owns, looked after from now on.
    pub(crate) fn open(
        seat: Seat,
        handle: Arc<Handle>,
        size: usize,
        rank: GroupRank,
    ) -> Result<Arc<Self>> {
        let _entered = seat.device.enter()?;
        let events = Events::new(seat.device, seat.hints.event_limit);
        let watchdog = Watchdog::process()?;
        let core = Arc::new(Self {
            side: OwnStream::new(seat.device, seat.hints.high_priority_stream)?,
            token: Token::new(seat.device)?,
            issuing: Mutex::new(Issuing {
                before: events.take()?,
                last: None,
                last_captured: None,
            }),
            events,
            native_all_to_all: symbol!(seat.nccl, ncclAlltoAll).is_ok(),
            flights: Traffic::default(),
            captured: Mutex::default(),
            standing: Mutex::default(),
            registrations: Mutex::default(),
            watchdog,
            ties: OnceLock::new(),
            handle,
            rank,
            size,
            seat,
        });
        let watched: Arc<dyn Watched> = core.clone();
        core.watchdog.watch(Arc::downgrade(&watched));
        Ok(core)
    }

    fn place(&self) -> Place {
        Place {
            rank: self.rank,
            size: self.size,
            native_all_to_all: self.native_all_to_all,
            token: self.token.address(),
        }
    }

    /// Whether an operation may start.
    pub(crate) fn admit(&self) -> Result<()> {
        let standing = locked(&self.standing);
        match &standing.failure {
            Some(failure) => Err(failure.clone()),
            None if standing.closed => Err(Error::new(
                ErrorKind::State,
                "the communicator is finalized",
            )),
            None if standing.suspended => Err(Error::new(
                ErrorKind::State,
                "the communicator is suspended",
            )
            .remedy("resume it first")),
            None => Ok(()),
        }
    }

    pub(crate) fn issue(&self, call: Call, stream: Stream) -> Result<Arc<Work>> {
        let plan = plan(&call.task, call.dtype, self.place())?;
        let work = Arc::new(Work::new(call.task.operation(), call.sequence));
        let outcome = {
            let mut issuing = locked(&self.issuing);
            self.admit()?;
            let _entered = self.seat.device.enter()?;
            let capturing = driver::is_capturing(stream)?;
            locked(&self.standing).call = Some((Instant::now(), call.timeout));
            let outcome = if capturing {
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
    pub(crate) fn fail(&self, error: Error) {
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
    pub(crate) fn give_up(&self) {
        drop(self.issuing_soon());
        self.handle.abort();
    }

    /// The right to issue, unless a thread that is in a call does not leave it.
    pub(crate) fn issuing_soon(&self) -> Option<MutexGuard<'_, Issuing>> {
        let until = Instant::now() + COURTESY;
        loop {
            match self.issuing.try_lock() {
                Ok(held) => return Some(held),
                Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > until => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Completes what has ended, for a thread of the client's that may be capturing.
    pub(crate) fn reap(&self) {
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

    pub(crate) fn timed_out(&self, work: &Work, limit: Duration) -> Error {
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

    pub(crate) fn is_closed(&self) -> bool {
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
        if let Some(lost) = self.broken_tie() {
            self.fail(lost);
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

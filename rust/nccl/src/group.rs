//! What the layer above sees of a communicator: calls, waits, splits and its end. Must not know
//! stores.

use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Call, Region, Stream};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::group::{Group, MemoryUse, Part};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::window::{Registration, Window};
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};
use ferrocomm_nccl_sys::sys::{NCCL_SPLIT_NOCOLOR, ncclComm_t, ncclResult_t};
use ferrocomm_nccl_sys::{Nccl, symbol};

use crate::bounded::bounded;
use crate::comm::{Core, locked};
use crate::driver;
use crate::errors;
use crate::handle::{Comm, Handle, finished};
use crate::issuing::is_harmless;
use crate::joining::{Config, Seat, Slot, int};
use crate::windows::NcclWindow;

/// The communicator as the layer above has it.
pub(crate) struct NcclGroup(Arc<Core>);

impl NcclGroup {
    /// The group of a communicator that is open.
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(core)
    }

    /// `ncclCommSplit` with `colour`; no communicator where it is no colour.
    fn split_by(
        &self,
        colour: i32,
        key: i32,
        part: &Part<'_>,
    ) -> Result<Option<(Seat, Arc<Handle>)>> {
        let core = &self.0;
        let hints = Arc::new(core.seat.hints.with(part.hints)?);
        let mut seat = core.seat.like(&Arc::from(part.name), hints);
        seat.timeout = part.timeout;
        let _issuing = locked(&core.issuing);
        core.admit()?;
        let parent = core.handle.get()?;
        let deadline = Deadline::after(part.timeout);
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
        // A default stream is the one of the thread's current device, which may be another.
        let _entered = self.0.seat.device.enter()?;
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

    fn split(&self, ranks: &[GroupRank], part: &Part<'_>) -> Result<Arc<dyn Group>> {
        let core = &self.0;
        let own = ranks.iter().position(|rank| *rank == core.rank);
        let (Some(own), Some(lowest)) = (own, ranks.iter().min()) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "only a member of the sub-group can make it",
            ));
        };
        core.admit()?;
        let split = self.split_by(int(lowest.index())?, int(own)?, part);
        let split = split.map_err(|error| error.sequence(part.sequence));
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
        Ok(Arc::new(Self(Core::open(seat, handle, ranks.len(), rank)?)))
    }

    fn stand_aside(&self, part: &Part<'_>) -> Result<()> {
        self.0.admit()?;
        self.split_by(NCCL_SPLIT_NOCOLOR, 0, part)
            .map(drop)
            .map_err(|error| error.sequence(part.sequence))
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
        if locked(&core.standing).suspended {
            core.resume()?;
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
        // A graph that uses it, or a tensor in memory that it mapped, gives it up when it is gone.
        if core.is_in_graphs() || core.handle.is_lent() {
            return Ok(());
        }
        core.forget_all();
        let outcome = core.handle.finalize(deadline);
        if let Some(ties) = core.ties.get() {
            ties.close(deadline.left());
        }
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
        let failure = self
            .0
            .handle
            .async_failure()
            .or_else(|| self.0.broken_tie())?;
        self.0.fail(failure);
        locked(&self.0.standing).failure.clone()
    }

    fn transport(&self) -> String {
        "nccl".into()
    }

    fn open_window(
        &self,
        registration: Registration,
        issued: &mut dyn FnMut(),
    ) -> Result<Arc<dyn Window>> {
        let window = NcclWindow::register(&self.0, registration);
        issued();
        window
            .inspect_err(|error| {
                if !is_harmless(error) && error.kind() != ErrorKind::State {
                    self.0.fail(error.clone());
                }
            })
            .map(|window| window as Arc<dyn Window>)
    }

    fn register_memory(&self, memory: Region) -> Result<()> {
        self.0.register(memory)
    }

    fn deregister_memory(&self, address: usize) -> Result<()> {
        self.0.deregister(address)
    }

    fn suspend(&self) -> Result<()> {
        self.0.suspend()
    }

    fn resume(&self) -> Result<()> {
        self.0.resume()
    }

    fn memory(&self) -> Result<MemoryUse> {
        self.0.memory()
    }

    fn native(&self) -> Result<usize> {
        Ok(self.0.handle.get()?.0.expose_provenance())
    }
}

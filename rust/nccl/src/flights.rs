//! Operations that are on the device, in the order in which they end there. Must not know NCCL.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, Result};

use crate::events::Pooled;

/// One operation on the device.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) work: Arc<Work>,
    /// comes when the operation starts
    start: Pooled,
    /// comes when it has ended
    pub(crate) end: Pooled,
    timeout: Duration,
    begun: OnceLock<Instant>,
}

impl Flight {
    /// An operation between two events that are recorded.
    pub(crate) fn new(work: Arc<Work>, start: Pooled, end: Pooled, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            work,
            start,
            end,
            timeout,
            begun: OnceLock::new(),
        })
    }

    /// How long it may take on the device.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether it has run for longer than it may. Its clock starts when the operation does.
    fn is_late(&self) -> Result<bool> {
        match self.begun.get() {
            Some(begun) => Ok(begun.elapsed() > self.timeout),
            None => {
                if self.start.has_come()? {
                    self.begun.get_or_init(Instant::now);
                }
                Ok(false)
            }
        }
    }
}

/// The operations of one communicator that have not ended. Each waits on the device for the one
/// before it, so they end in this order.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<VecDeque<Arc<Flight>>>);

impl Flights {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the newest.
    pub(crate) fn push(&self, flight: Arc<Flight>) {
        self.queue().push_back(flight);
    }

    /// Whether all have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }

    /// The operation of `work`, unless it has ended.
    pub(crate) fn find(&self, work: &Arc<Work>) -> Option<Arc<Flight>> {
        // Callers mostly ask for what they issued last.
        self.queue()
            .iter()
            .rev()
            .find(|flight| Arc::ptr_eq(&flight.work, work))
            .cloned()
    }

    /// Completes the works of those that have ended, with no lock held. `verdict` tells why they have
    /// not done what they should: an operation that was stopped ends on the device, too.
    ///
    /// # Errors
    /// What CUDA says about an operation that can never end; the verdict.
    pub(crate) fn reap(&self, verdict: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            let ended = {
                let mut queue = self.queue();
                match queue.front() {
                    Some(front) if front.end.has_come()? => queue.pop_front(),
                    _ => None,
                }
            };
            let Some(flight) = ended else {
                return Ok(());
            };
            let outcome = verdict().map_err(|error| error.sequence(flight.work.sequence()));
            flight.work.run(flight.work.complete(outcome.clone()));
            outcome?;
        }
    }

    /// The operation that is on the device, when it has run for too long.
    ///
    /// # Errors
    /// What CUDA says about it.
    pub(crate) fn late(&self) -> Result<Option<Arc<Flight>>> {
        let Some(front) = self.queue().front().cloned() else {
            return Ok(None);
        };
        Ok(front.is_late()?.then_some(front))
    }

    /// Whether the operation that is on the device has run for longer than `limit`.
    pub(crate) fn runs_for(&self, limit: Duration) -> bool {
        let begun = self
            .queue()
            .front()
            .and_then(|front| front.begun.get().copied());
        begun.is_some_and(|begun| begun.elapsed() > limit)
    }

    /// Fails all that have not ended.
    pub(crate) fn fail(&self, error: &Error) {
        let all = std::mem::take(&mut *self.queue());
        for flight in all {
            let error = error.clone().sequence(flight.work.sequence());
            flight.work.run(flight.work.complete(Err(error)));
        }
    }
}

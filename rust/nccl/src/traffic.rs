//! Everything of a communicator that is on the device: its operations, which end in order, and beside
//! them those of its windows, each lane in an order of its own. Must not know what an operation does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, Result};

use crate::flights::{Flight, Flights};

/// Operations that end in order among themselves alone.
#[derive(Default)]
pub(crate) struct Lane {
    pub(crate) flights: Flights,
    /// lets go on the device what would wait for ever
    release: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Lane {
    /// One whose operations may wait for other ranks on the device until `release` is called.
    pub(crate) fn held(release: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            flights: Flights::default(),
            release: Some(Box::new(release)),
        }
    }
}

/// All of it.
#[derive(Default)]
pub(crate) struct Traffic {
    main: Flights,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// whether there are lanes: a look at it costs no lock
    has_lanes: AtomicBool,
}

impl Traffic {
    fn lanes(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_lanes(&self) -> Vec<Arc<Lane>> {
        if !self.has_lanes.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.lanes().clone()
    }

    /// Looks after `lane`, too.
    pub(crate) fn open(&self, lane: &Arc<Lane>) {
        self.lanes().push(lane.clone());
        self.has_lanes.store(true, Ordering::Release);
    }

    /// Forgets `lane`, on which nothing is left.
    pub(crate) fn close(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes();
        lanes.retain(|known| !Arc::ptr_eq(known, lane));
        self.has_lanes.store(!lanes.is_empty(), Ordering::Release);
    }

    /// Adds the newest operation of the communicator itself.
    pub(crate) fn push(&self, flight: Arc<Flight>) {
        self.main.push(flight);
    }

    /// Whether all have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.main.is_empty() && self.all_lanes().iter().all(|lane| lane.flights.is_empty())
    }

    /// The operation of `work`, unless it has ended.
    pub(crate) fn find(&self, work: &Arc<Work>) -> Option<Arc<Flight>> {
        self.main.find(work).or_else(|| {
            let lanes = self.all_lanes();
            lanes.iter().find_map(|lane| lane.flights.find(work))
        })
    }

    /// As `Flights::reap`, of all.
    ///
    /// # Errors
    /// As `Flights::reap`.
    pub(crate) fn reap(&self, verdict: impl Fn() -> Result<()>) -> Result<()> {
        self.main.reap(&verdict)?;
        let lanes = self.all_lanes();
        lanes
            .iter()
            .try_for_each(|lane| lane.flights.reap(&verdict))
    }

    /// An operation that has run for too long, as `Flights::late`.
    ///
    /// # Errors
    /// As `Flights::late`.
    pub(crate) fn late(&self) -> Result<Option<Arc<Flight>>> {
        if let Some(late) = self.main.late()? {
            return Ok(Some(late));
        }
        for lane in self.all_lanes() {
            if let Some(late) = lane.flights.late()? {
                return Ok(Some(late));
            }
        }
        Ok(None)
    }

    /// Whether an operation that is on the device has run for longer than `limit`.
    pub(crate) fn runs_for(&self, limit: Duration) -> bool {
        let lanes = self.all_lanes();
        self.main.runs_for(limit) || lanes.iter().any(|lane| lane.flights.runs_for(limit))
    }

    /// Fails all that have not ended, once nothing of theirs waits on the device any more.
    pub(crate) fn fail(&self, error: &Error) {
        let lanes = self.all_lanes();
        for release in lanes.iter().filter_map(|lane| lane.release.as_ref()) {
            release();
        }
        self.main.fail(error);
        for lane in lanes {
            lane.flights.fail(error);
        }
    }
}

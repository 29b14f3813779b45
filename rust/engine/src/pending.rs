//! An asynchronous operation as its caller holds it. Must not know how it is served.

use std::sync::Arc;
use std::time::Duration;

use ferrocomm_core::call::{Operation, Stream};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::communicator::Communicator;
use crate::deferred;

/// An operation on its way. Any thread may use it; dropping it leaves the operation alone.
pub struct Pending {
    communicator: Arc<Communicator>,
    work: Arc<Work>,
}

impl Pending {
    pub(crate) fn new(communicator: Arc<Communicator>, work: Arc<Work>) -> Self {
        Self { communicator, work }
    }

    /// The communicator it was started on.
    pub fn communicator(&self) -> &Arc<Communicator> {
        &self.communicator
    }

    fn named(&self, error: Error) -> Error {
        self.communicator
            .named(error, self.work.operation())
            .sequence(self.work.sequence())
    }

    /// Waits until it is over and returns how it ended. When `limit` passes first, it fails with a
    /// time-out: a point-to-point operation alone, a collective with its communicator.
    ///
    /// # Errors
    /// How it failed; `Interrupted` when the client ended the wait, and the operation goes on.
    pub fn wait(&self, limit: Option<Duration>) -> Result<()> {
        self.outcome().unwrap_or_else(|| {
            let group = self.communicator.group()?;
            group
                .wait(&self.work, limit)
                .map_err(|error| self.named(error))
        })
    }

    /// Makes `stream` wait until it is over; where there are no streams, the caller waits.
    ///
    /// # Errors
    /// How it failed, when that is known already.
    pub fn wait_on(&self, stream: Stream) -> Result<()> {
        let group = self.communicator.group()?;
        group
            .wait_on(&self.work, stream)
            .map_err(|error| self.named(error))
    }

    /// Whether it was captured into a graph: then it is complete at once, and its buffers are used
    /// whenever the graph is launched.
    pub fn is_captured(&self) -> bool {
        self.communicator
            .group()
            .is_ok_and(|group| group.is_captured(&self.work))
    }

    /// Runs `release` once nothing uses its buffers any more, on any thread: when it is over, or when
    /// the graph it was captured in is gone.
    pub fn keep(&self, release: impl FnOnce() + Send + 'static) {
        match self.communicator.group() {
            Ok(group) => group.keep(&self.work, Box::new(release)),
            Err(_inherited) => self.work.on_complete(move |_| release()),
        }
    }

    /// How it ended, when it has.
    pub fn outcome(&self) -> Option<Result<()>> {
        if !self.work.is_complete()
            && let Ok(group) = self.communicator.group()
        {
            group.poll(&self.work);
        }
        self.work
            .outcome()
            .map(|outcome| outcome.map_err(|error| self.named(error)))
    }

    /// Whether it has begun, as far as the engine can tell: it has not while it waits behind another
    /// operation of its communicator, and its time-out does not run yet.
    pub fn has_begun(&self) -> bool {
        self.work.is_complete()
            || self
                .communicator
                .group()
                .map_or(true, |group| group.has_begun(&self.work))
    }

    /// The rank a receive was matched with.
    pub fn source(&self) -> Option<GroupRank> {
        self.work.source()
    }

    /// Its number among the communicator's collectives or point-to-point operations.
    pub fn sequence(&self) -> u64 {
        self.work.sequence()
    }

    /// Cancels a point-to-point operation that is not over; it fails with `Cancelled`.
    ///
    /// # Errors
    /// `Unsupported` for a collective.
    pub fn cancel(&self) -> Result<()> {
        match self.work.operation() {
            Operation::Send | Operation::Recv | Operation::Batch => {
                let group = self.communicator.group()?;
                if !group.can_cancel() {
                    return Err(self.named(
                        Error::new(
                            ErrorKind::Unsupported,
                            "this engine cannot take an operation back",
                        )
                        .remedy("abort the communicator"),
                    ));
                }
                group.cancel(&self.work);
                Ok(())
            }
            // Nothing has moved yet; of the others, part may have.
            Operation::WaitSignal => self
                .communicator
                .group()
                .map(|group| group.cancel(&self.work)),
            _ => Err(self.named(
                Error::new(
                    ErrorKind::Unsupported,
                    "neither a collective nor what moves bytes of a window can be cancelled alone",
                )
                .remedy("abort the communicator"),
            )),
        }
    }

    /// Runs `callback` once when it is over: now if it is, else on the thread that ends it, with
    /// no lock held.
    pub fn on_complete(&self, callback: impl FnOnce(&Result<()>) + Send + 'static) {
        let shared = self.communicator.shared().clone();
        let (operation, sequence) = (self.work.operation(), self.work.sequence());
        self.work.on_complete(move |outcome| {
            let outcome = outcome
                .clone()
                .map_err(|error| shared.named(error, operation).sequence(sequence));
            deferred::run(move || callback(&outcome));
        });
    }
}

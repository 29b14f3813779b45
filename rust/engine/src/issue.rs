//! How a communicator issues an operation: checks, a number, the group, the records. Must not know
//! how data moves: that is the group's.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use ferrocomm_core::call::{Collective, Conditions, Mode, Operation, Stream, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::group::Notes;
use ferrocomm_core::work::Work;
use ferrocomm_core::{ErrorKind, Result};

use crate::communicator::Communicator;
use crate::counters::raise;
use crate::deferred::Collecting;
use crate::pending::Pending;
use crate::process::process;
use crate::recorder::{Facts, Moment, Ticket};

/// An operation that the group has.
struct Issued {
    work: Arc<Work>,
    ticket: Ticket,
}

/// What is noted of a synchronous operation, when its group can do without the time.
struct Noting<'a> {
    communicator: &'a Communicator,
    facts: &'a Facts,
    sequence: u64,
    timeout: Duration,
    /// the order of operations until it is issued; let go of in this order
    held: Option<(MutexGuard<'a, ()>, Collecting)>,
    ticket: Option<Ticket>,
    /// when a short one looked for the others last, if it ended right after
    looked: Option<Moment>,
}

impl Notes for Noting<'_> {
    #[inline]
    fn issued(&mut self) {
        if let Some(held) = self.held.take() {
            self.communicator.count(self.facts, self.sequence);
            let label = self.communicator.label();
            let ticket = process()
                .recorder
                .begin(label, self.facts, self.sequence, self.timeout);
            self.ticket = Some(ticket);
            drop(held);
        }
    }

    #[inline]
    fn looks(&mut self) {
        self.looked = self.ticket.map(|ticket| ticket.created());
    }

    #[inline]
    fn looks_again(&mut self) {
        self.looked = Some(process().recorder.now());
        std::hint::spin_loop();
    }

    #[inline]
    fn waits(&mut self) {
        self.looked = None;
    }
}

impl Communicator {
    /// Runs an operation on the caller's thread until it is over. `timeout` `None`: the
    /// communicator's. What has to be kept of `task` is taken out of it.
    ///
    /// The regions of `task` stay valid until this returns.
    ///
    /// # Errors
    /// `InvalidArgument` or `Unsupported` before anything moves; else how the operation failed.
    /// When the client interrupts the wait, the operation is given up: a collective with its
    /// communicator, since the caller is about to take its buffers back.
    #[inline(always)]
    pub fn run(&self, task: &mut Task, dtype: Dtype, timeout: Option<Duration>) -> Result<()> {
        let operation = task.operation();
        let outcome = self.try_run(task, dtype, timeout);
        outcome.map_err(|error| self.named(error, operation))
    }

    #[inline(always)]
    fn try_run(&self, task: &mut Task, dtype: Dtype, timeout: Option<Duration>) -> Result<()> {
        let group = self.group()?;
        let facts = self.checked(task, dtype)?;
        let timeout = self.timeout_for(timeout)?;
        let collecting = Collecting::start();
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let conditions = self.conditions(task, dtype, timeout, Mode::Sync)?;
        let sequence = conditions.sequence;
        let mut noting = Noting {
            communicator: self,
            facts: &facts,
            sequence,
            timeout,
            held: Some((order, collecting)),
            ticket: None,
            looked: None,
        };
        let outcome = match task {
            Task::Batch(parts) if parts.is_empty() => Ok(()),
            task => group.run(task, &conditions, &mut noting),
        };
        noting.issued();
        let Noting { ticket, looked, .. } = noting;
        let operation = facts.operation;
        let given_up = outcome
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Interrupted);
        if given_up && !operation.is_alone() {
            self.abort();
        }
        let outcome = outcome.map_err(|error| self.named(error, operation).sequence(sequence));
        if let Some(ticket) = ticket {
            self.shared().settle_at(ticket, looked, operation, &outcome);
        }
        outcome
    }

    /// Starts an operation. `timeout` as for `run`.
    ///
    /// The regions of `task` stay valid until the operation is complete.
    ///
    /// # Errors
    /// `InvalidArgument` or `Unsupported`; whatever keeps it from starting. Later failures are the
    /// pending operation's outcome.
    pub fn start(
        self: &Arc<Self>,
        task: Task,
        dtype: Dtype,
        timeout: Option<Duration>,
    ) -> Result<Pending> {
        self.start_on(task, dtype, timeout, Mode::Async, Stream::default())
    }

    /// As `start`, for a caller whose own work is on `stream`; a `Sync` operation runs on it.
    ///
    /// # Errors
    /// As `start`. A synchronous barrier ends here, on the host.
    pub fn start_on(
        self: &Arc<Self>,
        task: Task,
        dtype: Dtype,
        timeout: Option<Duration>,
        mode: Mode,
        stream: Stream,
    ) -> Result<Pending> {
        let blocks = mode == Mode::Sync && matches!(task, Task::Collective(Collective::Barrier));
        let pending = self.launch(task, dtype, timeout, mode, stream)?;
        if blocks {
            pending.wait(None)?;
        }
        Ok(pending)
    }

    /// Whether operations run on streams of a device: `start_on` is then how they are started.
    pub fn on_streams(&self) -> bool {
        self.group().is_ok_and(|group| group.on_streams())
    }

    fn launch(
        self: &Arc<Self>,
        task: Task,
        dtype: Dtype,
        timeout: Option<Duration>,
        mode: Mode,
        stream: Stream,
    ) -> Result<Pending> {
        let Issued { work, ticket } = self.submit(task, dtype, timeout, mode, stream)?;
        Ok(self.pending(work, ticket))
    }

    /// What the client holds of an operation that the group has.
    pub(crate) fn pending(self: &Arc<Self>, work: Arc<Work>, ticket: Ticket) -> Pending {
        let shared = self.shared().clone();
        let (operation, sequence) = (work.operation(), work.sequence());
        shared.pending.add();
        work.on_complete(move |outcome| {
            let outcome = outcome
                .clone()
                .map_err(|error| shared.named(error, operation).sequence(sequence));
            shared.settle(ticket, operation, &outcome);
            shared.pending.remove();
        });
        Pending::new(self.clone(), work)
    }

    fn submit(
        &self,
        task: Task,
        dtype: Dtype,
        timeout: Option<Duration>,
        mode: Mode,
        stream: Stream,
    ) -> Result<Issued> {
        let operation = task.operation();
        self.try_submit(task, dtype, timeout, mode, stream)
            .map_err(|error| self.named(error, operation))
    }

    fn try_submit(
        &self,
        mut task: Task,
        dtype: Dtype,
        timeout: Option<Duration>,
        mode: Mode,
        stream: Stream,
    ) -> Result<Issued> {
        let group = self.group()?;
        let facts = self.checked(&task, dtype)?;
        let timeout = self.timeout_for(timeout)?;
        // Made before the order is taken, so that it is dropped after it.
        let collecting = Collecting::start();
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let conditions = self.conditions(&task, dtype, timeout, mode)?;
        let (operation, sequence) = (facts.operation, conditions.sequence);
        let recorder = &process().recorder;
        let ticket = recorder.schedule(self.label(), &facts, sequence, timeout);
        let issued = match &mut task {
            Task::Batch(parts) if parts.is_empty() => Ok(nothing(sequence)),
            task => group.issue_on(conditions.call(task), stream),
        };
        self.count(&facts, sequence);
        drop(order);
        recorder.start(ticket);
        drop(collecting);
        issued.map(|work| Issued { work, ticket }).map_err(|error| {
            let error = self.named(error, operation).sequence(sequence);
            let failed = Err(error.clone());
            self.shared().settle(ticket, operation, &failed);
            error
        })
    }

    /// What is recorded of a task, after all checks.
    #[inline(always)]
    fn checked(&self, task: &Task, dtype: Dtype) -> Result<Facts> {
        self.checker().task(task, dtype)?;
        Ok(Facts::of(task, dtype))
    }

    /// Gives a task its number; the order is held.
    #[inline(always)]
    fn conditions(
        &self,
        task: &Task,
        dtype: Dtype,
        timeout: Duration,
        mode: Mode,
    ) -> Result<Conditions> {
        self.admit()?;
        let counter = match task {
            Task::Collective(_) => &self.collectives,
            Task::PointToPoint(_) | Task::Batch(_) => &self.parts,
        };
        Ok(Conditions {
            dtype,
            sequence: raise(counter, 1),
            timeout,
            mode,
        })
    }

    /// Counts a call; the order is held.
    #[inline(always)]
    pub(crate) fn count(&self, facts: &Facts, sequence: u64) {
        let bytes = facts.payload_bytes();
        self.counters().add(facts.operation, bytes);
        tracing::debug!(
            communicator = self.name(),
            operation = facts.operation.name(),
            sequence,
            bytes,
            "issued"
        );
    }
}

/// A batch of nothing, complete.
fn nothing(sequence: u64) -> Arc<Work> {
    let work = Arc::new(Work::new(Operation::Batch, sequence));
    work.run(work.complete(Ok(())));
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Puppet;

    #[test]
    fn a_call_that_takes_longer_does_not_end_with_its_last_look() {
        let communicator = Communicator::of_group("looked", Puppet::new());
        let facts = Facts::bare(Operation::Barrier, Dtype::Byte);
        let collecting = Collecting::start();
        let order = communicator
            .order
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut noting = Noting {
            communicator: &communicator,
            facts: &facts,
            sequence: 1,
            timeout: Duration::from_secs(1),
            held: Some((order, collecting)),
            ticket: None,
            looked: None,
        };
        noting.issued();
        assert!(noting.ticket.is_some() && noting.looked.is_none());
        noting.looks();
        assert!(noting.looked.is_some());
        noting.looks_again();
        assert!(noting.looked.is_some());
        noting.waits();
        assert!(noting.looked.is_none());
        // The order has been let go of.
        assert!(communicator.order.try_lock().is_ok());
    }
}

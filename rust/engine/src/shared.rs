//! The part of a communicator that works hold, too: what it is called, its state, how operations end.
//!
//! Must not know groups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrocomm_core::call::Operation;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::abort_hook::{AbortHookSlot, Ending};
use crate::deferred;
use crate::outstanding::Outstanding;
use crate::process::process;
use crate::recorder::{Label, Moment, Ticket};
use crate::state::{Event, State};

/// The part of a communicator that outlives it while works are on their way. Holds no group, so
/// that a work's end on an engine thread never is a group's end.
pub(crate) struct Shared {
    pub(crate) label: Arc<Label>,
    state: Mutex<State>,
    /// whether the state is one that admits operations: a look at it costs no lock
    admits: AtomicBool,
    /// asynchronous works that are not complete
    pub(crate) pending: Outstanding,
    pub(crate) abort_hook: AbortHookSlot,
}

impl Shared {
    /// Of a communicator that nobody has joined.
    pub(crate) fn new(label: Label) -> Self {
        Self {
            label: Arc::new(label),
            state: Mutex::new(State::Unconfigured),
            admits: AtomicBool::new(false),
            pending: Outstanding::default(),
            abort_hook: AbortHookSlot::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `event` and returns the state before.
    pub(crate) fn apply(&self, event: Event) -> State {
        let mut state = self.state();
        match state.after(event) {
            Some(next) => {
                tracing::info!(
                    communicator = &*self.label.name,
                    rank = self.label.rank.get(),
                    from = ?state.name(),
                    to = ?next.name(),
                    "state changes"
                );
                let cause = match &next {
                    State::Failed(cause) => Some(cause.clone()),
                    _ => None,
                };
                let before = self.enter(&mut state, next);
                drop(state);
                if let Some(cause) = cause {
                    self.tell_failure(cause);
                }
                before
            }
            None => state.clone(),
        }
    }

    /// Tells the client's hook, once no lock is held.
    pub(crate) fn tell_failure(&self, cause: Error) {
        if let Some(hook) = self.abort_hook.get() {
            deferred::run(move || hook(&cause, Ending::Communicator));
        }
    }

    /// Changes the state and returns the one before.
    pub(crate) fn enter(&self, state: &mut State, next: State) -> State {
        self.admits.store(next.admit().is_ok(), Ordering::Release);
        std::mem::replace(state, next)
    }

    /// Whether an operation may start.
    #[inline(always)]
    pub(crate) fn admit(&self) -> Result<()> {
        if self.admits.load(Ordering::Acquire) {
            return Ok(());
        }
        self.state().admit()
    }

    /// Adds the facts this layer knows to an error.
    pub(crate) fn named(&self, error: Error, operation: Operation) -> Error {
        self.named_as(error, operation.name())
    }

    pub(crate) fn named_as(&self, error: Error, doing: &'static str) -> Error {
        error
            .communicator(&self.label.name)
            .rank(self.label.rank)
            .operation(doing)
    }

    /// Notes how an operation ended, in the recorder and in the state.
    #[inline(always)]
    pub(crate) fn settle(&self, ticket: Ticket, operation: Operation, outcome: &Result<()>) {
        self.settle_at(ticket, None, operation, outcome);
    }

    /// As `settle`, of an operation that ended at `moment`; `None`: now.
    #[inline(always)]
    pub(crate) fn settle_at(
        &self,
        ticket: Ticket,
        moment: Option<Moment>,
        operation: Operation,
        outcome: &Result<()>,
    ) {
        match outcome {
            Ok(()) => process().recorder.complete(ticket, moment),
            Err(error) => self.note_failure(ticket, operation, error),
        }
    }

    #[cold]
    fn note_failure(&self, ticket: Ticket, operation: Operation, error: &Error) {
        process().recorder.fail(ticket, error.to_string());
        // A point-to-point operation fails alone; when its group failed with it, the group says so
        // to whoever asks next.
        if breaks(operation, error.kind()) {
            tracing::warn!(error = %error, "communicator failed");
            self.apply(Event::Failure(error.clone()));
        }
    }
}

/// Whether an operation that is on its way and fails like this takes its communicator along.
fn breaks(operation: Operation, kind: ErrorKind) -> bool {
    !operation.is_alone()
        && !matches!(
            kind,
            ErrorKind::InvalidArgument
                | ErrorKind::Unsupported
                | ErrorKind::State
                | ErrorKind::Interrupted
                | ErrorKind::Forked
        )
}

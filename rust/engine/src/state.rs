//! The one state of a communicator and what leads from each state to the next.
//!
//! Pure: it must not know groups, works or threads.

use std::ffi::CStr;

use ferrocomm_core::{Error, ErrorKind, Result};

/// What a communicator is.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// being joined; its operations would have nobody to talk to
    Unconfigured,
    /// serves operations
    Ready,
    /// serves no more, for this cause
    Failed(Error),
    /// ended by `abort`
    Aborted,
    /// ended by `finalize`
    Finalized,
}

/// What happens to a communicator.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// all ranks have joined
    Joined,
    /// something went wrong that no later operation can get around
    Failure(Error),
    /// somebody called `abort`
    Abort,
    /// somebody called `finalize`
    Finalize,
}

impl State {
    /// Its name, static and nul-terminated for C.
    pub(crate) fn name(&self) -> &'static CStr {
        match self {
            Self::Unconfigured => c"unconfigured",
            Self::Ready => c"ready",
            Self::Failed(_) => c"failed",
            Self::Aborted => c"aborted",
            Self::Finalized => c"finalized",
        }
    }

    /// The state after `event`; `None` when the event changes nothing.
    pub(crate) fn after(&self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Unconfigured, Event::Joined) => Some(Self::Ready),
            (Self::Unconfigured | Self::Ready, Event::Failure(cause)) => Some(Self::Failed(cause)),
            (Self::Unconfigured | Self::Ready | Self::Failed(_), Event::Abort) => {
                Some(Self::Aborted)
            }
            (Self::Finalized, _) => None,
            (_, Event::Finalize) => Some(Self::Finalized),
            // The first cause of failure stands, nothing is joined twice, and what was aborted
            // cannot fail.
            (Self::Aborted, Event::Abort | Event::Failure(_) | Event::Joined)
            | (Self::Failed(_), Event::Failure(_) | Event::Joined)
            | (Self::Ready, Event::Joined) => None,
        }
    }

    /// Whether an operation may start.
    pub(crate) fn admit(&self) -> Result<()> {
        match self {
            Self::Ready => Ok(()),
            Self::Failed(cause) => Err(cause
                .clone()
                .remedy("finalize the communicator and make a new one, or reconfigure it if it was made for that")),
            Self::Unconfigured => Err(Error::new(
                ErrorKind::State,
                "the communicator has no members yet",
            )
            .remedy("call reconfigure, and wait for the work that it returns")),
            Self::Aborted => Err(
                Error::new(ErrorKind::Aborted, "the communicator was aborted")
                    .remedy("make a new one"),
            ),
            Self::Finalized => Err(
                Error::new(ErrorKind::State, "the communicator is finalized")
                    .remedy("make a new one, or finalize later"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(what: &'static str) -> Event {
        Event::Failure(Error::new(ErrorKind::PeerLost, what))
    }

    /// The state that `events` lead to, from the start.
    fn walk(events: &[Event]) -> State {
        events.iter().fold(State::Unconfigured, |state, event| {
            state.after(event.clone()).unwrap_or(state)
        })
    }

    #[test]
    fn every_row_of_the_table() {
        use Event::{Abort, Finalize, Joined};
        let rows: [(&[Event], &CStr); 11] = [
            (&[], c"unconfigured"),
            (&[failure("a")], c"failed"),
            (&[Joined], c"ready"),
            (&[Joined, failure("a")], c"failed"),
            (&[Joined, failure("a"), Abort], c"aborted"),
            (&[Joined, failure("a"), Finalize], c"finalized"),
            (&[Joined, Abort], c"aborted"),
            (&[Joined, Abort, failure("a")], c"aborted"),
            (&[Joined, Abort, Finalize], c"finalized"),
            (&[Joined, Finalize], c"finalized"),
            (
                &[Joined, Finalize, failure("a"), Abort, Joined],
                c"finalized",
            ),
        ];
        for (events, name) in rows {
            assert_eq!(walk(events).name(), name, "after {events:?}");
        }
    }

    #[test]
    fn the_first_cause_stands_and_every_operation_raises_it() {
        let state = walk(&[Event::Joined, failure("first"), failure("second")]);
        let error = state.admit().unwrap_err();
        assert_eq!((error.kind(), error.what()), (ErrorKind::PeerLost, "first"));
        assert!(error.to_string().contains("make a new one"));
    }

    #[test]
    fn only_a_ready_communicator_admits_operations() {
        assert!(walk(&[Event::Joined]).admit().is_ok());
        assert_eq!(walk(&[]).admit().unwrap_err().kind(), ErrorKind::State);
        let aborted = walk(&[Event::Joined, Event::Abort]);
        assert_eq!(aborted.admit().unwrap_err().kind(), ErrorKind::Aborted);
        let finalized = walk(&[Event::Joined, Event::Finalize]);
        assert_eq!(finalized.admit().unwrap_err().kind(), ErrorKind::State);
    }
}

//! Calls that may block for ever, made on a thread of their own and waited for until a deadline.
//! Must not know what is called.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};

/// Runs `call` on another thread and waits for its answer. When the deadline passes first the thread
/// is left behind, with what it owns.
///
/// # Errors
/// The call's; `Timeout` with `what`; `Interrupted`; `Resources`, when there is no thread to be had.
pub(crate) fn bounded<T: Send + 'static>(
    what: &'static str,
    deadline: Deadline,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    bounded_unless(what, deadline, interrupt::check, call)
}

/// As `bounded`; `go_on` is asked now and then, and ends the wait with its error.
///
/// # Errors
/// As `bounded`; those of `go_on`.
pub(crate) fn bounded_unless<T: Send + 'static>(
    what: &'static str,
    deadline: Deadline,
    go_on: impl Fn() -> Result<()>,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (answer, answers) = channel();
    thread::Builder::new()
        .name(format!("fc-{what}"))
        .spawn(move || {
            // Nobody listens any more when the deadline has passed.
            let _too_late = answer.send(call());
        })
        .map_err(|error| {
            Error::new(ErrorKind::Resources, "a thread could not be started").got(error)
        })?;
    loop {
        let step = deadline.left().min(interrupt::INTERVAL);
        match answers.recv_timeout(step) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Panic, format!("{what} panicked")));
            }
            Err(RecvTimeoutError::Timeout) if deadline.passed() => {
                return Err(
                    Error::new(ErrorKind::Timeout, format!("{what} did not end in time"))
                        .expected(format!("{:?}", deadline.limit())),
                );
            }
            Err(RecvTimeoutError::Timeout) => go_on()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_call_that_does_not_end_is_left_behind_at_the_deadline() {
        let (end, ended) = channel::<()>();
        let outcome = bounded(
            "joining",
            Deadline::after(Duration::from_millis(20)),
            move || {
                // Ends when the test does.
                let _dropped = ended.recv();
                Ok(())
            },
        );
        assert_eq!(outcome.expect_err("never ends").kind(), ErrorKind::Timeout);
        drop(end);
    }

    #[test]
    fn its_answer_its_error_and_its_panic_come_through() {
        let far = || Deadline::after(Duration::from_secs(60));
        assert_eq!(bounded("one", far(), || Ok(7)).expect("seven"), 7);
        let error = Error::new(ErrorKind::PeerLost, "gone");
        let outcome: Result<()> = bounded("two", far(), move || Err(error));
        assert_eq!(outcome.expect_err("gone").kind(), ErrorKind::PeerLost);
        let outcome: Result<()> = bounded("three", far(), || panic!("on purpose"));
        assert_eq!(outcome.expect_err("panics").kind(), ErrorKind::Panic);
    }
}

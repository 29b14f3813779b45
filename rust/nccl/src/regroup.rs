//! Reconfiguration: a communicator that stays while its members change.
//!
//! Its members meet through a presence of another engine, whose handles this one passes on under its
//! own mark. Over the group that comes out of it they agree on how NCCL's communicator is made, by
//! `ways`; no store is asked. Whatever keeps one member from it fails that group, and so all
//! others. Must not know how members meet.

mod making;
mod ways;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::Operation;
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::group::Group;
use ferrocomm_core::reconfigure::{Handles, Presence, Reconfiguration, Request};
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};

use crate::comm::{Core, locked};
use crate::group::NcclGroup;
use crate::hints::Hints;
use crate::joining::{GroupOptions, Seat};
use making::Making;

/// What handles of this engine begin with.
const MARK: &str = "nccl+";

/// The presence of a communicator whose members meet through `meeting`.
///
/// # Errors
/// `Unsupported` without a driver or NCCL; `InvalidArgument` for hints and devices.
pub fn presence(options: &GroupOptions, meeting: Arc<dyn Presence>) -> Result<Arc<dyn Presence>> {
    Ok(Arc::new(NcclPresence {
        seat: Seat::prepare(options)?,
        meeting,
        last: Arc::default(),
    }))
}

struct NcclPresence {
    seat: Seat,
    meeting: Arc<dyn Presence>,
    last: Arc<Mutex<Last>>,
}

/// The communicator so far.
#[derive(Clone, Default)]
struct Last {
    core: Weak<Core>,
    /// a number that its ranks share with nobody else
    origin: u64,
}

/// The handles of the other engine.
fn stripped(handles: &Handles) -> Result<Handles> {
    let strip = |texts: &[String]| {
        let texts = texts.iter().enumerate().map(|(position, text)| {
            text.strip_prefix(MARK).map(str::to_owned).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    "a handle is not of a communicator of this engine",
                )
                .got(format!("position {position}"))
                .expected(format!("a text that begins with {MARK}"))
                .remedy("pass what get_init_handle() of nccl communicators returned")
            })
        });
        texts.collect::<Result<Vec<_>>>()
    };
    Ok(match handles {
        Handles::Ordered(texts) => Handles::Ordered(strip(texts)?),
        Handles::Unordered(texts) => Handles::Unordered(strip(texts)?),
    })
}

impl Presence for NcclPresence {
    fn handle(&self) -> String {
        format!("{MARK}{}", self.meeting.handle())
    }

    fn reconfigure(
        &self,
        request: Request,
        _known_here: Option<Arc<dyn Group>>,
    ) -> Result<Arc<dyn Reconfiguration>> {
        let deadline = Deadline::after(request.timeout);
        let mut hints = Hints::read(&request.hints)?;
        hints.abort_process = false;
        let handles = stripped(&request.handles)?;
        let Last { core, origin } = locked(&self.last).clone();
        let core = core.upgrade();
        let leave = |leaves| {
            if let Some(core) = &core {
                core.leave(leaves);
            }
        };
        leave(true);
        let met = self
            .meeting
            .reconfigure(Request { handles, ..request }, None)
            .inspect_err(|_| leave(false))?;
        let making = Making {
            seat: self.seat.like(&self.seat.name, Arc::new(hints)),
            former: core.map(|core| core.retire(origin)),
            last: self.last.clone(),
            deadline,
        };
        let attempt = Arc::new(Attempt {
            met: met.clone(),
            work: Arc::new(Work::new(Operation::Reconfigure, 0)),
            given_up: Mutex::default(),
            fresh: Mutex::default(),
            made: OnceLock::new(),
        });
        let this = attempt.clone();
        met.work().on_complete(move |outcome| match outcome {
            Ok(()) => this.make(making),
            Err(error) => this.end(Err(error.clone())),
        });
        Ok(attempt)
    }

    fn refuse(&self, uuid: i64, handles: &Handles) {
        // Handles that are none of this engine's are nobody's to be told.
        if let Ok(handles) = stripped(handles) {
            self.meeting.refuse(uuid, &handles);
        }
    }

    fn leave(&self) {
        self.meeting.leave();
    }
}

/// A reconfiguration on its way.
struct Attempt {
    met: Arc<dyn Reconfiguration>,
    work: Arc<Work>,
    /// why it shall not go on
    given_up: Mutex<Option<Error>>,
    /// whoever asks for it first has it
    fresh: Mutex<Option<Arc<NcclGroup>>>,
    made: OnceLock<Weak<NcclGroup>>,
}

impl Attempt {
    /// Makes the communicator, on a thread of its own: this one is the other engine's.
    fn make(self: &Arc<Self>, making: Making) {
        let this = self.clone();
        let thread = thread::Builder::new().name("fc-regroup".into());
        let started = thread.spawn(move || {
            // The first outcome stands; this one is for a panic.
            let _last_word = LastWord(this.clone());
            let outcome = making.run(&this);
            this.end(outcome);
        });
        if let Err(error) = started {
            let what = "a thread could not be started";
            self.end(Err(Error::new(ErrorKind::Resources, what).got(error)));
        }
    }

    fn end(&self, outcome: Result<Arc<NcclGroup>>) {
        let outcome = outcome.map(|group| {
            self.made.get_or_init(|| Arc::downgrade(&group));
            *locked(&self.fresh) = Some(group);
        });
        self.work.run(self.work.complete(outcome));
    }

    fn given_up(&self) -> Option<Error> {
        locked(&self.given_up).clone()
    }

    fn give_up(&self, cause: Error) {
        locked(&self.given_up).get_or_insert(cause);
    }
}

struct LastWord(Arc<Attempt>);

impl Drop for LastWord {
    fn drop(&mut self) {
        let what = "a reconfiguration panicked";
        self.0.end(Err(Error::new(ErrorKind::Panic, what)));
    }
}

impl Reconfiguration for Attempt {
    fn work(&self) -> &Arc<Work> {
        &self.work
    }

    fn group(&self) -> Result<Arc<dyn Group>> {
        let on_its_way = || Error::new(ErrorKind::State, "the members are still being met");
        self.work.outcome().ok_or_else(on_its_way)??;
        let fresh = locked(&self.fresh).take();
        fresh
            .or_else(|| self.made.get()?.upgrade())
            .map(|group| group as Arc<dyn Group>)
            .ok_or_else(|| Error::new(ErrorKind::State, "the group is gone"))
    }

    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()> {
        let begun = Instant::now();
        if let Err(error) = self.met.wait(self.met.work(), limit)
            && error.kind() == ErrorKind::Interrupted
        {
            return Err(error);
        }
        let (told, hear) = channel();
        work.on_complete(move |outcome| {
            // A wait that was interrupted hears nothing more.
            let _nobody_waits = told.send(outcome.clone());
        });
        loop {
            match hear.recv_timeout(interrupt::INTERVAL) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return work.outcome().unwrap_or(Ok(())),
                Err(RecvTimeoutError::Timeout) => interrupt::check()?,
            }
            if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
                self.give_up(late(limit));
            }
        }
    }

    fn abort(&self) {
        let error = Error::new(ErrorKind::Aborted, "the communicator was aborted")
            .remedy("reconfigure with a new uuid");
        self.give_up(error);
        self.met.abort();
    }
}

fn late(limit: Duration) -> Error {
    let what = "the communicator was not made in time";
    Error::new(ErrorKind::Timeout, what).expected(format!("at most {limit:?}"))
}

//! Communicators whose members change: one after the other, each with its own group, behind one
//! presence in the engine.
//!
//! Every reconfiguration ends in a communicator of its own, so that whatever was started before
//! belongs to the one it was started on, and cannot touch the next. Must not know how members meet.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ferrocomm_core::call::{Call, Operation};
use ferrocomm_core::group::{Group, Part};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reconfigure::{Handles, Presence, Reconfiguration, Request};
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::check::invalid;
use crate::communicator::{Communicator, CommunicatorOptions, positive};
use crate::pending::Pending;
use crate::place::Place;
use crate::process::generation;

const DOING: &str = "reconfigure";

/// Wishes for the engine, by name.
type Hints = Vec<(String, String)>;

/// What the next group is to be.
#[derive(Clone, Debug)]
pub struct ReconfigureOptions {
    /// the same on all members; never used before on this communicator
    pub uuid: i64,
    /// the members
    pub handles: Handles,
    /// how long it may take; `None`: the communicator's time-out
    pub timeout: Option<Duration>,
    /// wishes for the engine, by name; what earlier ones said counts where these say nothing
    pub hints: Vec<(String, String)>,
}

/// Whether members are being met.
enum Stage {
    /// no
    Settled,
    /// the engine is being asked
    Starting,
    /// yes
    Meeting(Arc<dyn Reconfiguration>),
    /// they were, until `abort`; the engine's last word is awaited
    GivenUp,
}

/// What a reconfigurable communicator is now.
struct Now {
    stage: Stage,
    /// what operations are called on
    communicator: Arc<Communicator>,
    /// whether there has been a group
    configured: bool,
    used: BTreeSet<i64>,
    hints: Hints,
}

/// A communicator whose members change. Any thread may use it.
pub struct Reconfigurable {
    name: Arc<str>,
    /// of the process it was made in
    generation: u32,
    presence: Arc<dyn Presence>,
    now: RwLock<Now>,
}

impl Reconfigurable {
    /// Makes one that has no members yet. Talks to nobody. Rank and size are the launcher's, and
    /// stand for nothing until the first reconfiguration.
    ///
    /// # Errors
    /// `InvalidArgument`; `Unsupported` for an engine whose groups cannot change.
    pub fn create(options: CommunicatorOptions) -> Result<Arc<Self>> {
        let place = Place::of(&options)?;
        let presence = options.backend.presence(&options)?;
        Ok(Self::of_presence(place, presence, options.hints))
    }

    pub(crate) fn of_presence(
        place: Place,
        presence: Arc<dyn Presence>,
        hints: Hints,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: place.name.clone(),
            generation: generation(),
            presence,
            now: RwLock::new(Now {
                stage: Stage::Settled,
                communicator: place.vacant(),
                configured: false,
                used: BTreeSet::new(),
                hints,
            }),
        })
    }

    /// Whether this process may use it. Takes no lock, which a thread of the parent may have held.
    ///
    /// # Errors
    /// `Forked`, in a child of the process that made it.
    pub fn check_process(&self) -> Result<()> {
        if self.generation == generation() {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Forked, "the communicator was made before a fork")
            .remedy("make a new communicator in the child");
        Err(error.communicator(&self.name))
    }

    fn now(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Now> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What operations are called on now. Whoever holds it sees a reconfiguration as its end.
    pub fn current(&self) -> Arc<Communicator> {
        self.now().communicator.clone()
    }

    /// What the others reach this one by.
    ///
    /// # Errors
    /// `State` once it is finalized.
    pub fn handle(&self) -> Result<String> {
        self.check_process()?;
        if self.current().is_finalized() {
            return Err(self.named(finalized(), "init_handle"));
        }
        Ok(self.presence.handle())
    }

    fn named(&self, error: Error, doing: &'static str) -> Error {
        error.communicator(&self.name).operation(doing)
    }

    /// Starts to meet the members of the next group. From here on the old one serves no more. When
    /// it fails the communicator has failed, or still has no members, and may be reconfigured again.
    ///
    /// # Errors
    /// `InvalidArgument` for a uuid that was used before and for handles that cannot be a group with
    /// this communicator, `State` when it is finalized or another one is on its way, `Mismatch` for
    /// handles of an engine that does not fit. All of them leave everything as it was.
    pub fn reconfigure(self: &Arc<Self>, options: ReconfigureOptions) -> Result<Pending> {
        self.check_process()?;
        self.try_reconfigure(options)
            .map_err(|error| self.named(error, DOING))
    }

    fn try_reconfigure(self: &Arc<Self>, options: ReconfigureOptions) -> Result<Pending> {
        let ReconfigureOptions {
            uuid,
            handles,
            timeout,
            hints,
        } = options;
        let (old, hints) = self.begin(uuid, hints).inspect_err(|error| {
            if error.kind() == ErrorKind::InvalidArgument {
                self.presence.refuse(uuid, &handles);
            }
        })?;
        let request = Request {
            uuid,
            handles,
            timeout: positive(timeout.unwrap_or_else(|| old.timeout())).inspect_err(|_| {
                self.change().stage = Stage::Settled;
            })?,
            hints: hints.clone(),
        };
        // No lock is held: what the old group had pending ends here, and its callbacks run.
        let begun = self
            .presence
            .reconfigure(request, old.group_if_joined())
            .inspect_err(|_| self.change().stage = Stage::Settled)?;
        let place = old.place();
        old.supersede();
        let meeting = place.vacant();
        meeting.inherit_registered(&old);
        meeting.attach(Arc::new(Gathering(begun.clone())));
        let work = Arc::new(Work::new(Operation::Reconfigure, 0));
        let given_up = {
            let mut now = self.change();
            now.used.insert(uuid);
            now.hints = hints;
            now.communicator = meeting.clone();
            match now.stage {
                Stage::GivenUp => true,
                Stage::Settled | Stage::Starting | Stage::Meeting(_) => {
                    now.stage = Stage::Meeting(begun.clone());
                    false
                }
            }
        };
        let (this, whole, met) = (self.clone(), work.clone(), begun.clone());
        begun.work().on_complete(move |outcome| {
            let outcome = this.settle(outcome.clone().and_then(|()| met.group()));
            drop(old);
            whole.run(whole.complete(outcome));
        });
        if given_up {
            begun.abort();
        }
        Ok(Pending::new(meeting, work))
    }

    /// Takes the right to reconfigure; the communicator so far, and all hints.
    fn begin(&self, uuid: i64, hints: Hints) -> Result<(Arc<Communicator>, Hints)> {
        let mut now = self.change();
        if now.communicator.is_finalized() {
            return Err(finalized());
        }
        if !matches!(now.stage, Stage::Settled) {
            return Err(Error::new(
                ErrorKind::State,
                "the communicator is being reconfigured already",
            )
            .remedy("wait for that work, or abort the communicator"));
        }
        if now.used.contains(&uuid) {
            return Err(invalid("this uuid was used before")
                .got(format!("uuid {uuid}"))
                .expected("one that this communicator has not seen")
                .remedy("draw a new uuid for every reconfiguration, the same on all members"));
        }
        now.stage = Stage::Starting;
        let mut all = now.hints.clone();
        all.retain(|(key, _)| hints.iter().all(|(newer, _)| newer != key));
        all.extend(hints);
        Ok((now.communicator.clone(), all))
    }

    /// Puts the outcome in the place of the communicator so far.
    fn settle(&self, outcome: Result<Arc<dyn Group>>) -> Result<()> {
        let outcome = outcome.map_err(|error| self.named(error, DOING));
        let mut now = self.change();
        // What was set meanwhile is for what comes next, too.
        let place = now.communicator.place();
        let given_up = matches!(mem::replace(&mut now.stage, Stage::Settled), Stage::GivenUp);
        let outcome = match outcome {
            Ok(group) if given_up => {
                group.abort();
                Err(self.named(aborted(), DOING))
            }
            outcome => outcome,
        };
        let next = match &outcome {
            Ok(group) => place.occupied(group.clone()),
            Err(_) if given_up => place.aborted(),
            Err(error) if now.configured => place.failed(error.clone()),
            Err(_) => place.vacant(),
        };
        next.inherit_registered(&now.communicator);
        let before = mem::replace(&mut now.communicator, next.clone());
        now.configured |= outcome.is_ok();
        drop(now);
        drop(before);
        // With no lock held: it is the client's.
        if let Some(cause) = next.failure() {
            next.shared().tell_failure(cause);
        }
        outcome.map(drop)
    }

    /// Closes the communicator; every member calls it.
    ///
    /// # Errors
    /// As for a communicator; `State` while it is being reconfigured.
    pub fn finalize(&self) -> Result<()> {
        self.check_process()?;
        let communicator = {
            let now = self.now();
            if !matches!(now.stage, Stage::Settled) {
                let error = Error::new(ErrorKind::State, "the communicator is being reconfigured");
                return Err(self.named(
                    error.remedy("wait for that work, or abort the communicator first"),
                    "finalize",
                ));
            }
            now.communicator.clone()
        };
        let outcome = communicator.finalize();
        if communicator.is_finalized() {
            self.presence.leave();
        }
        outcome
    }

    /// Fails everything pending on this rank, a reconfiguration included. It may be reconfigured.
    pub fn abort(&self) {
        if self.check_process().is_err() {
            return;
        }
        let (meeting, communicator) = {
            let mut now = self.change();
            let meeting = match mem::replace(&mut now.stage, Stage::GivenUp) {
                Stage::Settled => {
                    now.stage = Stage::Settled;
                    None
                }
                Stage::Meeting(meeting) => Some(meeting),
                Stage::Starting | Stage::GivenUp => None,
            };
            (meeting, now.communicator.clone())
        };
        match meeting {
            // The communicator that stands for it ends with it.
            Some(meeting) => meeting.abort(),
            None => communicator.abort(),
        }
    }

    /// For whoever gives up the communicator: aborts what is still pending, and leaves.
    pub fn close(&self) {
        if self.check_process().is_err() {
            return;
        }
        let meeting = matches!(self.now().stage, Stage::Meeting(_));
        if meeting {
            self.abort();
        }
        self.current().close();
        self.presence.leave();
    }
}

impl Drop for Reconfigurable {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.presence.leave();
        } else {
            // The engine's locks may be held by threads that exist in the parent alone.
            mem::forget(self.presence.clone());
        }
    }
}

fn finalized() -> Error {
    Error::new(ErrorKind::State, "the communicator is finalized")
        .remedy("make a new one, or finalize later")
}

fn aborted() -> Error {
    Error::new(ErrorKind::Aborted, "the communicator was aborted")
        .remedy("reconfigure it with a uuid that was not used before")
}

/// What stands in the group's place while members are met: nothing can be issued, and waiting drives
/// the meeting.
struct Gathering(Arc<dyn Reconfiguration>);

impl Group for Gathering {
    fn rank(&self) -> GroupRank {
        GroupRank::new(0)
    }

    fn size(&self) -> usize {
        0
    }

    fn issue(&self, _: Call) -> Result<Arc<Work>> {
        Err(Error::new(
            ErrorKind::State,
            "the communicator is being reconfigured",
        ))
    }

    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()> {
        self.0.wait(work, limit)
    }

    fn cancel(&self, _: &Arc<Work>) {
        self.0.abort();
    }

    fn split(&self, _: &[GroupRank], _: &Part<'_>) -> Result<Arc<dyn Group>> {
        Err(Error::new(
            ErrorKind::State,
            "the communicator is being reconfigured",
        ))
    }

    fn stand_aside(&self, part: &Part<'_>) -> Result<()> {
        self.split(&[], part).map(drop)
    }

    fn finalize(&self, _: Duration) -> Result<()> {
        Ok(())
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn failure(&self) -> Option<Error> {
        None
    }

    fn transport(&self) -> String {
        "none".into()
    }
}

//! How a communicator whose members change ends: another one comes in its place, perhaps out of NCCL's
//! communicator of this one. And how it hears that members are lost, or have left for another
//! group. Must not know how the other one is made.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::{Error, ErrorKind};

use crate::comm::{Core, locked};
use crate::handle::Handle;
use crate::ties::Ties;

/// How long an operation may be on the device after a member has left. The member may have done its part
/// before: then it ends within that.
const LINGER: Duration = Duration::from_secs(1);

/// What is left of a communicator for the next one.
pub(crate) struct Former {
    /// NCCL's, unless a graph uses it, memory that it mapped is held, or a call is stuck in it
    pub(crate) handle: Option<Arc<Handle>>,
    /// whether it never failed and nothing was on its way
    pub(crate) sound: bool,
    pub(crate) origin: u64,
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
}

impl Core {
    /// Listens to the group over which the members met.
    pub(crate) fn tie(self: &Arc<Self>, ties: Ties) {
        let core = Arc::downgrade(self);
        let ties = self.ties.get_or_init(|| ties);
        ties.on_failure(move || {
            if let Some(core) = core.upgrade() {
                core.watchdog.nudge();
            }
        });
    }

    /// Whether this rank itself is about to leave, so that what the others hear of it is no news.
    pub(crate) fn leave(&self, leaves: bool) {
        if let Some(ties) = self.ties.get() {
            ties.leaving.store(leaves, Ordering::Release);
        }
    }

    /// Why operations cannot end any more, as far as other members are the cause. One that has merely
    /// left is none until an operation waits for it.
    pub(crate) fn broken_tie(&self) -> Option<Error> {
        let ties = self.ties.get()?;
        if ties.leaving.load(Ordering::Acquire) {
            return None;
        }
        let failure = ties.failure()?;
        let has_left = matches!(failure.kind(), ErrorKind::Aborted | ErrorKind::State);
        (!has_left || self.flights.runs_for(LINGER)).then_some(failure)
    }

    /// Ends it for another communicator: what is on its way fails, and NCCL's communicator is handed on.
    pub(crate) fn retire(&self, origin: u64) -> Former {
        self.reap();
        let error = Error::new(ErrorKind::Aborted, "the communicator was reconfigured")
            .remedy("issue the operation again, on the new group");
        let (whole, suspended) = {
            let mut standing = locked(&self.standing);
            let whole = standing.failure.is_none() && !standing.suspended;
            standing.failure.get_or_insert_with(|| error.clone());
            (whole, standing.suspended)
        };
        let idle = self.flights.is_empty();
        // What is on the device uses the client's buffers until it is stopped.
        if whole && !idle && !self.handle.revoke() {
            self.give_up();
        }
        self.flights.fail(&error);
        let held = self.issuing_soon();
        let spare = held.is_some() && !suspended && !self.is_in_graphs() && !self.handle.is_lent();
        Former {
            handle: spare.then(|| self.handle.detach()).flatten(),
            sound: whole && idle,
            origin,
            rank: self.rank,
            size: self.size,
        }
    }
}

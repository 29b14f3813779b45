//! What an engine offers for a communicator whose members change: a presence, by which other
//! processes reach it whatever group it is in, and reconfigurations, which lead to its next group.
//!
//! The layer above keeps the communicator's state and the identifiers it has used. An engine that
//! cannot do it has no presence to give. Must not know how members meet.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::group::Group;
use crate::work::Work;

/// The members of the next group, by the handles their presences gave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handles {
    /// The rank is the position.
    Ordered(Vec<String>),
    /// The engine chooses ranks, on all members alike, from the handles alone: first the members
    /// that come out of one group, in their order there, then the others.
    Unordered(Vec<String>),
}

/// What is asked of a presence.
#[derive(Clone, Debug)]
pub struct Request {
    /// the same on all members, and never used on any of their communicators before
    pub uuid: i64,
    /// who shall be in the group; this presence is one of them
    pub handles: Handles,
    /// how long it may take until all members have come
    pub timeout: Duration,
    /// wishes for the engine, by name
    pub hints: Vec<(String, String)>,
}

/// A communicator's presence in an engine.
pub trait Presence: Send + Sync {
    /// What others reach it by: opaque text without spaces that carries the version of its form,
    /// all addresses, and the rank in the present group, if there is one.
    fn handle(&self) -> String;

    /// Starts to meet the members of the next group. `previous` is the group the communicator has
    /// had, in whatever state; it serves no more from here on, and the engine ends it and takes over
    /// what the next one can use.
    ///
    /// # Errors
    /// `InvalidArgument` when the handles cannot be a group of which this presence is a member,
    /// `Mismatch` when they come from an engine that does not fit, `State` while another
    /// reconfiguration is on its way. The previous group is then as it was.
    fn reconfigure(
        &self,
        request: Request,
        previous: Option<Arc<dyn Group>>,
    ) -> Result<Arc<dyn Reconfiguration>>;

    /// Tells the other members of `handles` that this one will not come, since it has seen `uuid`
    /// before. Waits for nobody.
    fn refuse(&self, uuid: i64, handles: &Handles) {
        let _nobody_is_told = (uuid, handles);
    }

    /// Ends the presence: its handle leads nowhere any more. Idempotent.
    fn leave(&self);
}

/// A reconfiguration on its way.
pub trait Reconfiguration: Send + Sync {
    /// Complete when it is over.
    fn work(&self) -> &Arc<Work>;

    /// The next group, once the work has succeeded; the same on every call.
    ///
    /// # Errors
    /// How the reconfiguration failed; `State` while it is on its way.
    fn group(&self) -> Result<Arc<dyn Group>>;

    /// Drives the engine until `work` is complete; `work` is this reconfiguration's, or one that is
    /// completed by a callback of it. When `limit` passes first, the reconfiguration fails with a
    /// time-out. Returns how `work` ended.
    ///
    /// # Errors
    /// How it failed; `Interrupted` when the client ended the wait, and the reconfiguration goes on.
    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()>;

    /// Fails it with `Aborted`; the members that have come hear of it. Idempotent, from any thread.
    fn abort(&self);
}

//! Reconfiguration: a communicator that stays while the groups it is in change.
//!
//! Its handle says how to reach it, so the members of the next group meet on the connections that
//! their processes have, or dial one another, and no store is asked. `machine` is what they say,
//! `driver` how it travels. Must not know what state the communicator is in: the layer above does.

mod driver;
mod handle;
mod machine;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::reconfigure::{Handles, Presence, Reconfiguration, Request};
use ferrocomm_core::work::Work;

use crate::bootstrap::Member;
use crate::engine::HostGroup;
use crate::hints;
use crate::progress::{Progress, done};
pub(crate) use driver::Gatherings;
use driver::{Attempt, group_of};
pub(crate) use handle::PresenceId;
use handle::{Handle, Origin};

/// The presence of one communicator.
pub(crate) struct HostPresence {
    progress: Arc<Progress>,
    id: PresenceId,
    name: Arc<str>,
    /// version and transport in words
    facts: String,
    past: Arc<Mutex<Past>>,
}

/// Where the communicator was last.
struct Past {
    origin: Origin,
    group: Weak<HostGroup>,
}

impl HostPresence {
    /// Makes a presence that others can reach from now on. `launched` is the launcher's rank.
    pub(crate) fn new(
        progress: Arc<Progress>,
        id: u64,
        name: Arc<str>,
        facts: String,
        launched: u32,
    ) -> Self {
        let id = PresenceId(id);
        progress.with(|core| core.appear(id));
        let past = Past {
            origin: Origin::Launched(launched),
            group: Weak::new(),
        };
        Self {
            progress,
            id,
            name,
            facts,
            past: Arc::new(Mutex::new(past)),
        }
    }

    fn own(&self) -> Handle {
        Handle {
            id: self.id,
            origin: lock(&self.past).origin,
            facts: self.facts.clone(),
            member: self.progress.with(|core| core.endpoint.me.clone()),
        }
    }

    /// Members in the order of their ranks, and this one's rank.
    fn members(&self, request: &Request) -> Result<(Vec<Handle>, GroupRank)> {
        let members = handle::members(&request.handles)?;
        for (position, member) in members.iter().enumerate() {
            if member.facts != self.facts {
                return Err(Error::new(
                    ErrorKind::Mismatch,
                    "a member has another version or transport",
                )
                .got(format!(
                    "{} at position {position}, {}",
                    member.facts, member.id
                ))
                .expected(format!("{} as here", self.facts))
                .remedy("install one version everywhere, and set FERROCOMM_HOST_TRANSPORT alike"));
            }
        }
        let me = members.iter().position(|member| member.id == self.id);
        let me = me.and_then(|me| u32::try_from(me).ok()).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "the handle of this communicator is not among the handles",
            )
            .got(format!("{} handles", members.len()))
            .expected(format!("{} among them", self.id))
            .remedy("call reconfigure on the members of the new group alone")
        })?;
        Ok((members, GroupRank::new(me)))
    }

    fn same_process(&self) -> Result<()> {
        if self.progress.is_own() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "a communicator cannot be used in a forked child",
        )
        .communicator(&self.name)
        .remedy("make a communicator of its own in the child"))
    }
}

impl Presence for HostPresence {
    fn handle(&self) -> String {
        self.own().encode()
    }

    fn reconfigure(
        &self,
        request: Request,
        _ends_by_itself: Option<Arc<dyn Group>>,
    ) -> Result<Arc<dyn Reconfiguration>> {
        self.same_process()?;
        let eager = hints::eager(&request.hints)?;
        let (members, me) = self.members(&request)?;
        let ids: Vec<PresenceId> = members.iter().map(|member| member.id).collect();
        let members: Vec<Member> = members.into_iter().map(|member| member.member).collect();
        let members = Arc::new(members);
        if let Some(group) = lock(&self.past).group.upgrade() {
            group.give_way();
        }
        let comm = group_of(request.uuid, &ids);
        let attempt = Attempt {
            uuid: request.uuid,
            ids,
            members: members.clone(),
            me,
            timeout: request.timeout,
        };
        let work = self
            .progress
            .with(|core| core.begin_attempt(self.id, attempt))?;
        Ok(Arc::new(HostReconfiguration {
            progress: self.progress.clone(),
            id: self.id,
            uuid: request.uuid,
            name: self.name.clone(),
            me,
            members,
            comm,
            eager,
            work,
            past: self.past.clone(),
            group: OnceLock::new(),
        }))
    }

    fn refuse(&self, uuid: i64, handles: &Handles) {
        // Handles that are no group are nobody's to be told.
        let Ok(members) = handle::members(handles) else {
            return;
        };
        if self.progress.is_own() {
            self.progress
                .with(|core| core.refuse_attempt(self.id, uuid, &members));
        }
    }

    fn leave(&self) {
        if self.progress.is_own() {
            self.progress.with(|core| core.disappear(self.id));
        }
    }
}

/// An attempt to meet.
struct HostReconfiguration {
    progress: Arc<Progress>,
    id: PresenceId,
    uuid: i64,
    name: Arc<str>,
    me: GroupRank,
    members: Arc<Vec<Member>>,
    comm: CommId,
    /// connect to all at once
    eager: bool,
    work: Arc<Work>,
    past: Arc<Mutex<Past>>,
    /// whoever asked for it first has it
    group: OnceLock<Weak<HostGroup>>,
}

impl HostReconfiguration {
    fn open(&self) -> Result<Arc<HostGroup>> {
        let (name, members) = (self.name.clone(), self.members.clone());
        let group = HostGroup::open(&self.progress, self.comm, name, self.me, members);
        let group = Arc::new(group);
        *lock(&self.past) = Past {
            origin: Origin::Group(self.comm, self.me.get()),
            group: Arc::downgrade(&group),
        };
        // Those that were in the group before alone are in none any more.
        self.progress.with(|core| core.forget_dead(|_| false));
        if self.eager {
            group.connect_all()?;
        }
        Ok(group)
    }
}

impl Reconfiguration for HostReconfiguration {
    fn work(&self) -> &Arc<Work> {
        &self.work
    }

    fn group(&self) -> Result<Arc<dyn Group>> {
        let on_its_way = || Error::new(ErrorKind::State, "the members are still being met");
        self.work.outcome().ok_or_else(on_its_way)??;
        let mut opened = None;
        let known = match self.group.get() {
            Some(known) => known,
            None => {
                let group = opened.insert(self.open()?);
                self.group.get_or_init(|| Arc::downgrade(group))
            }
        };
        known
            .upgrade()
            .map(|group| group as Arc<dyn Group>)
            .ok_or_else(|| Error::new(ErrorKind::State, "the group is gone"))
    }

    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()> {
        if let Err(error) = self.progress.wait_until(done(work), limit) {
            // An interrupt ends the wait, not the meeting: the caller decides about that.
            if error.kind() != ErrorKind::Timeout {
                return Err(error);
            }
            self.progress.with(|core| core.attempt_due(self.id, true));
        }
        self.progress.wait_until(done(work), None)?;
        work.outcome().unwrap_or(Ok(()))
    }

    fn abort(&self) {
        if self.progress.is_own() {
            self.progress
                .with(|core| core.abort_attempt(self.id, Some(self.uuid)));
        }
    }
}

fn lock(past: &Mutex<Past>) -> MutexGuard<'_, Past> {
    past.lock().unwrap_or_else(PoisonError::into_inner)
}

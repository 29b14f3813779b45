//! What the members do once they have met: they tell each other what they had, make NCCL's communicator
//! in the way that follows from it, and hear that all have it. Must not know how they have met.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ptr;
use std::sync::{Arc, Mutex};

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::sys::{
    NCCL_SHRINK_DEFAULT, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
};
use ferrocomm_nccl_sys::{Nccl, symbol};

use super::ways::{Able, Facts, Way, way};
use super::{Attempt, Last, late};
use crate::bootstrap::{ID_BYTES, Id, root_of, roots};
use crate::comm::{Core, locked};
use crate::errors;
use crate::group::NcclGroup;
use crate::handle::{Comm, Handle, finished};
use crate::joining::{Made, Seat, fresh_id, init, int, unique_id};
use crate::retiring::Former;
use crate::ties::Ties;

/// Bytes of what a member says first: its facts, and a number of its own.
const NOTE: usize = Facts::BYTES + 8;

/// A communicator to be made.
pub(super) struct Making {
    pub(super) seat: Seat,
    pub(super) former: Option<Former>,
    pub(super) last: Arc<Mutex<Last>>,
    pub(super) deadline: Deadline,
}

impl Making {
    /// Makes it, together with the others of the group that `attempt` has met.
    pub(super) fn run(mut self, attempt: &Attempt) -> Result<Arc<NcclGroup>> {
        let ties = Ties::new(attempt.met.group()?)?;
        let former = self.former.take();
        let made = self.make(&ties, former, attempt);
        let (core, origin) = made.inspect_err(|error| ties.fail(error.clone()))?;
        *locked(&self.last) = Last {
            core: Arc::downgrade(&core),
            origin,
        };
        core.tie(ties);
        Ok(Arc::new(NcclGroup::new(core)))
    }

    fn make(
        &self,
        ties: &Ties,
        former: Option<Former>,
        attempt: &Attempt,
    ) -> Result<(Arc<Core>, u64)> {
        let stop = || {
            let late = || self.deadline.passed().then(|| late(self.deadline.limit()));
            attempt.given_up().or_else(late)
        };
        let nccl = self.seat.nccl;
        let own = note(&facts(nccl, former.as_ref(), self.seat.hints.blocking));
        let notes = ties.gather(own, self.deadline, stop)?;
        let members: Vec<Facts> = notes.iter().map(facts_of).collect();
        let origin = number_of(&notes[0]);
        let way = way(&members);
        tracing::info!(communicator = &*self.seat.name, ?way, "nccl communicator");
        let parent = former.and_then(|former| former.handle);
        let ids = self.ids(ties, &way, parent.as_deref(), stop)?;
        let (rank, size) = ties.place();
        let (deadline, call_parent) = (self.deadline, parent.clone());
        let call = move |nccl: &Nccl, config: *mut ncclConfig_t, comm: *mut ncclComm_t| {
            let parent = call_parent.as_deref();
            match way {
                Way::Shrink(gone) => shrink(nccl, config, comm, parent, gone, deadline),
                Way::Grow(from) => {
                    let newcomer = rank.get() >= from;
                    let growth = Growth {
                        size,
                        place: if newcomer { int(rank.index())? } else { -1 },
                        id: (newcomer || rank.get() == 0).then(|| unique_id(&ids[0])),
                    };
                    grow(nccl, config, comm, parent, &growth, deadline)
                }
                Way::Fresh => init(nccl, config, comm, size, rank, &ids),
            }
        };
        let heard = || stop().or_else(|| ties.failure()).map_or(Ok(()), Err);
        let handle = self.seat.join_unless(self.deadline, heard, call)?;
        // It has served its purpose, and is given up before the new one is used.
        drop(parent);
        let core = Core::open(
            self.seat.like(&self.seat.name, self.seat.hints.clone()),
            handle,
            size,
            rank,
        )?;
        ties.gather([0u8; 1], self.deadline, stop)?;
        Ok((core, origin))
    }

    /// NCCL's ids for `way`, the same on all members.
    fn ids(
        &self,
        ties: &Ties,
        way: &Way,
        parent: Option<&Handle>,
        stop: impl Fn() -> Option<Error>,
    ) -> Result<Vec<Id>> {
        let nccl = self.seat.nccl;
        let (rank, size) = ties.place();
        let count = match way {
            Way::Shrink(_) => return Ok(Vec::new()),
            Way::Grow(_) => 1,
            Way::Fresh => roots(size, symbol!(nccl, ncclCommInitRankScalable).is_ok()),
        };
        let place = |root| root_of(root, size, count);
        let is_root = (0..count).any(|root| place(root) == rank.index());
        let own = match (is_root, way) {
            (false, _) => [0; ID_BYTES],
            (true, Way::Grow(_)) => growth_id(nccl, parent)?,
            (true, _) => fresh_id(nccl)?,
        };
        let all = ties.gather(own, self.deadline, stop)?;
        Ok((0..count).map(|root| all[place(root)]).collect())
    }
}

fn facts(nccl: &Nccl, former: Option<&Former>, blocking: bool) -> Facts {
    let sound = former.is_some_and(|former| former.sound);
    let able = Able {
        spare: former.is_some_and(|former| former.handle.is_some()),
        sound,
        // One that failed and does not block would tell of its old failure when it is asked how far
        // the call is.
        shrink: symbol!(nccl, ncclCommShrink).is_ok() && (blocking || sound),
        grow: symbol!(nccl, ncclCommGrow).is_ok() && symbol!(nccl, ncclCommGetUniqueId).is_ok(),
    };
    match former {
        Some(former) => Facts {
            origin: former.origin,
            rank: former.rank.get(),
            size: u32::try_from(former.size).unwrap_or(u32::MAX),
            able,
        },
        None => Facts {
            able,
            ..Facts::default()
        },
    }
}

/// The facts, and a number that no other member draws.
fn note(facts: &Facts) -> [u8; NOTE] {
    let number = RandomState::new().hash_one(std::process::id()) | 1;
    let mut note = [0; NOTE];
    note[..Facts::BYTES].copy_from_slice(&facts.to_bytes());
    note[Facts::BYTES..].copy_from_slice(&number.to_le_bytes());
    note
}

fn facts_of(note: &[u8; NOTE]) -> Facts {
    note.first_chunk()
        .map(Facts::from_bytes)
        .unwrap_or_default()
}

fn number_of(note: &[u8; NOTE]) -> u64 {
    note.last_chunk().copied().map_or(0, u64::from_le_bytes)
}

fn comm_of(parent: Option<&Handle>) -> Result<Comm> {
    let missing = || Error::new(ErrorKind::State, "the communicator so far is gone");
    parent.ok_or_else(missing)?.get()
}

fn growth_id(nccl: &Nccl, parent: Option<&Handle>) -> Result<Id> {
    let ask = symbol!(nccl, ncclCommGetUniqueId).map_err(|error| errors::missing(&error))?;
    let Comm(comm) = comm_of(parent)?;
    let mut id = ncclUniqueId {
        internal: [0; ID_BYTES],
    };
    // SAFETY: the communicator is alive, since `parent` is borrowed, and a place for one id.
    let result = unsafe { ask(comm, &raw mut id) };
    if result == ncclResult_t::ncclSuccess {
        return Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]));
    }
    // SAFETY: as above.
    Err(unsafe { errors::failed(nccl, comm, "ncclCommGetUniqueId", result, None) })
}

fn shrink(
    nccl: &Nccl,
    config: *mut ncclConfig_t,
    comm: *mut ncclComm_t,
    parent: Option<&Handle>,
    gone: Vec<u32>,
    deadline: Deadline,
) -> Result<Made> {
    let call = symbol!(nccl, ncclCommShrink).map_err(|error| errors::missing(&error))?;
    let Comm(old) = comm_of(parent)?;
    let mut gone: Vec<i32> = gone
        .into_iter()
        .map(|rank| int(rank as usize))
        .collect::<Result<_>>()?;
    let count = int(gone.len())?;
    let flags = NCCL_SHRINK_DEFAULT as i32;
    // SAFETY: the old one is alive, since `parent` is borrowed; `count` ranks; places for a communicator
    // and its configuration.
    let result = unsafe { call(old, gone.as_mut_ptr(), count, comm, config, flags) };
    told_by(nccl, old, "ncclCommShrink", result, deadline)
}

/// How a member takes part when a communicator grows to `size` ranks.
struct Growth {
    size: usize,
    /// its rank when it is new, else -1, as NCCL wants it
    place: i32,
    /// for the new ones and for one of the others
    id: Option<ncclUniqueId>,
}

fn grow(
    nccl: &Nccl,
    config: *mut ncclConfig_t,
    comm: *mut ncclComm_t,
    parent: Option<&Handle>,
    growth: &Growth,
    deadline: Deadline,
) -> Result<Made> {
    let call = symbol!(nccl, ncclCommGrow).map_err(|error| errors::missing(&error))?;
    let Growth { size, place, id } = growth;
    let old = match *place {
        -1 => comm_of(parent)?.0,
        _ => ptr::null_mut(),
    };
    let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (size, place) = (int(*size)?, *place);
    // SAFETY: NULL or alive, since `parent` is borrowed; NULL or an id; places for a communicator and its
    // configuration.
    let result = unsafe { call(old, size, id, place, comm, config) };
    if old.is_null() {
        return Ok(("ncclCommGrow", result));
    }
    told_by(nccl, old, "ncclCommGrow", result, deadline)
}

/// Where calls do not block, the parent tells when one is over, and then the child is asked.
fn told_by(
    nccl: &Nccl,
    parent: ncclComm_t,
    call: &'static str,
    result: ncclResult_t,
    deadline: Deadline,
) -> Result<Made> {
    if result != ncclResult_t::ncclInProgress {
        return Ok((call, result));
    }
    // SAFETY: the parent is alive, since its owner is borrowed by the caller.
    unsafe { finished(nccl, parent, call, result, deadline) }?;
    Ok((call, ncclResult_t::ncclInProgress))
}

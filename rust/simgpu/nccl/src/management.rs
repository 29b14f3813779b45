//! How communicators come about: from a unique id, or from another communicator by splitting,
//! shrinking or growing.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use simgpu_common::fault;

use crate::arena::{self, ADDRESS, Address, Arena, NOTE, Stopped, Watch};
use crate::comm::Comm;
use crate::config::Config;
use crate::failure::{Code, Failure, Outcome};
use crate::group;
use crate::locked;

/// Bytes of a unique id.
pub const ID: usize = 128;
/// A unique id.
pub type UniqueId = [u8; ID];
/// The colour of a rank that takes no part.
pub const NO_COLOR: i32 = -1;

/// Memory that was founded here and is kept open until every rank has joined.
static FOUNDED: Mutex<Option<HashMap<u64, File>>> = Mutex::new(None);

fn found() -> Outcome<Address> {
    let (file, address) = arena::found()?;
    locked(&FOUNDED)
        .get_or_insert_default()
        .insert(address.nonce, file);
    Ok(address)
}

fn forget(address: Address) {
    if let Some(all) = locked(&FOUNDED).as_mut() {
        all.remove(&address.nonce);
    }
}

/// A unique id, which is of use as long as this process lives and until it is used.
pub fn unique_id() -> Outcome<UniqueId> {
    let mut id = [0; ID];
    id[..ADDRESS].copy_from_slice(&found()?.to_bytes());
    Ok(id)
}

/// Waits as a communicator does that has not joined: a rank that goes ends the wait.
struct AsOneThatJoins<'a> {
    comm: &'a Comm,
    /// Ranks whose end does not matter.
    without: &'a [usize],
}

impl Watch for AsOneThatJoins<'_> {
    fn stopped(&self) -> bool {
        self.comm.is_stopped() || !matches!(self.comm.state(), Code::SUCCESS | Code::IN_PROGRESS)
    }

    fn lost(&self, rank: usize) {
        if !self.without.contains(&rank) {
            self.comm.lost(rank);
        }
    }
}

/// Why a communicator that joins was stopped.
fn why_stopped(comm: &Comm) -> Failure {
    match comm.state() {
        Code::SUCCESS | Code::IN_PROGRESS => Failure::usage("aborted while it was joining"),
        code => Failure::new(code, "a rank's process is gone while others join"),
    }
}

/// The fault "never joins": `SIMGPU_NEVER_JOINS=RANK:COMMUNICATORS` lets so many come about and
/// then hangs.
fn joins() -> bool {
    static SO_FAR: Mutex<i64> = Mutex::new(0);
    let mut so_far = locked(&SO_FAR);
    *so_far += 1;
    let limit = fault::of_this_rank("SIMGPU_NEVER_JOINS");
    limit.is_none_or(|values| *so_far <= values.first().copied().unwrap_or(0))
}

fn enter(comm: &Comm, address: Address, rank: usize, ranks: usize, ids: u64) -> Outcome {
    let watch = AsOneThatJoins { comm, without: &[] };
    while !joins() {
        if watch.stopped() {
            return Err(why_stopped(comm));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let arena = Arena::open(address, rank, ranks, ids)?;
    let all_there = arena.wait_for_all(&watch);
    forget(address);
    all_there.map_err(|Stopped| why_stopped(comm))?;
    comm.joined(arena)
}

fn check_place(rank: i32, ranks: i32) -> Outcome<(usize, usize)> {
    let size = usize::try_from(ranks)
        .ok()
        .filter(|size| (1..=256).contains(size));
    let size = size.ok_or_else(|| Failure::argument(format!("{ranks} ranks")))?;
    let place = usize::try_from(rank).ok().filter(|place| *place < size);
    let place = place
        .ok_or_else(|| Failure::argument(format!("rank {rank} is out of range 0..{ranks}")))?;
    Ok((place, size))
}

/// Joins by unique ids; more than one must be the same list on every rank.
pub fn init(rank: i32, ranks: i32, ids: &[UniqueId], config: Config) -> Outcome<(usize, Code)> {
    let (rank, ranks) = check_place(rank, ranks)?;
    let first = ids
        .first()
        .ok_or_else(|| Failure::argument("no unique id"))?;
    if ids.len() > ranks {
        return Err(Failure::argument("more unique ids than ranks"));
    }
    let address = Address::from_bytes(first)?;
    for id in ids {
        Address::from_bytes(id)?;
    }
    let mut hasher = DefaultHasher::new();
    ids.hash(&mut hasher);
    let fingerprint = hasher.finish() | 1;
    let comm = Comm::create(config)?;
    let handle = comm.handle;
    let code = group::join(comm, move |comm| {
        enter(comm, address, rank, ranks, fingerprint)
    })?;
    Ok((handle, code))
}

fn note(parts: &[&[u8]]) -> [u8; NOTE] {
    let mut text = [0; NOTE];
    let whole = parts.concat();
    text[..whole.len()].copy_from_slice(&whole);
    text
}

fn number_at(text: &[u8; NOTE], at: usize) -> i32 {
    i32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]])
}

/// What a rank is in a communicator that members of another one make.
struct Part<'a> {
    parent: &'a Comm,
    /// Members by their ranks in the parent, in their new order.
    members: &'a [usize],
    /// The turn in which the first member says where the memory is.
    turn: u64,
    /// Ranks of the parent whose end does not matter.
    without: &'a [usize],
}

/// Members find each other's new memory through the old one.
fn enter_with(comm: &Comm, part: &Part<'_>) -> Outcome {
    let old = part.parent.arena()?;
    let rank = part.members.iter().position(|member| *member == old.rank);
    let rank = rank.ok_or_else(|| Failure::argument("this rank is no member"))?;
    let leader = part.members[0];
    if leader == old.rank {
        old.post(part.turn, &note(&[&found()?.to_bytes()]));
    }
    let watch = AsOneThatJoins {
        comm,
        without: part.without,
    };
    let notes = old
        .collect(part.turn, &[leader], &watch)
        .map_err(|Stopped| why_stopped(comm))?;
    let address = Address::from_bytes(&notes[0])?;
    enter(comm, address, rank, part.members.len(), 1)
}

/// Splits: ranks of one colour, in the order of their keys.
pub fn split(parent: Arc<Comm>, color: i32, key: i32, config: Config) -> Outcome<(usize, Code)> {
    parent.ready()?;
    if color < NO_COLOR {
        return Err(Failure::argument(format!("color {color} is negative")));
    }
    let turn = parent.take_turns(2);
    let old = parent.arena()?;
    old.post(turn, &note(&[&color.to_le_bytes(), &key.to_le_bytes()]));
    if color == NO_COLOR {
        return Ok((0, Code::SUCCESS));
    }
    let comm = Comm::create(config)?;
    let handle = comm.handle;
    let code = group::join(comm, move |comm| {
        let old = parent.arena()?;
        let everyone: Vec<_> = (0..old.ranks).collect();
        let watch = AsOneThatJoins { comm, without: &[] };
        let notes = old
            .collect(turn, &everyone, &watch)
            .map_err(|Stopped| why_stopped(comm))?;
        let mut members: Vec<_> = everyone
            .into_iter()
            .filter(|rank| number_at(&notes[*rank], 0) == color)
            .collect();
        members.sort_by_key(|rank| number_at(&notes[*rank], 4));
        enter_with(
            comm,
            &Part {
                parent: &parent,
                members: &members,
                turn: turn + 1,
                without: &[],
            },
        )
    })?;
    Ok((handle, code))
}

/// Shrinks: everybody but some, who may be gone. With `abort`, what is under way ends first.
pub fn shrink(
    parent: Arc<Comm>,
    excluded: Vec<usize>,
    abort: bool,
    config: Config,
) -> Outcome<(usize, Code)> {
    parent.ready()?;
    let old = parent.arena()?;
    if excluded.contains(&old.rank) {
        return Err(Failure::argument(
            "this rank is in the list of those that are excluded",
        ));
    }
    if excluded.is_empty() || excluded.iter().any(|rank| *rank >= old.ranks) {
        return Err(Failure::argument(
            "the list of excluded ranks is empty or out of range",
        ));
    }
    if abort {
        parent.stop();
        parent.wait_until_idle();
    }
    let turn = parent.take_turns(1);
    let members: Vec<_> = (0..old.ranks)
        .filter(|rank| !excluded.contains(rank))
        .collect();
    let comm = Comm::create(config)?;
    let handle = comm.handle;
    let code = group::join(comm, move |comm| {
        let part = Part {
            parent: &parent,
            members: &members,
            turn,
            without: &excluded,
        };
        enter_with(comm, &part)
    })?;
    Ok((handle, code))
}

/// An id with which one rank lets others come in.
pub fn growth_id(comm: &Comm) -> Outcome<UniqueId> {
    comm.ready()?;
    if comm.growing.swap(true, Ordering::AcqRel) {
        return Err(Failure::usage(
            "the last unique id of this communicator is not used yet",
        ));
    }
    unique_id()
}

/// Grows, as a rank that is in already: it keeps its rank.
pub fn grow_from(
    parent: Arc<Comm>,
    ranks: i32,
    id: Option<UniqueId>,
    config: Config,
) -> Outcome<(usize, Code)> {
    parent.ready()?;
    let old = parent.arena()?;
    let (rank, size) = check_place(old.rank as i32, ranks)?;
    if size <= old.ranks {
        return Err(Failure::argument(format!(
            "growing {} ranks to {ranks}",
            old.ranks
        )));
    }
    let turn = parent.take_turns(1);
    old.post(turn, &note(&[id.as_ref().map_or(&[][..], |id| &id[..])]));
    let comm = Comm::create(config)?;
    let handle = comm.handle;
    let code = group::join(comm, move |comm| {
        let old = parent.arena()?;
        let everyone: Vec<_> = (0..old.ranks).collect();
        let watch = AsOneThatJoins { comm, without: &[] };
        let notes = old
            .collect(turn, &everyone, &watch)
            .map_err(|Stopped| why_stopped(comm))?;
        let given: Vec<_> = notes
            .iter()
            .filter_map(|text| Address::from_bytes(text).ok())
            .collect();
        let [address] = given[..] else {
            let text = format!("{} ranks came with a unique id, expected one", given.len());
            return Err(Failure::argument(text));
        };
        parent.growing.store(false, Ordering::Release);
        enter(comm, address, rank, size, 1)
    })?;
    Ok((handle, code))
}

/// Grows, as a rank that comes in.
pub fn grow_into(rank: i32, ranks: i32, id: &UniqueId, config: Config) -> Outcome<(usize, Code)> {
    let (rank, ranks) = check_place(rank, ranks)?;
    let address = Address::from_bytes(id)?;
    let comm = Comm::create(config)?;
    let handle = comm.handle;
    let code = group::join(comm, move |comm| enter(comm, address, rank, ranks, 1))?;
    Ok((handle, code))
}

//! Joining: ranks that share nothing but a store become a group whose members know one another.
//!
//! At most three store requests (set, get, remove) per machine whose ranks meet on it, else per rank;
//! none for a group of one, or on one machine. More only while a rank is late. The protocol is in
//! `machine`, its sockets are in `driver`. Must not know what members do with the table.

mod driver;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod machine;
mod neighbours;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{LazyLock, Mutex, PoisonError};

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank, ProcessId, stable_hash};
use ferrocomm_core::store::Store;

use neighbours::Circle;
pub(crate) use neighbours::Neighbours;

use crate::location::Location;

/// What a rank asks for.
pub(crate) struct JoinRequest<'a> {
    /// name of the communicator, the same on all ranks
    pub(crate) name: &'a str,
    /// this rank
    pub(crate) rank: GroupRank,
    /// number of ranks
    pub(crate) size: usize,
    /// when joining must be over
    pub(crate) deadline: Deadline,
    /// version and options in words; ranks whose words differ do not join
    pub(crate) facts: &'a str,
    /// what the others learn of this rank
    pub(crate) me: Member,
    /// address of this machine at which ranks below this one find it while joining
    pub(crate) advertise: IpAddr,
    /// the ranks that are likely on this machine; none: this rank joins for itself
    pub(crate) neighbours: Option<Neighbours>,
}

/// What the ranks of a group know of each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// its process
    pub(crate) process: ProcessId,
    /// its machine, as `address::machine_id` names it
    pub(crate) machine: u64,
    /// where that stands
    pub(crate) location: Location,
    /// name of its abstract Unix socket, at most 107 bytes
    pub(crate) unix: String,
    /// where it listens, best first, at most 16
    pub(crate) addresses: Vec<SocketAddr>,
    /// what a connection to it presents
    pub(crate) nonce: [u8; 16],
}

impl Member {
    /// As bytes, to be read by `read`.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        wire::member_bytes(self)
    }

    /// The member these bytes are.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        wire::read_member(bytes)
    }
}

/// The outcome of joining, the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// by rank
    pub(crate) members: Vec<Member>,
    /// the new communicator
    pub(crate) id: CommId,
}

/// Joins; returns when all ranks have come.
///
/// # Errors
/// `Timeout` naming the ranks that did not come, `Mismatch` naming those that believe something
/// else, the store's errors, `PeerLost` naming a rank that failed or died meanwhile, `Interrupted`.
/// The other ranks that came fail too. `InvalidArgument` when the request cannot be one.
pub(crate) fn join(request: &JoinRequest<'_>, store: &dyn Store) -> Result<Table> {
    let invalid = |what| Err(Error::new(ErrorKind::InvalidArgument, what));
    if request.rank.index() >= request.size || u32::try_from(request.size).is_err() {
        return invalid("the rank is not below the size of the communicator")
            .map_err(|error| error.got(format!("rank {} of {}", request.rank, request.size)));
    }
    let facts = format!(
        "{} ranks, name {}, {}",
        request.size, request.name, request.facts
    );
    if !wire::fits(&request.me) || facts.len() > wire::MAX_FACTS {
        return invalid("name, options or addresses are too long to join with");
    }
    let rank = request.rank.get();
    let group = (request.name.to_owned(), request.size, rank);
    let generation = generations().get(&group).copied().unwrap_or(0);
    let restart = std::env::var("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|_| "0".into());
    let prefix = format!("ferrocomm/{}/{restart}/{generation}", request.name);
    let circle = Circle {
        name: request.name,
        rank,
        size: request.size,
        generation,
        machine: request.me.machine,
    };
    let neighbours = request.neighbours.as_ref();
    let meeting = neighbours.and_then(|neighbours| neighbours.meeting(&circle));
    let table = driver::drive(request, facts, &prefix, meeting, store)?;
    // Ranks count what succeeded, which is the same on all of them; a failed attempt can be
    // repeated by the ranks that came, together with one that did not.
    generations().insert(group, generation + 1);
    Ok(table)
}

/// By name, size and rank.
type Generations = HashMap<(String, usize, u32), u64>;

/// How many communicators of a name and size this process has joined as a rank: a later one must
/// not read an earlier one's keys. The size is not part of the key, so that ranks that disagree
/// about it meet and learn of it.
fn generations() -> std::sync::MutexGuard<'static, Generations> {
    static GENERATIONS: LazyLock<Mutex<Generations>> = LazyLock::new(Mutex::default);
    GENERATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The id of the communicator `name` whose root drew `seed`.
fn id_of(seed: &[u8; 16], name: &str) -> CommId {
    CommId(stable_hash(&[seed, name.as_bytes()]))
}

//! How the ranks of a communicator find one another: NCCL's ids through the store.
//!
//! Rank 0 publishes all ids under one key, and every rank fetches that key alone, so the store serves
//! as many requests as there are ranks, however many roots there are. Each rank says that it came,
//! so that a time-out can name those that did not. Must not know CUDA.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result};

/// Bytes of one id.
pub(crate) const ID_BYTES: usize = 128;
/// Ranks that one root serves.
const RANKS_PER_ROOT: usize = 128;
/// How long one rank's word is looked for once it is too late.
const GLANCE: Duration = Duration::from_millis(20);
/// Ranks that are asked for when it is too late; more would not be read.
const ASKED: usize = 64;

/// One id of NCCL's.
pub(crate) type Id = [u8; ID_BYTES];

/// Where the ranks of one communicator meet.
pub(crate) struct Meeting<'a> {
    store: &'a dyn Store,
    prefix: String,
    rank: usize,
    size: usize,
    deadline: Deadline,
}

/// How many roots serve `size` ranks; one where the library knows no more.
pub(crate) fn roots(size: usize, several: bool) -> usize {
    if several {
        size.div_ceil(RANKS_PER_ROOT).max(1)
    } else {
        1
    }
}

/// The rank that makes the id of `root`, one of `roots` for `size` ranks.
pub(crate) fn root_of(root: usize, size: usize, roots: usize) -> usize {
    root * (size / roots)
}

impl<'a> Meeting<'a> {
    /// The meeting of the communicator `name`, which may be made again in one process.
    pub(crate) fn new(
        store: &'a dyn Store,
        name: &str,
        rank: GroupRank,
        size: usize,
        deadline: Deadline,
    ) -> Self {
        Self {
            store,
            prefix: format!("ferrocomm/nccl/{name}/{}", round_of(name)),
            rank: rank.index(),
            size,
            deadline,
        }
    }

    fn key(&self, what: &str) -> String {
        format!("{}/{what}", self.prefix)
    }

    /// Tells the others that this rank is here, or why it is not.
    fn say(&self, words: &str) -> Result<()> {
        self.store
            .set(&self.key(&format!("rank/{}", self.rank)), words.as_bytes())
    }

    /// Tells the others why this rank will not come.
    pub(crate) fn decline(&self, error: &Error) {
        if let Err(unheard) = self.say(&format!("failed: {error}")) {
            tracing::debug!(error = %unheard, "the other ranks could not be told");
        }
    }

    /// The ids of all roots, the same on every rank. `fresh` makes one.
    pub(crate) fn ids(&self, roots: usize, fresh: impl FnOnce() -> Result<Id>) -> Result<Vec<Id>> {
        self.say("here")?;
        let root = (0..roots).find(|root| root_of(*root, self.size, roots) == self.rank);
        let own = root.map(|root| fresh().map(|id| (root, id))).transpose()?;
        if self.rank == 0 {
            let mut all = Vec::with_capacity(roots * ID_BYTES);
            if let Some((_, id)) = own {
                all.extend_from_slice(&id);
            }
            for root in 1..roots {
                all.extend(self.fetch(&format!("root/{root}"))?);
            }
            self.store.set(&self.key("ids"), &all)?;
            return split(&all, roots);
        }
        if let Some((root, id)) = own {
            self.store.set(&self.key(&format!("root/{root}")), &id)?;
        }
        split(&self.fetch("ids")?, roots)
    }

    fn fetch(&self, what: &str) -> Result<Vec<u8>> {
        self.store
            .get(&self.key(what), self.deadline.left().max(GLANCE))
            .map_err(|error| match error.kind() {
                ErrorKind::StoreTimeout => self.late(),
                _ => error,
            })
    }

    /// The error for ranks that did not come in time: who they are, as far as the store tells.
    pub(crate) fn late(&self) -> Error {
        let mut missing = Vec::new();
        let mut words = None;
        for rank in 0..self.size.min(ASKED) {
            match self.store.get(&self.key(&format!("rank/{rank}")), GLANCE) {
                Ok(said) if said == b"here" => {}
                Ok(said) => {
                    missing.push(rank);
                    words.get_or_insert(String::from_utf8_lossy(&said).into_owned());
                }
                Err(_) => missing.push(rank),
            }
        }
        let missing = missing
            .into_iter()
            .filter_map(|rank| u32::try_from(rank).ok().map(GroupRank::new));
        let error = Error::new(
            ErrorKind::Timeout,
            "not all ranks came to make the communicator",
        )
        .peers(missing)
        .expected(format!(
            "{} ranks within {:?}",
            self.size,
            self.deadline.limit()
        ));
        match words {
            Some(words) => error.got(words),
            None => error,
        }
    }
}

fn split(all: &[u8], roots: usize) -> Result<Vec<Id>> {
    let (ids, rest) = all.as_chunks::<ID_BYTES>();
    if ids.len() == roots && rest.is_empty() {
        return Ok(ids.to_vec());
    }
    Err(Error::new(
        ErrorKind::Mismatch,
        "the ranks do not agree about how they meet",
    )
    .got(format!("{} bytes of ids", all.len()))
    .expected(format!("{} bytes", roots * ID_BYTES))
    .remedy("use the same ferrocomm and NCCL on every rank"))
}

/// How often this process made a communicator of that name, which every rank counts alike.
fn round_of(name: &str) -> u64 {
    static ROUNDS: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);
    let mut rounds = ROUNDS.lock().unwrap_or_else(PoisonError::into_inner);
    let round = rounds
        .get_or_insert_default()
        .entry(name.to_owned())
        .or_default();
    *round += 1;
    *round
}

#[cfg(test)]
#[path = "bootstrap/tests.rs"]
mod tests;

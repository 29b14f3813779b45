//! Memory that is registered with communicators, which gains nothing here: only that it is done right.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::failure::{Failure, Outcome};
use crate::locked;

struct Registered {
    comm: usize,
    start: usize,
    bytes: usize,
}

/// By handle, which is never used again.
static REGISTERED: Mutex<Option<HashMap<usize, Registered>>> = Mutex::new(None);

/// Registers a range with a communicator; gives its handle.
pub fn add(comm: usize, start: usize, bytes: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let handle = 0x5a00_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) << 8);
    let range = Registered { comm, start, bytes };
    locked(&REGISTERED)
        .get_or_insert_default()
        .insert(handle, range);
    handle
}

/// Ends a registration.
pub fn remove(comm: usize, handle: usize) -> Outcome {
    let mut all = locked(&REGISTERED);
    let all = all.get_or_insert_default();
    if all.get(&handle).is_none_or(|known| known.comm != comm) {
        return Err(Failure::argument("nothing is registered under the handle"));
    }
    all.remove(&handle);
    Ok(())
}

/// Ends all registrations of a communicator.
pub fn forget(comm: usize) {
    if let Some(all) = locked(&REGISTERED).as_mut() {
        all.retain(|_, known| known.comm != comm);
    }
}

/// How many registrations cover a range; any range with zero bytes at address zero.
pub fn covering(start: usize, bytes: usize) -> usize {
    let inside = |known: &Registered| {
        bytes == 0 || known.start <= start && start + bytes <= known.start + known.bytes
    };
    let all = locked(&REGISTERED);
    all.iter()
        .flat_map(HashMap::values)
        .filter(|known| inside(known))
        .count()
}

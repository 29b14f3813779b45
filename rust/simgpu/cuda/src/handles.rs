//! Handles given to callers and what they stand for. A number is never used twice, so a handle
//! used after its end is found out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::locked;
use crate::status::{Outcome, Status};

/// Objects by handle.
pub(crate) struct Handles<T> {
    base: usize,
    next: AtomicUsize,
    objects: Mutex<Option<HashMap<usize, Arc<T>>>>,
}

impl<T> Handles<T> {
    /// Handles that begin at `base`, a range of addresses that no allocation has.
    pub(crate) const fn new(base: usize) -> Self {
        Handles {
            base,
            next: AtomicUsize::new(1),
            objects: Mutex::new(None),
        }
    }

    /// A number for an object that is yet to be made. Low bits stay zero, because torch keeps
    /// marks there.
    pub(crate) fn reserve(&self) -> usize {
        self.base + (self.next.fetch_add(1, Ordering::Relaxed) << 24)
    }

    pub(crate) fn insert(&self, handle: usize, object: Arc<T>) {
        locked(&self.objects)
            .get_or_insert_default()
            .insert(handle, object);
    }

    pub(crate) fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        let objects = locked(&self.objects);
        objects
            .as_ref()
            .and_then(|all| all.get(&handle))
            .cloned()
            .ok_or(Status::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        let mut objects = locked(&self.objects);
        objects
            .as_mut()
            .and_then(|all| all.remove(&handle))
            .ok_or(Status::INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        locked(&self.objects)
            .iter()
            .flat_map(HashMap::values)
            .cloned()
            .collect()
    }
}

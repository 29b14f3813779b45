//! Events that are used again, up to a limit. Must not know what they mark.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use ferrocomm_core::Result;

use crate::driver::{Device, Event};

/// Events kept at most, unless a hint says otherwise.
pub(crate) const DEFAULT_LIMIT: usize = 1000;

/// The pool of one communicator.
#[derive(Debug)]
pub(crate) struct Events {
    device: Device,
    limit: usize,
    free: Mutex<Vec<Event>>,
}

/// An event of the pool, which goes back when dropped.
#[derive(Debug)]
pub(crate) struct Pooled {
    event: Option<Event>,
    pool: Arc<Events>,
}

impl Events {
    /// A pool that keeps at most `limit` events that nobody uses.
    pub(crate) fn new(device: Device, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            device,
            limit,
            free: Mutex::new(Vec::new()),
        })
    }

    /// An event; the device is the thread's current one.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Pooled> {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let event = match free {
            Some(event) => event,
            None => Event::new()?,
        };
        Ok(Pooled {
            event: Some(event),
            pool: self.clone(),
        })
    }
}

impl Deref for Pooled {
    type Target = Event;

    fn deref(&self) -> &Event {
        // Taken by `drop` alone.
        match &self.event {
            Some(event) => event,
            None => unreachable!("an event is there until it is dropped"),
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else {
            return;
        };
        let mut free = self
            .pool
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.pool.limit {
            free.push(event);
            return;
        }
        drop(free);
        let entered = self.pool.device.enter();
        drop(event);
        drop(entered);
    }
}

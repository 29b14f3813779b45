//! How a thread of a model sleeps until another wakes it.

use loom::sync::{Arc, Condvar, Mutex};

use crate::barrier;

/// What wakes a sleeper, as bytes on a socket do: it keeps until it is heard.
pub(crate) struct Bell {
    rings: Mutex<usize>,
    rung: Condvar,
}

impl Bell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            rings: Mutex::new(0),
            rung: Condvar::new(),
        })
    }

    pub(crate) fn ring(&self) {
        *self.rings.lock().expect("no panic under the lock") += 1;
        self.rung.notify_one();
    }

    /// Sleeps until it has been rung, and takes all rings.
    pub(crate) fn sleep(&self) {
        barrier::switch(true);
        let mut rings = self.rings.lock().expect("no panic under the lock");
        while *rings == 0 {
            rings = self.rung.wait(rings).expect("no panic under the lock");
        }
        *rings = 0;
        drop(rings);
        barrier::switch(false);
    }
}

//! Operations that are captured into graphs, and what a graph must keep alive.
//!
//! A captured operation never ends: it runs whenever its graph is launched. So its work is complete
//! at once, nothing asks the host about it, and it has no time-out. Must not know what the
//! operations do.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::CUgraph;
use ferrocomm_core::Result;
use ferrocomm_core::call::Stream;
use ferrocomm_core::work::Work;

use crate::driver::{self, Event};
use crate::handle::Handle;
use crate::watchdog::{self, Watchdog};

type Release = Box<dyn FnOnce() + Send>;

/// What lives as long as a graph that holds an operation.
pub(crate) struct Keeper {
    /// destroying a communicator that a graph still uses would wait for the graph
    _handle: Arc<Handle>,
    releases: Mutex<Vec<Release>>,
}

impl Keeper {
    fn add(&self, release: Release) {
        self.releases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(release);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let releases = std::mem::take(
            self.releases
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for release in releases {
            release();
        }
    }
}

/// What CUDA holds for a graph.
struct Held {
    keeper: Arc<Keeper>,
    watchdog: Arc<Watchdog>,
}

/// Runs when the graph is gone, on a thread of CUDA's that must not call CUDA.
unsafe extern "C" fn graph_is_gone(held: *mut c_void) {
    // SAFETY: the box that `keep_in` gave away, once.
    let Held { keeper, watchdog } = *unsafe { Box::from_raw(held.cast::<Held>()) };
    watchdog.bury(watchdog::Grave::new(keeper));
}

/// Makes `graph` keep `handle`, and whatever is added to the keeper, alive.
pub(crate) fn keep_in(
    graph: CUgraph,
    handle: &Arc<Handle>,
    watchdog: &Arc<Watchdog>,
) -> Result<Arc<Keeper>> {
    let keeper = Arc::new(Keeper {
        _handle: handle.clone(),
        releases: Mutex::new(Vec::new()),
    });
    let held = Box::new(Held {
        keeper: keeper.clone(),
        watchdog: watchdog.clone(),
    });
    // SAFETY: the caller asked for the graph of a capture that goes on, and `graph_is_gone` takes
    // over just this box.
    unsafe { driver::retain_in_graph(graph, Box::into_raw(held).cast(), graph_is_gone) }?;
    Ok(keeper)
}

/// A captured operation whose work somebody holds.
pub(crate) struct Captured {
    work: Weak<Work>,
    keeper: Weak<Keeper>,
    /// where it ran beside the caller's stream: who waits for it waits for this, in the capture
    pub(crate) end: Option<Event>,
}

impl Captured {
    /// The operation of `work`.
    pub(crate) fn new(work: &Arc<Work>, keeper: &Arc<Keeper>, end: Option<Event>) -> Self {
        Self {
            work: Arc::downgrade(work),
            keeper: Arc::downgrade(keeper),
            end,
        }
    }

    /// Whether it is the operation of `work`.
    pub(crate) fn is(&self, work: &Arc<Work>) -> bool {
        std::ptr::eq(self.work.as_ptr(), Arc::as_ptr(work))
    }

    /// Whether somebody still holds its work.
    pub(crate) fn is_held(&self) -> bool {
        self.work.strong_count() > 0
    }

    /// Runs `release` when the graph is gone.
    pub(crate) fn keep(&self, release: Release) {
        match self.keeper.upgrade() {
            Some(keeper) => keeper.add(release),
            None => release(),
        }
    }
}

/// The newest operation of a capture: the next one comes after it, on whatever stream.
pub(crate) struct LastCaptured {
    pub(crate) id: u64,
    pub(crate) stream: Stream,
    pub(crate) end: Event,
}

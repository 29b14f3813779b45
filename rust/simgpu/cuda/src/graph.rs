//! Graphs, what they keep alive, and their launch. A launch runs the nodes one after the other in
//! the order in which they were captured, which agrees with their dependencies.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use simgpu_common::driver::HostFn;
use simgpu_common::report;

use crate::handles::Handles;
use crate::locked;
use crate::status::{Outcome, Status};
use crate::stream::{Stream, Work};

/// The flag with which a graph takes over the caller's references.
pub const MOVE: u32 = 1;

static GRAPHS: Handles<Graph> = Handles::new(0x5400_0000_0000);
static EXECUTABLES: Handles<Executable> = Handles::new(0x5500_0000_0000);
static OBJECTS: Handles<UserObject> = Handles::new(0x5600_0000_0000);

/// Bits of a node's handle below its number.
const NODE_SHIFT: usize = 4;
/// How far apart the handles of graphs are.
const GRAPH_MASK: usize = (1 << 24) - 1;

/// Operations and what they depend on.
pub struct Graph {
    /// Its handle, which is never used again.
    pub handle: usize,
    nodes: Mutex<Vec<Node>>,
    kept: Mutex<Vec<Kept>>,
}

#[derive(Clone)]
struct Node {
    work: Work,
    after: Vec<usize>,
}

impl Graph {
    /// An empty graph with a handle.
    pub fn create() -> Arc<Graph> {
        let handle = GRAPHS.reserve();
        let graph = Arc::new(Graph {
            handle,
            nodes: Mutex::default(),
            kept: Mutex::default(),
        });
        GRAPHS.insert(handle, graph.clone());
        graph
    }

    /// The graph of a handle.
    pub fn from_handle(handle: usize) -> Outcome<Arc<Graph>> {
        GRAPHS.get(handle)
    }

    /// Ends a graph's handle, and with it what the graph alone keeps alive.
    pub fn destroy(handle: usize) -> Outcome {
        GRAPHS.remove(handle).map(drop)
    }

    /// Adds an operation after others; gives its number.
    pub(crate) fn add(&self, work: Work, after: Vec<usize>) -> usize {
        let mut nodes = locked(&self.nodes);
        nodes.push(Node { work, after });
        nodes.len() - 1
    }

    /// How many operations it has.
    pub fn len(&self) -> usize {
        locked(&self.nodes).len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether each of `nodes` comes before one of `ends`, or is one.
    pub(crate) fn lead_to(&self, nodes: &[usize], ends: &[usize]) -> bool {
        let all = locked(&self.nodes);
        let mut before = vec![false; all.len()];
        let mut open = ends.to_vec();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut before[node], true) {
                open.extend(&all[node].after);
            }
        }
        nodes.iter().all(|node| before[*node])
    }

    /// The handle of a node.
    pub fn node_handle(&self, node: usize) -> usize {
        self.handle + ((node + 1) << NODE_SHIFT)
    }

    /// The graph of a node's handle, with the node's number.
    pub fn of_node(handle: usize) -> Outcome<(Arc<Graph>, usize)> {
        let graph = Graph::from_handle(handle & !GRAPH_MASK)?;
        let number = ((handle & GRAPH_MASK) >> NODE_SHIFT).wrapping_sub(1);
        if number < graph.len() {
            Ok((graph, number))
        } else {
            Err(Status::INVALID_HANDLE)
        }
    }

    /// Handles of the nodes that a node comes after.
    pub fn dependencies(&self, node: usize) -> Vec<usize> {
        locked(&self.nodes)[node]
            .after
            .iter()
            .map(|before| self.node_handle(*before))
            .collect()
    }

    /// Keeps a user object alive as long as the graph, or what is made from it, exists.
    pub fn retain(&self, object: &Arc<UserObject>, count: usize, moved: bool) -> Outcome {
        let kept = if moved {
            Kept {
                object: object.clone(),
                count,
            }
        } else {
            object.keep(count)?
        };
        locked(&self.kept).push(kept);
        Ok(())
    }

    /// Gives references back that the graph took.
    pub fn release(&self, object: &Arc<UserObject>, count: usize) -> Outcome {
        let mut all = locked(&self.kept);
        let same = |kept: &Kept| Arc::ptr_eq(&kept.object, object) && kept.count == count;
        let place = all.iter().position(same).ok_or(Status::INVALID_VALUE)?;
        drop(all.swap_remove(place));
        Ok(())
    }
}

/// A graph that can be launched.
pub struct Executable {
    /// Its handle, which is never used again.
    pub handle: usize,
    nodes: Vec<Work>,
    _kept: Vec<Kept>,
}

impl Executable {
    /// What the graph is now, ready to launch.
    pub fn instantiate(graph: &Graph) -> Outcome<Arc<Executable>> {
        let handle = EXECUTABLES.reserve();
        let nodes = locked(&graph.nodes)
            .iter()
            .map(|node| node.work.clone())
            .collect();
        let kept = locked(&graph.kept)
            .iter()
            .map(|kept| kept.object.keep(kept.count))
            .collect::<Outcome<_>>()?;
        let executable = Arc::new(Executable {
            handle,
            nodes,
            _kept: kept,
        });
        EXECUTABLES.insert(handle, executable.clone());
        Ok(executable)
    }

    /// The executable of a handle.
    pub fn from_handle(handle: usize) -> Outcome<Arc<Executable>> {
        EXECUTABLES.get(handle)
    }

    /// Ends the handle; a launch under way keeps what it needs.
    pub fn destroy(handle: usize) -> Outcome {
        EXECUTABLES.remove(handle).map(drop)
    }

    /// Runs the nodes in stream order.
    pub fn launch(self: &Arc<Self>, stream: &Arc<Stream>) -> Outcome {
        let executable = self.clone();
        stream.enqueue(Arc::new(move || {
            executable.nodes.iter().for_each(|node| node())
        }))
    }
}

/// Something of the caller's that graphs keep alive. When the last reference goes, its destructor
/// runs on a thread of the simulator.
pub struct UserObject {
    /// Its handle, which is never used again.
    pub handle: usize,
    address: usize,
    destructor: HostFn,
    references: AtomicUsize,
}

/// References that a graph or executable holds.
struct Kept {
    object: Arc<UserObject>,
    count: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.object.release(self.count);
    }
}

impl UserObject {
    /// An object with as many references as the caller wants to hold.
    pub fn create(address: *mut c_void, destructor: HostFn, references: usize) -> Arc<UserObject> {
        let handle = OBJECTS.reserve();
        let object = Arc::new(UserObject {
            handle,
            address: address as usize,
            destructor,
            references: AtomicUsize::new(references),
        });
        OBJECTS.insert(handle, object.clone());
        object
    }

    /// The object of a handle.
    pub fn from_handle(handle: usize) -> Outcome<Arc<UserObject>> {
        OBJECTS.get(handle)
    }

    /// Takes references.
    pub fn retain(&self, count: usize) {
        self.references.fetch_add(count, Ordering::Relaxed);
    }

    fn keep(self: &Arc<Self>, count: usize) -> Outcome<Kept> {
        self.retain(count);
        Ok(Kept {
            object: self.clone(),
            count,
        })
    }

    /// Gives references back; with the last one the destructor runs.
    pub fn release(&self, count: usize) {
        let before = self.references.fetch_sub(count, Ordering::AcqRel);
        if before == count {
            // The handle may be gone only once, with the last reference.
            if OBJECTS.remove(self.handle).is_ok() {
                destroy_later(self.destructor, self.address);
            }
        } else if before < count {
            report(
                "cuda",
                "a user object was released more often than it was retained",
            );
            std::process::abort();
        }
    }
}

fn destroy_later(destructor: HostFn, address: usize) {
    static QUEUE: OnceLock<Mutex<mpsc::Sender<(HostFn, usize)>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<(HostFn, usize)>();
        let run = move || {
            for (destructor, address) in receiver {
                // SAFETY: the caller of cuUserObjectCreate promised that the destructor takes
                // this address, once, on any thread.
                unsafe { destructor(address as *mut c_void) };
            }
        };
        if let Err(error) = thread::Builder::new()
            .name("simgpu objects".into())
            .spawn(run)
        {
            report(
                "cuda",
                &format!("cannot start the thread of destructors: {error}"),
            );
            std::process::abort();
        }
        Mutex::new(sender)
    });
    if locked(queue).send((destructor, address)).is_err() {
        report("cuda", "the thread of destructors is gone");
        std::process::abort();
    }
}

//! Graphs and user objects.

use std::ffi::{c_uint, c_void};

use simgpu_common::driver::HostFn;

use super::{driver_api, put};
use crate::graph::{Executable, Graph, MOVE, UserObject};
use crate::status::{Outcome, Status};
use crate::stream::Stream;

/// Writes handles into an array with room for `count`, or only says how many there are.
fn put_all(handles: &[usize], array: *mut usize, count: *mut usize) -> Outcome {
    if count.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if array.is_null() {
        return put(count, handles.len());
    }
    // SAFETY: not null, and the caller's to read.
    let room = unsafe { count.read() };
    for index in 0..room {
        let handle = handles.get(index).copied().unwrap_or(0);
        // SAFETY: the caller has room for as many handles as it says.
        unsafe { array.add(index).write(handle) };
    }
    put(count, room.min(handles.len()))
}

driver_api! {
    /// Makes an empty graph.
    fn cuGraphCreate(graph: *mut usize, _flags: c_uint) { put(graph, Graph::create().handle) }

    /// Destroys a graph.
    fn cuGraphDestroy(graph: usize) { Graph::destroy(graph) }

    /// Makes a graph ready to launch.
    fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) {
        put(executable, Executable::instantiate(&*Graph::from_handle(graph)?)?.handle)
    }

    /// Launches a graph.
    fn cuGraphLaunch(executable: usize, stream: usize) {
        Executable::from_handle(executable)?.launch(&Stream::from_handle(stream)?)
    }

    /// Destroys what is ready to launch.
    fn cuGraphExecDestroy(executable: usize) { Executable::destroy(executable) }

    /// Prepares a launch: nothing is to be done.
    fn cuGraphUpload(executable: usize, stream: usize) {
        Executable::from_handle(executable)?;
        Stream::from_handle(stream).map(drop)
    }

    /// The nodes of a graph.
    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let graph = Graph::from_handle(graph)?;
        let handles: Vec<_> = (0..graph.len()).map(|node| graph.node_handle(node)).collect();
        put_all(&handles, nodes, count)
    }

    /// What a node comes after.
    fn cuGraphNodeGetDependencies_v2(
        node: usize, nodes: *mut usize, _edges: *mut c_void, count: *mut usize,
    ) {
        let (graph, number) = Graph::of_node(node)?;
        put_all(&graph.dependencies(number), nodes, count)
    }

    /// Makes a user object.
    fn cuUserObjectCreate(
        object: *mut usize, address: *mut c_void, destructor: Option<HostFn>, references: c_uint,
        flags: c_uint,
    ) {
        // The only flag, which must be set, says that the destructor synchronizes with nothing.
        let destructor = destructor.ok_or(Status::INVALID_VALUE)?;
        if flags != 1 || references == 0 || object.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        put(object, UserObject::create(address, destructor, references as usize).handle)
    }

    /// Takes references to a user object.
    fn cuUserObjectRetain(object: usize, count: c_uint) {
        UserObject::from_handle(object)?.retain(count as usize);
        Ok(())
    }

    /// Gives references back.
    fn cuUserObjectRelease(object: usize, count: c_uint) {
        UserObject::from_handle(object)?.release(count as usize);
        Ok(())
    }

    /// A graph takes references, its own or the caller's.
    fn cuGraphRetainUserObject(graph: usize, object: usize, count: c_uint, flags: c_uint) {
        let object = UserObject::from_handle(object)?;
        Graph::from_handle(graph)?.retain(&object, count as usize, flags & MOVE != 0)
    }

    /// A graph gives references back.
    fn cuGraphReleaseUserObject(graph: usize, object: usize, count: c_uint) {
        let object = UserObject::from_handle(object)?;
        Graph::from_handle(graph)?.release(&object, count as usize)
    }
}

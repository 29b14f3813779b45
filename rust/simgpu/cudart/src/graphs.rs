//! Graphs and user objects.

use std::ffi::{c_int, c_uint, c_void};

use simgpu_common::driver::{Handle, HostFn};

use crate::runtime_api;
use crate::state::{call, put};

runtime_api! {
    fn cudaGraphCreate(graph: *mut Handle, flags: c_uint) { call!(cuGraphCreate(graph, flags)) }

    fn cudaGraphInstantiate(executable: *mut Handle, graph: Handle, flags: u64) {
        call!(cuGraphInstantiateWithFlags(executable, graph, flags))
    }

    fn cudaGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64) {
        call!(cuGraphInstantiateWithFlags(executable, graph, flags))
    }

    fn cudaGraphLaunch(executable: Handle, stream: Handle) {
        call!(cuGraphLaunch(executable, stream))
    }

    fn cudaGraphDestroy(graph: Handle) { call!(cuGraphDestroy(graph)) }

    fn cudaGraphExecDestroy(executable: Handle) { call!(cuGraphExecDestroy(executable)) }

    fn cudaGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) {
        call!(cuGraphGetNodes(graph, nodes, count))
    }

    fn cudaGraphNodeGetDependencies(
        node: Handle, nodes: *mut Handle, edges: *mut c_void, count: *mut usize,
    ) {
        call!(cuGraphNodeGetDependencies_v2(node, nodes, edges, count))
    }

    fn cudaUserObjectCreate(
        object: *mut Handle, address: *mut c_void, destructor: HostFn, references: c_uint,
        flags: c_uint,
    ) {
        call!(cuUserObjectCreate(object, address, destructor, references, flags))
    }

    fn cudaUserObjectRetain(object: Handle, count: c_uint) {
        call!(cuUserObjectRetain(object, count))
    }

    fn cudaUserObjectRelease(object: Handle, count: c_uint) {
        call!(cuUserObjectRelease(object, count))
    }

    fn cudaGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) {
        call!(cuGraphRetainUserObject(graph, object, count, flags))
    }

    fn cudaGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) {
        call!(cuGraphReleaseUserObject(graph, object, count))
    }

    fn cudaDeviceGetGraphMemAttribute(_device: c_int, _number: c_int, value: *mut u64) {
        put(value, 0)
    }

    fn cudaDeviceSetGraphMemAttribute(_device: c_int, _number: c_int, _value: *mut u64) { 0 }

    fn cudaDeviceGraphMemTrim(_device: c_int) { 0 }
}

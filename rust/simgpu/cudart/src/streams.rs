//! Streams, host functions, events and capture.

use std::ffi::{c_int, c_uint, c_void};

use simgpu_common::driver::{Handle, HostFn};

use crate::runtime_api;
use crate::state::{INVALID_VALUE, call};

type Callback = unsafe extern "C" fn(Handle, c_int, *mut c_void);

struct AddedCallback {
    function: Callback,
    stream: Handle,
    argument: *mut c_void,
}

/// Calls a callback once.
unsafe extern "C" fn call_back(added: *mut c_void) {
    // SAFETY: `cudaStreamAddCallback` leaked the box for this one call.
    let added = unsafe { Box::from_raw(added.cast::<AddedCallback>()) };
    // SAFETY: the caller promised that the function takes the argument on a driver's thread.
    unsafe { (added.function)(added.stream, 0, added.argument) };
}

fn is_capturing(stream: Handle) -> Result<bool, c_int> {
    let mut state = 0;
    match call!(cuStreamIsCapturing(stream, &mut state)) {
        0 => Ok(state != 0),
        status => Err(status),
    }
}

runtime_api! {
    fn cudaStreamCreate(stream: *mut Handle) { call!(cuStreamCreateWithPriority(stream, 0, 0)) }

    fn cudaStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) {
        call!(cuStreamCreateWithPriority(stream, flags, 0))
    }

    fn cudaStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) {
        call!(cuStreamCreateWithPriority(stream, flags, priority))
    }

    fn cudaStreamDestroy(stream: Handle) { call!(cuStreamDestroy_v2(stream)) }

    fn cudaStreamSynchronize(stream: Handle) { call!(cuStreamSynchronize(stream)) }

    fn cudaStreamQuery(stream: Handle) { call!(cuStreamQuery(stream)) }

    fn cudaStreamGetPriority(stream: Handle, priority: *mut c_int) {
        call!(cuStreamGetPriority(stream, priority))
    }

    fn cudaStreamGetFlags(stream: Handle, flags: *mut c_uint) {
        call!(cuStreamGetFlags(stream, flags))
    }

    fn cudaStreamGetId(stream: Handle, id: *mut u64) { call!(cuStreamGetId(stream, id)) }

    fn cudaStreamGetDevice(stream: Handle, device: *mut c_int) {
        call!(simgpuStreamGetDevice(stream, device))
    }

    fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        call!(cuStreamWaitEvent(stream, event, flags))
    }

    fn cudaLaunchHostFunc(stream: Handle, function: HostFn, argument: *mut c_void) {
        call!(cuLaunchHostFunc(stream, function, argument))
    }

    fn cudaStreamAddCallback(
        stream: Handle, function: Callback, argument: *mut c_void, flags: c_uint,
    ) {
        // CUDA does not capture callbacks either.
        match is_capturing(stream) {
            Ok(false) if flags == 0 => {}
            Ok(false) => return INVALID_VALUE,
            Ok(true) => return 900,
            Err(status) => return status,
        }
        let added = Box::into_raw(Box::new(AddedCallback { function, stream, argument }));
        let status = call!(cuLaunchHostFunc(stream, call_back, added.cast()));
        if status != 0 {
            // SAFETY: the driver refused, so nobody else has the box.
            drop(unsafe { Box::from_raw(added) });
        }
        status
    }

    fn cudaEventCreate(event: *mut Handle) { call!(cuEventCreate(event, 0)) }

    fn cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) {
        call!(cuEventCreate(event, flags))
    }

    fn cudaEventDestroy(event: Handle) { call!(cuEventDestroy_v2(event)) }

    fn cudaEventRecord(event: Handle, stream: Handle) {
        call!(cuEventRecordWithFlags(event, stream, 0))
    }

    fn cudaEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        call!(cuEventRecordWithFlags(event, stream, flags))
    }

    fn cudaEventQuery(event: Handle) { call!(cuEventQuery(event)) }

    fn cudaEventSynchronize(event: Handle) { call!(cuEventSynchronize(event)) }

    fn cudaEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle) {
        call!(cuEventElapsedTime_v2(milliseconds, from, to))
    }

    fn cudaStreamBeginCapture(stream: Handle, mode: c_int) {
        call!(cuStreamBeginCapture_v2(stream, mode))
    }

    fn cudaStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize,
        mode: c_int,
    ) {
        call!(cuStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode))
    }

    fn cudaStreamEndCapture(stream: Handle, graph: *mut Handle) {
        call!(cuStreamEndCapture(stream, graph))
    }

    fn cudaStreamIsCapturing(stream: Handle, state: *mut c_int) {
        call!(cuStreamIsCapturing(stream, state))
    }

    fn cudaStreamGetCaptureInfo(
        stream: Handle, state: *mut c_int, id: *mut u64, graph: *mut Handle,
        after: *mut *const Handle, edges: *mut *const c_void, count: *mut usize,
    ) {
        call!(cuStreamGetCaptureInfo_v3(stream, state, id, graph, after, edges, count))
    }

    fn cudaStreamUpdateCaptureDependencies(
        stream: Handle, after: *mut Handle, edges: *const c_void, count: usize, flags: c_uint,
    ) {
        call!(cuStreamUpdateCaptureDependencies_v2(stream, after, edges, count, flags))
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        call!(cuThreadExchangeStreamCaptureMode(mode))
    }
}

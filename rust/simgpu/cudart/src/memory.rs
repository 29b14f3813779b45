//! Memory, copies and pools.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use simgpu_common::driver::Handle;

use crate::runtime_api;
use crate::state::{INVALID_VALUE, call, put};

/// As in the runtime's header.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
    reserved: [i64; 8],
}

/// Kinds of memory, as numbers of the API.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;

/// What is asked of the driver about a pointer.
const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const ORDINAL: c_int = 9;

fn ask(number: c_int, pointer: *const c_void) -> Result<c_int, c_int> {
    let mut value: c_int = 0;
    let out: *mut c_int = &mut value;
    match call!(cuPointerGetAttribute(out.cast(), number, pointer as usize)) {
        0 => Ok(value),
        status => Err(status),
    }
}

fn attributes(pointer: *const c_void) -> Result<PointerAttributes, c_int> {
    let nowhere = std::ptr::null_mut();
    let mut all = PointerAttributes {
        kind: UNREGISTERED,
        device: -2,
        device_pointer: nowhere,
        host_pointer: nowhere,
        reserved: [0; 8],
    };
    let kind = match ask(MEMORY_TYPE, pointer) {
        Ok(kind) => kind,
        // The driver knows nothing of the pointer, which is an answer.
        Err(INVALID_VALUE) => return Ok(all),
        Err(other) => return Err(other),
    };
    let managed = ask(IS_MANAGED, pointer)? != 0;
    all.device = ask(ORDINAL, pointer)?;
    all.kind = if managed { MANAGED } else { kind };
    all.device_pointer = pointer.cast_mut();
    if all.kind != DEVICE {
        all.host_pointer = pointer.cast_mut();
    }
    debug_assert!(matches!(all.kind, HOST | DEVICE | MANAGED));
    Ok(all)
}

/// A two-dimensional copy.
#[derive(Clone, Copy)]
struct Rows {
    to: usize,
    to_pitch: usize,
    from: usize,
    from_pitch: usize,
    width: usize,
    count: usize,
}

fn copy_rows(rows: Rows, stream: Handle) -> c_int {
    let Rows {
        to,
        to_pitch,
        from,
        from_pitch,
        width,
        count,
    } = rows;
    call!(simgpuMemcpyRowsAsync(
        to, to_pitch, from, from_pitch, width, count, stream
    ))
}

/// Values of attributes of the pools, which have no effect.
static POOL_ATTRIBUTES: Mutex<Option<HashMap<(usize, c_int), u64>>> = Mutex::new(None);

/// Attributes below this number are 32 bits wide.
const WIDE_ATTRIBUTES: c_int = 4;

/// Where handles of the devices' pools begin.
const POOLS: usize = 0x5700_0000_0000;

runtime_api! {
    fn cudaMalloc(pointer: *mut usize, length: usize) {
        if length == 0 { put(pointer, 0) } else { call!(cuMemAlloc_v2(pointer, length)) }
    }

    fn cudaMallocManaged(pointer: *mut usize, length: usize, flags: c_uint) {
        call!(cuMemAllocManaged(pointer, length, flags))
    }

    fn cudaFree(pointer: usize) { call!(cuMemFree_v2(pointer)) }

    fn cudaMallocAsync(pointer: *mut usize, length: usize, stream: Handle) {
        call!(cuMemAllocAsync(pointer, length, stream))
    }

    fn cudaMallocFromPoolAsync(pointer: *mut usize, length: usize, _pool: usize, stream: Handle) {
        call!(cuMemAllocAsync(pointer, length, stream))
    }

    fn cudaFreeAsync(pointer: usize, stream: Handle) { call!(cuMemFreeAsync(pointer, stream)) }

    fn cudaMallocHost(pointer: *mut *mut c_void, length: usize) {
        call!(cuMemHostAlloc(pointer, length, 0))
    }

    fn cudaHostAlloc(pointer: *mut *mut c_void, length: usize, flags: c_uint) {
        call!(cuMemHostAlloc(pointer, length, flags))
    }

    fn cudaFreeHost(pointer: *mut c_void) { call!(cuMemFreeHost(pointer)) }

    fn cudaHostRegister(pointer: *mut c_void, length: usize, flags: c_uint) {
        call!(cuMemHostRegister_v2(pointer, length, flags))
    }

    fn cudaHostUnregister(pointer: *mut c_void) { call!(cuMemHostUnregister(pointer)) }

    fn cudaHostGetDevicePointer(out: *mut *mut c_void, pointer: *mut c_void, _flags: c_uint) {
        match ask(MEMORY_TYPE, pointer) {
            Ok(_) => put(out, pointer),
            Err(status) => status,
        }
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) { call!(cuMemGetInfo_v2(free, total)) }

    fn cudaPointerGetAttributes(all: *mut PointerAttributes, pointer: *const c_void) {
        match attributes(pointer) {
            Ok(attributes) => put(all, attributes),
            Err(status) => status,
        }
    }

    fn cudaMemcpy(to: usize, from: usize, length: usize, _kind: c_int) {
        call!(cuMemcpy(to, from, length))
    }

    fn cudaMemcpyAsync(to: usize, from: usize, length: usize, _kind: c_int, stream: Handle) {
        call!(cuMemcpyAsync(to, from, length, stream))
    }

    fn cudaMemcpyPeerAsync(
        to: usize, _to_device: c_int, from: usize, _from_device: c_int, length: usize,
        stream: Handle,
    ) {
        call!(cuMemcpyAsync(to, from, length, stream))
    }

    fn cudaMemcpy2DAsync(
        to: usize, to_pitch: usize, from: usize, from_pitch: usize, width: usize, count: usize,
        _kind: c_int, stream: Handle,
    ) {
        copy_rows(Rows { to, to_pitch, from, from_pitch, width, count }, stream)
    }

    fn cudaMemset(to: usize, value: c_int, count: usize) {
        let nothing = std::ptr::null_mut();
        match call!(cuMemsetD8Async(to, value as u8, count, nothing)) {
            0 => call!(cuStreamSynchronize(nothing)),
            status => status,
        }
    }

    fn cudaMemsetAsync(to: usize, value: c_int, count: usize, stream: Handle) {
        call!(cuMemsetD8Async(to, value as u8, count, stream))
    }

    fn cudaDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) {
        put(pool, POOLS + device.unsigned_abs() as usize * 16)
    }

    fn cudaDeviceGetMemPool(pool: *mut usize, device: c_int) {
        put(pool, POOLS + device.unsigned_abs() as usize * 16)
    }

    fn cudaMemPoolTrimTo(_pool: usize, _keep: usize) { 0 }

    fn cudaMemPoolSetAccess(_pool: usize, _descriptions: *const c_void, _count: usize) { 0 }

    fn cudaMemPoolSetAttribute(pool: usize, number: c_int, value: *const c_void) {
        if value.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's value is as wide as its attribute.
        let value = unsafe {
            if number < WIDE_ATTRIBUTES {
                u64::from(value.cast::<u32>().read())
            } else {
                value.cast::<u64>().read()
            }
        };
        let mut all = POOL_ATTRIBUTES.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().insert((pool, number), value);
        0
    }

    fn cudaMemPoolGetAttribute(pool: usize, number: c_int, value: *mut c_void) {
        let all = POOL_ATTRIBUTES.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.as_ref().and_then(|all| all.get(&(pool, number))).copied().unwrap_or(0);
        if number < WIDE_ATTRIBUTES {
            put(value.cast::<u32>(), kept as u32)
        } else {
            put(value.cast::<u64>(), kept)
        }
    }
}

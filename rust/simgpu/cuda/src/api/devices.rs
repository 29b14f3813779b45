//! Devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use super::{driver_api, put, put_wanted};
use crate::context;
use crate::memory;
use crate::status::{Outcome, Status};
use crate::stream;

/// The driver's version, as its functions report it.
const DRIVER_VERSION: c_int = 13_020;

/// Attributes whose value is not zero. A capability that is not simulated stays zero.
fn attribute(number: c_int, device: i32) -> c_int {
    match number {
        1 => 1024,            // threads per block
        2 | 3 => 1024,        // block x, y
        4 => 64,              // block z
        5 => i32::MAX,        // grid x
        6 | 7 => 65535,       // grid y, z
        8 => 49152,           // shared memory per block
        9 => 65536,           // constant memory
        10 => 32,             // warp
        11 => i32::MAX,       // pitch
        12 => 65536,          // registers per block
        13 | 36 => 1_000_000, // clocks, kHz
        14 => 512,            // texture alignment
        15 | 19 | 31 => 1,    // overlap, mapped host memory, concurrent kernels
        16 => 4,              // multiprocessors
        33 => device + 1,     // bus
        37 => 1024,           // memory bus, bits
        38 => 1 << 20,        // L2
        39 => 2048,           // threads per multiprocessor
        40 => 2,              // copy engines
        41 => 1,              // unified addressing
        75 => 9,              // compute capability
        76 => 0,
        78 => 1,       // stream priorities
        81 => 233_472, // shared memory per multiprocessor
        82 => 65536,   // registers per multiprocessor
        83 => 1,       // managed memory
        97 => 232_448, // shared memory per block, opted in
        99 => 1,       // host registration
        106 => 32,     // blocks per multiprocessor
        115 => 1,      // memory pools
        _ => 0,
    }
}

fn name(device: i32) -> String {
    format!("Simulated GPU {device}")
}

fn put_text(out: *mut c_char, room: c_int, text: &str) -> Outcome {
    let room = usize::try_from(room).map_err(|_| Status::INVALID_VALUE)?;
    if out.is_null() || room == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the caller has `room` bytes at `out`, of which one stays for the zero.
    unsafe {
        out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
        out.add(bytes.len()).write(0);
    }
    Ok(())
}

driver_api! {
    /// Starts the driver.
    fn cuInit(flags: c_uint) {
        if flags == 0 { context::initialize() } else { Err(Status::INVALID_VALUE) }
    }

    /// The driver's version.
    fn cuDriverGetVersion(version: *mut c_int) { put(version, DRIVER_VERSION) }

    /// How many devices there are.
    fn cuDeviceGetCount(count: *mut c_int) {
        context::initialized()?;
        put(count, context::device_count())
    }

    /// A device by its number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        context::check_device(ordinal)?;
        put(device, ordinal)
    }

    /// A device's name.
    fn cuDeviceGetName(text: *mut c_char, room: c_int, device: c_int) {
        context::check_device(device)?;
        put_text(text, room, &name(device))
    }

    /// A device's UUID.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        context::check_device(device)?;
        let mut bytes = *b"simulated GPU  \0";
        bytes[15] = device as u8;
        put(uuid, bytes)
    }

    /// A device's UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        // SAFETY: the same function under its newer name.
        match unsafe { cuDeviceGetUuid_v2(uuid, device) } {
            0 => Ok(()),
            other => Err(Status(other)),
        }
    }

    /// A device's place on the bus.
    fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) {
        context::check_device(device)?;
        put_text(text, room, &format!("0000:{:02x}:00.0", device + 1))
    }

    /// A device's memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        context::check_device(device)?;
        put(bytes, context::device_memory())
    }

    /// A number that describes a device.
    fn cuDeviceGetAttribute(value: *mut c_int, number: c_int, device: c_int) {
        context::check_device(device)?;
        put(value, attribute(number, device))
    }

    /// Whether a device reaches another's memory: each process's devices do not.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        context::check_device(device)?;
        context::check_device(peer)?;
        put(can, 0)
    }

    /// A device's primary context.
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        context::check_device(device)?;
        put(context, context::handle(Some(device)))
    }

    /// Gives a primary context back. It stays, as long as the process.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { context::check_device(device) }

    /// Gives a primary context back.
    fn cuDevicePrimaryCtxRelease(device: c_int) { context::check_device(device) }

    /// Whether a primary context exists.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        context::check_device(device)?;
        put_wanted(flags, 0);
        put(active, 1)
    }

    /// The current context.
    fn cuCtxGetCurrent(context: *mut usize) {
        context::initialized()?;
        put(context, context::handle(context::current_or_none()))
    }

    /// Makes a context current.
    fn cuCtxSetCurrent(context: usize) {
        context::initialized()?;
        context::set_current(context::device_of(context)?);
        Ok(())
    }

    /// Puts a context above the current one.
    fn cuCtxPushCurrent_v2(context: usize) {
        context::initialized()?;
        context::push(context::device_of(context)?.ok_or(Status::INVALID_CONTEXT)?)
    }

    /// Takes the current context away.
    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let device = context::pop()?;
        put_wanted(context, context::handle(Some(device)));
        Ok(())
    }

    /// The device of the current context.
    fn cuCtxGetDevice(device: *mut c_int) { put(device, context::current()?) }

    /// Waits for everything on the current device.
    fn cuCtxSynchronize() { stream::synchronize_device(context::current()?) }

    /// The version of a context's interface.
    fn cuCtxGetApiVersion(context: usize, version: *mut c_uint) {
        context::device_of(context)?;
        put(version, DRIVER_VERSION.unsigned_abs())
    }

    /// The range of priorities.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        context::current()?;
        put_wanted(least, 0);
        put_wanted(greatest, stream::HIGHEST_PRIORITY);
        Ok(())
    }

    /// Free and total memory of the current device.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let device = context::current()?;
        let all = context::device_memory();
        put(free, all.saturating_sub(memory::used(device)))?;
        put(total, all)
    }
}

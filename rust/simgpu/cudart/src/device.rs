//! Devices, versions and errors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use simgpu_common::driver::driver;

use crate::state::{call, last, put, take_last, use_device};
use crate::{exported, runtime_api};

/// The version of the runtime that is simulated.
const VERSION: c_int = 13_020;

/// As in the runtime's header for CUDA 13.
#[repr(C)]
struct DeviceProperties {
    name: [u8; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_device_node_mask: c_uint,
    total_global_mem: usize,
    shared_mem_per_block: usize,
    regs_per_block: c_int,
    warp_size: c_int,
    mem_pitch: usize,
    max_threads_per_block: c_int,
    max_threads_dim: [c_int; 3],
    max_grid_size: [c_int; 3],
    total_const_mem: usize,
    major: c_int,
    minor: c_int,
    texture_alignment: usize,
    texture_pitch_alignment: usize,
    multi_processor_count: c_int,
    integrated: c_int,
    can_map_host_memory: c_int,
    textures: [c_int; 39],
    surface_alignment: usize,
    concurrent_kernels: c_int,
    ecc_enabled: c_int,
    pci_bus_id: c_int,
    pci_device_id: c_int,
    pci_domain_id: c_int,
    tcc_driver: c_int,
    async_engine_count: c_int,
    unified_addressing: c_int,
    memory_bus_width: c_int,
    l2_cache_size: c_int,
    persisting_l2_cache_max_size: c_int,
    max_threads_per_multi_processor: c_int,
    stream_priorities_supported: c_int,
    global_l1_cache_supported: c_int,
    local_l1_cache_supported: c_int,
    shared_mem_per_multiprocessor: usize,
    regs_per_multiprocessor: c_int,
    managed_memory: c_int,
    is_multi_gpu_board: c_int,
    multi_gpu_board_group_id: c_int,
    host_native_atomic_supported: c_int,
    pageable_memory_access: c_int,
    concurrent_managed_access: c_int,
    compute_preemption_supported: c_int,
    can_use_host_pointer_for_registered_mem: c_int,
    cooperative_launch: c_int,
    shared_mem_per_block_optin: usize,
    rest: [c_int; 82],
}

// Offsets of CUDA 13's header, as a C compiler gives them.
const _: () = {
    assert!(std::mem::offset_of!(DeviceProperties, total_global_mem) == 288);
    assert!(std::mem::offset_of!(DeviceProperties, major) == 360);
    assert!(std::mem::offset_of!(DeviceProperties, multi_processor_count) == 384);
    assert!(std::mem::offset_of!(DeviceProperties, shared_mem_per_multiprocessor) == 624);
    assert!(std::mem::offset_of!(DeviceProperties, shared_mem_per_block_optin) == 672);
    assert!(size_of::<DeviceProperties>() == 1008);
};

fn attribute(number: c_int, device: c_int) -> Result<c_int, c_int> {
    let mut value = 0;
    match call!(cuDeviceGetAttribute(&mut value, number, device)) {
        0 => Ok(value),
        status => Err(status),
    }
}

fn properties(device: c_int) -> Result<DeviceProperties, c_int> {
    // SAFETY: all zero is a value of each field.
    let mut all: DeviceProperties = unsafe { std::mem::zeroed() };
    let of = |number| attribute(number, device);
    let bytes = |number| of(number).map(|value| value.unsigned_abs() as usize);
    let name = format!("Simulated GPU {device}");
    all.name[..name.len()].copy_from_slice(name.as_bytes());
    all.uuid.copy_from_slice(b"simulated GPU  \0");
    all.uuid[15] = device as u8;
    let status = call!(cuDeviceTotalMem_v2(&mut all.total_global_mem, device));
    if status != 0 {
        return Err(status);
    }
    all.shared_mem_per_block = bytes(8)?;
    all.regs_per_block = of(12)?;
    all.warp_size = of(10)?;
    all.max_threads_per_block = of(1)?;
    all.max_threads_dim = [of(2)?, of(3)?, of(4)?];
    all.max_grid_size = [of(5)?, of(6)?, of(7)?];
    all.total_const_mem = bytes(9)?;
    all.major = of(75)?;
    all.minor = of(76)?;
    all.multi_processor_count = of(16)?;
    all.can_map_host_memory = of(19)?;
    all.concurrent_kernels = of(31)?;
    all.pci_bus_id = of(33)?;
    all.async_engine_count = of(40)?;
    all.unified_addressing = of(41)?;
    all.memory_bus_width = of(37)?;
    all.l2_cache_size = of(38)?;
    all.max_threads_per_multi_processor = of(39)?;
    all.stream_priorities_supported = of(78)?;
    all.shared_mem_per_multiprocessor = bytes(81)?;
    all.regs_per_multiprocessor = of(82)?;
    all.managed_memory = of(83)?;
    all.shared_mem_per_block_optin = bytes(97)?;
    Ok(all)
}

fn text(
    look_up: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    status: c_int,
) -> *const c_char {
    let mut text = std::ptr::null();
    // SAFETY: the out pointer is a local's.
    unsafe { look_up(status, &mut text) };
    if text.is_null() {
        c"unrecognized error code".as_ptr()
    } else {
        text
    }
}

runtime_api! {
    fn cudaGetDeviceCount(count: *mut c_int) {
        let driver = driver();
        // SAFETY: no flags exist.
        let started = unsafe { (driver.cuInit)(0) };
        if started != 0 {
            put(count, 0);
            return started;
        }
        // SAFETY: the caller's pointer is valid for a write.
        unsafe { (driver.cuDeviceGetCount)(count) }
    }

    fn cudaGetDevice(device: *mut c_int) { call!(cuCtxGetDevice(device)) }

    fn cudaSetDevice(device: c_int) {
        match crate::state::ready() {
            Ok(_) => use_device(device),
            Err(status) => status,
        }
    }

    fn cudaInitDevice(_device: c_int, _device_flags: c_uint, _flags: c_uint) { 0 }

    fn cudaDriverGetVersion(version: *mut c_int) { put(version, VERSION) }

    fn cudaRuntimeGetVersion(version: *mut c_int) { put(version, VERSION) }

    fn cudaGetDeviceProperties(all: *mut DeviceProperties, device: c_int) {
        match properties(device) {
            Ok(properties) => put(all, properties),
            Err(status) => status,
        }
    }

    fn cudaDeviceGetAttribute(value: *mut c_int, number: c_int, device: c_int) {
        call!(cuDeviceGetAttribute(value, number, device))
    }

    fn cudaDeviceGetPCIBusId(out: *mut c_char, room: c_int, device: c_int) {
        let place = format!("0000:{:02x}:00.0\0", device + 1);
        if out.is_null() || usize::try_from(room).is_ok_and(|room| room < place.len()) {
            return crate::state::INVALID_VALUE;
        }
        // SAFETY: the caller has more room than the text is long.
        unsafe { out.copy_from_nonoverlapping(place.as_ptr().cast(), place.len()) };
        0
    }

    fn cudaDeviceCanAccessPeer(can: *mut c_int, _device: c_int, _peer: c_int) { put(can, 0) }

    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        // Either may be NULL, which is no error here.
        put(least, 0);
        put(greatest, -5);
        0
    }

    fn cudaDeviceSynchronize() { call!(cuCtxSynchronize()) }

    fn cudaDeviceGetLimit(value: *mut usize, _limit: c_int) { put(value, 1024) }

    fn cudaProfilerStart() { 0 }

    fn cudaProfilerStop() { 0 }
}

extern "C" fn cudaGetLastError() -> c_int {
    take_last()
}
exported!(cudaGetLastError);

extern "C" fn cudaPeekAtLastError() -> c_int {
    last()
}
exported!(cudaPeekAtLastError);

extern "C" fn cudaGetErrorName(status: c_int) -> *const c_char {
    text(driver().cuGetErrorName, status)
}
exported!(cudaGetErrorName);

extern "C" fn cudaGetErrorString(status: c_int) -> *const c_char {
    text(driver().cuGetErrorString, status)
}
exported!(cudaGetErrorString);

runtime_api! {
    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char, pointer: *mut *mut c_void, version: c_uint, flags: u64,
        result: *mut c_int,
    ) {
        let version = c_int::try_from(version).unwrap_or(VERSION);
        let mut found = 0;
        let status = call!(cuGetProcAddress_v2(name, pointer, version, flags, &mut found));
        if status == 0 && found != 0 && !name.is_null() {
            // SAFETY: not null, and a text of the caller's.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            simgpu_common::report("cudart", &format!("no driver entry point {name}"));
        }
        // The caller need not want the result.
        put(result, found);
        status
    }

    fn cudaGetDriverEntryPoint(
        name: *const c_char, pointer: *mut *mut c_void, flags: u64, result: *mut c_int,
    ) {
        // SAFETY: the same contract.
        unsafe { cudaGetDriverEntryPointByVersion(name, pointer, 13_000, flags, result) }
    }
}

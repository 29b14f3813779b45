//! Kernels: they are registered by name and cannot be launched. The error names the kernel.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use simgpu_common::driver::Handle;

use crate::state::{NOT_SUPPORTED, put, remember};
use crate::{exported, runtime_api};

/// Names of kernels by the address of their host function.
static NAMES: Mutex<Option<HashMap<usize, String>>> = Mutex::new(None);

/// As in CUDA's vector types.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// As in the runtime's header for CUDA 13.
#[repr(C)]
struct FuncAttributes {
    shared_size: usize,
    const_size: usize,
    local_size: usize,
    max_threads_per_block: c_int,
    num_regs: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    rest: [c_int; 26],
}

fn refuse(function: *const c_void) -> c_int {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = names
        .as_ref()
        .and_then(|names| names.get(&(function as usize)));
    let name = known.map_or("a function that was not registered", String::as_str);
    simgpu_common::report(
        "cudart",
        &format!("kernels are not simulated; refused to launch {name}"),
    );
    NOT_SUPPORTED
}

runtime_api! {
    fn cudaLaunchKernel(
        function: *const c_void, _grid: Dim3, _block: Dim3, _arguments: *mut *mut c_void,
        _shared: usize, _stream: Handle,
    ) {
        refuse(function)
    }

    fn __cudaLaunchKernel(
        function: *const c_void, _grid: Dim3, _block: Dim3, _arguments: *mut *mut c_void,
        _shared: usize, _stream: Handle,
    ) {
        refuse(function)
    }

    fn cudaLaunchCooperativeKernel(
        function: *const c_void, _grid: Dim3, _block: Dim3, _arguments: *mut *mut c_void,
        _shared: usize, _stream: Handle,
    ) {
        refuse(function)
    }

    fn cudaLaunchKernelExC(
        _configuration: *const c_void, function: *const c_void, _arguments: *mut *mut c_void,
    ) {
        refuse(function)
    }

    fn cudaFuncGetAttributes(all: *mut FuncAttributes, _function: *const c_void) {
        put(all, FuncAttributes {
            shared_size: 0,
            const_size: 0,
            local_size: 0,
            max_threads_per_block: 1024,
            num_regs: 32,
            ptx_version: 90,
            binary_version: 90,
            rest: [0; 26],
        })
    }

    fn cudaFuncSetAttribute(_function: *const c_void, _number: c_int, _value: c_int) { 0 }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, _function: *const c_void, _size: c_int, _shared: usize,
    ) {
        put(blocks, 1)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int, _function: *const c_void, _size: c_int, _shared: usize, _flags: c_uint,
    ) {
        put(blocks, 1)
    }

    fn __cudaPopCallConfiguration(
        grid: *mut Dim3, block: *mut Dim3, shared: *mut usize, stream: *mut Handle,
    ) {
        let one = Dim3 { x: 1, y: 1, z: 1 };
        put(grid, one);
        put(block, one);
        put(shared, 0);
        put(stream, std::ptr::null_mut());
        0
    }

    fn __cudaGetKernel(kernel: *mut *const c_void, function: *const c_void) {
        put(kernel, function)
    }
}

/// What registration hands out: modules have no content here.
static MODULE: u64 = 0;

extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *const c_void {
    (&raw const MODULE).cast()
}
exported!(__cudaRegisterFatBinary);

extern "C" fn __cudaRegisterFatBinaryEnd(_module: *const c_void) {}
exported!(__cudaRegisterFatBinaryEnd);

extern "C" fn __cudaUnregisterFatBinary(_module: *const c_void) {}
exported!(__cudaUnregisterFatBinary);

unsafe extern "C" fn __cudaRegisterFunction(
    _module: *const c_void,
    function: *const c_void,
    _device_function: *const c_char,
    name: *const c_char,
) {
    // SAFETY: compilers emit this call with the kernel's name.
    let name = unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names
        .get_or_insert_default()
        .insert(function as usize, name);
}
exported!(__cudaRegisterFunction);

extern "C" fn __cudaRegisterVar() {}
exported!(__cudaRegisterVar);

extern "C" fn __cudaPushCallConfiguration(
    _grid: Dim3,
    _block: Dim3,
    _shared: usize,
    _stream: Handle,
) -> c_uint {
    // The launch that follows reports the error.
    remember(0).unsigned_abs()
}
exported!(__cudaPushCallConfiguration);

// As a C compiler lays out the header's.
const _: () = assert!(size_of::<FuncAttributes>() == 144);

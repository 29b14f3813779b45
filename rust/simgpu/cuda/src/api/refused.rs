//! Functions that torch asks for and that are not simulated. Each says its name on standard error
//! and fails.

use std::ffi::{CStr, c_char, c_int};

use crate::status::Status;

macro_rules! refused {
    ($($name:ident)*) => {$(
        /// Not simulated.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            simgpu_common::report("cuda", concat!(stringify!($name), " is not simulated"));
            Status::NOT_SUPPORTED.0
        }
    )*};
}

refused! {
    cuCtxCreate_v4 cuCtxFromGreenCtx cuDevResourceGenerateDesc cuDevSmResourceSplitByCount
    cuDeviceGetDevResource cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate cuIpcGetEventHandle
    cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuKernelGetAttribute
    cuLaunchCooperativeKernel cuLinkAddData_v2 cuLinkComplete cuLinkCreate_v2
    cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemExportToShareableHandle
    cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle
    cuMemGetHandleForAddressRange
    cuMemImportFromShareableHandle cuMemMap cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess
    cuMemUnmap cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleUnload
    cuMulticastAddDevice cuMulticastBindMem cuMulticastCreate cuMulticastUnbind
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuStreamBatchMemOp_v2 cuTensorMapEncodeTiled
}

fn refuse_named(call: &str, name: *const c_char) -> c_int {
    let name = if name.is_null() {
        "(no name)".into()
    } else {
        // SAFETY: not null, and a text of the caller's.
        unsafe { CStr::from_ptr(name) }.to_string_lossy()
    };
    simgpu_common::report(
        "cuda",
        &format!("{call} of {name}: kernels are not simulated"),
    );
    Status::NOT_SUPPORTED.0
}

/// A function of a module: there are none.
///
/// # Safety
/// `name` is null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    _function: *mut usize,
    _module: usize,
    name: *const c_char,
) -> c_int {
    refuse_named("cuModuleGetFunction", name)
}

/// Launches no kernel; says so. Functions have no names here, because no module gives one.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel() -> c_int {
    refuse_named("cuLaunchKernel", std::ptr::null())
}

/// As [`cuLaunchKernel`].
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx() -> c_int {
    refuse_named("cuLaunchKernelEx", std::ptr::null())
}

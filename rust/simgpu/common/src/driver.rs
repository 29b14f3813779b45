//! The driver's functions that the simulated runtime and NCCL call, found in the `libcuda.so.1` of
//! this process, or else in the one beside the calling library. It must not hold any state.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A handle of the driver: context, stream, event, graph, or user object.
pub type Handle = *mut c_void;
/// A function that runs on the stream's thread.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

macro_rules! driver_table {
    ($($(#[$doc:meta])* $name:ident($($arg:ty),*);)*) => {
        /// Entry points of the driver, each under its own name.
        #[expect(non_snake_case, reason = "the names of the driver API")]
        pub struct Driver {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Driver {
            fn resolve(library: *mut c_void) -> Result<Driver, String> {
                Ok(Driver {
                    $($name: {
                        let found = symbol(library, stringify!($name))?;
                        // SAFETY: the simulated driver exports each name with this signature.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> c_int,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

driver_table! {
    /// Starts the driver.
    cuInit(c_uint);
    /// The number of devices.
    cuDeviceGetCount(*mut c_int);
    /// A number that describes a device.
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    /// Its memory in bytes.
    cuDeviceTotalMem_v2(*mut usize, c_int);
    /// Makes the primary context.
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    /// The context of the calling thread.
    cuCtxGetCurrent(*mut Handle);
    /// The device of the calling thread's context.
    cuCtxGetDevice(*mut c_int);
    /// Sets the context of the calling thread.
    cuCtxSetCurrent(Handle);
    /// Waits for everything on the device.
    cuCtxSynchronize();
    /// Free and total memory.
    cuMemGetInfo_v2(*mut usize, *mut usize);
    /// Device memory.
    cuMemAlloc_v2(*mut usize, usize);
    /// Managed memory.
    cuMemAllocManaged(*mut usize, usize, c_uint);
    /// Gives device memory back.
    cuMemFree_v2(usize);
    /// Device memory in stream order.
    cuMemAllocAsync(*mut usize, usize, Handle);
    /// Gives device memory back in stream order.
    cuMemFreeAsync(usize, Handle);
    /// Pinned memory.
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    /// Gives pinned memory back.
    cuMemFreeHost(*mut c_void);
    /// Pins memory.
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    /// Unpins memory.
    cuMemHostUnregister(*mut c_void);
    /// Kind, device and range of a pointer.
    cuPointerGetAttribute(*mut c_void, c_int, usize);
    /// The allocation that a pointer is in.
    cuMemGetAddressRange_v2(*mut usize, *mut usize, usize);
    /// Copies, and waits.
    cuMemcpy(usize, usize, usize);
    /// Copies in stream order.
    cuMemcpyAsync(usize, usize, usize, Handle);
    /// Copies rows in stream order.
    simgpuMemcpyRowsAsync(usize, usize, usize, usize, usize, usize, Handle);
    /// Fills in stream order.
    cuMemsetD8Async(usize, u8, usize, Handle);
    /// Makes a stream.
    cuStreamCreateWithPriority(*mut Handle, c_uint, c_int);
    /// Destroys a stream.
    cuStreamDestroy_v2(Handle);
    /// Waits for a stream.
    cuStreamSynchronize(Handle);
    /// Looks whether a stream is done.
    cuStreamQuery(Handle);
    /// A stream's priority.
    cuStreamGetPriority(Handle, *mut c_int);
    /// A stream's flags.
    cuStreamGetFlags(Handle, *mut c_uint);
    /// A stream's own number.
    cuStreamGetId(Handle, *mut u64);
    /// The device of a stream.
    simgpuStreamGetDevice(Handle, *mut c_int);
    /// Makes a stream wait for an event.
    cuStreamWaitEvent(Handle, Handle, c_uint);
    /// Runs a function in stream order.
    cuLaunchHostFunc(Handle, HostFn, *mut c_void);
    /// Starts capture.
    cuStreamBeginCapture_v2(Handle, c_int);
    /// Starts capture into a graph that exists.
    cuStreamBeginCaptureToGraph(Handle, Handle, *const Handle, *const c_void, usize, c_int);
    /// Ends capture.
    cuStreamEndCapture(Handle, *mut Handle);
    /// Looks whether a stream is capturing.
    cuStreamIsCapturing(Handle, *mut c_int);
    /// State of capture.
    cuStreamGetCaptureInfo_v3(
        Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle, *mut *const c_void,
        *mut usize
    );
    /// Sets what the next captured operation depends on.
    cuStreamUpdateCaptureDependencies_v2(Handle, *mut Handle, *const c_void, usize, c_uint);
    /// Changes the capture mode of the calling thread.
    cuThreadExchangeStreamCaptureMode(*mut c_int);
    /// Makes an event.
    cuEventCreate(*mut Handle, c_uint);
    /// Destroys an event.
    cuEventDestroy_v2(Handle);
    /// Records an event.
    cuEventRecordWithFlags(Handle, Handle, c_uint);
    /// Looks whether an event has happened.
    cuEventQuery(Handle);
    /// Waits for an event.
    cuEventSynchronize(Handle);
    /// Time between two events.
    cuEventElapsedTime_v2(*mut f32, Handle, Handle);
    /// Makes an empty graph.
    cuGraphCreate(*mut Handle, c_uint);
    /// Makes a graph ready to launch.
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    /// Launches a graph.
    cuGraphLaunch(Handle, Handle);
    /// Destroys a graph.
    cuGraphDestroy(Handle);
    /// Destroys what is ready to launch.
    cuGraphExecDestroy(Handle);
    /// The nodes of a graph.
    cuGraphGetNodes(Handle, *mut Handle, *mut usize);
    /// What a node depends on.
    cuGraphNodeGetDependencies_v2(Handle, *mut Handle, *mut c_void, *mut usize);
    /// Makes a user object.
    cuUserObjectCreate(*mut Handle, *mut c_void, HostFn, c_uint, c_uint);
    /// Takes references to a user object.
    cuUserObjectRetain(Handle, c_uint);
    /// Gives references back.
    cuUserObjectRelease(Handle, c_uint);
    /// A graph takes references.
    cuGraphRetainUserObject(Handle, Handle, c_uint, c_uint);
    /// A graph gives references back.
    cuGraphReleaseUserObject(Handle, Handle, c_uint);
    /// The number of the memory file behind a pointer, and where in it the pointer lies.
    simgpuMemExport(*const c_void, *mut c_int, *mut usize, *mut usize);
    /// Another process's memory file, mapped here as device memory.
    simgpuMemImport(c_int, usize, *mut *mut c_void);
    /// Gives memory back without waiting for the device.
    simgpuMemForget(*mut c_void);
    /// Name of a status.
    cuGetErrorName(c_int, *mut *const c_char);
    /// Text of a status.
    cuGetErrorString(c_int, *mut *const c_char);
    /// Looks up an entry point.
    cuGetProcAddress_v2(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
}

fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: `library` came from dlopen, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    if found.is_null() {
        Err(format!("libcuda.so.1 has no {name}"))
    } else {
        Ok(found)
    }
}

fn open(path: &CStr) -> *mut c_void {
    // SAFETY: the path ends with a zero; opening runs no code but the library's constructors.
    unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

/// The driver of this process. A process without the simulated driver ends with the reason.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut library = open(c"libcuda.so.1");
        if library.is_null()
            && let Some(path) = beside_this_library()
        {
            library = open(&path);
        }
        let table = if library.is_null() {
            Err("cannot open libcuda.so.1".to_owned())
        } else {
            Driver::resolve(library)
        };
        table.unwrap_or_else(|reason| {
            crate::report(
                "loader",
                &format!("{reason}: preload the three simulated libraries"),
            );
            std::process::abort()
        })
    })
}

fn beside_this_library() -> Option<CString> {
    // SAFETY: all zero is a value of Dl_info, and dladdr only writes to it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the address is that of a function of this library.
    if unsafe { libc::dladdr(driver as *const c_void, &mut info) } == 0 || info.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: dladdr gave a name that ends with a zero and lives as long as the library.
    let own = unsafe { CStr::from_ptr(info.dli_fname) }.to_str().ok()?;
    let beside = std::path::Path::new(own).with_file_name("libcuda.so.1");
    CString::new(beside.to_str()?).ok()
}

//! CUDA's driver: the calls the engine makes, each a `Result` with CUDA's own words.
//!
//! cudarc's loader panics where the library or a function is missing, so both are looked for before
//! the first call. This module must not know NCCL.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;
use ferrocomm_core::call::Stream;
use ferrocomm_core::{Error, ErrorKind, Result};
use once_cell::sync::OnceCell;

/// Functions without which no communicator can work.
const REQUIRED: [&CStr; 22] = [
    c"cuInit",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxGetCurrent",
    c"cuCtxSetCurrent",
    c"cuStreamCreateWithPriority",
    c"cuStreamDestroy_v2",
    c"cuStreamQuery",
    c"cuStreamWaitEvent",
    c"cuStreamIsCapturing",
    c"cuThreadExchangeStreamCaptureMode",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuMemcpyHtoD_v2",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuDriverGetVersion",
];

/// Functions for graphs alone.
const FOR_GRAPHS: [&CStr; 4] = [
    c"cuStreamGetCaptureInfo_v3",
    c"cuUserObjectCreate",
    c"cuUserObjectRelease",
    c"cuGraphRetainUserObject",
];

/// The function for priorities alone.
const FOR_PRIORITIES: [&CStr; 1] = [c"cuCtxGetStreamPriorityRange"];

/// Proof that the driver is there and initialised.
#[derive(Debug)]
pub(crate) struct Driver {
    devices: c_int,
    graphs: bool,
    priorities: bool,
}

/// The driver of this process.
///
/// # Errors
/// `Unsupported`, when there is none, or no device, with what to do.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceCell<Driver> = OnceCell::new();
    DRIVER.get_or_try_init(Driver::find)
}

fn unusable(what: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, what)
        .remedy("use a machine with an NVIDIA GPU and driver; gloo serves CPU tensors here")
}

pub(crate) fn has(functions: &[&CStr]) -> bool {
    // SAFETY: the caller knows that the library is present, so that this cannot panic.
    let library = unsafe { sys::culib() };
    functions.iter().all(|name| {
        // SAFETY: only looked up, never called through this pointer.
        unsafe { library.get::<unsafe extern "C" fn()>(name.to_bytes_with_nul()) }.is_ok()
    })
}

impl Driver {
    fn find() -> Result<Self> {
        // SAFETY: opens and closes libraries of the driver's name.
        if !unsafe { sys::is_culib_present() } {
            return Err(unusable("no NVIDIA driver is installed")
                .got("no libcuda.so.1")
                .expected("the driver's library"));
        }
        if let Some(missing) = REQUIRED.iter().find(|name| !has(&[name])) {
            return Err(unusable("the NVIDIA driver is too old")
                .got(format!("no {}", missing.to_string_lossy())));
        }
        // SAFETY: initialises the driver; may be repeated.
        check(unsafe { sys::cuInit(0) }, "cuInit").map_err(|error| {
            unusable("the NVIDIA driver cannot be used").got(error.what().to_owned())
        })?;
        let mut devices = 0;
        check(
            // SAFETY: a place for one number.
            unsafe { sys::cuDeviceGetCount(&raw mut devices) },
            "cuDeviceGetCount",
        )?;
        if devices == 0 {
            return Err(unusable("the NVIDIA driver sees no GPU"));
        }
        Ok(Self {
            devices,
            graphs: has(&FOR_GRAPHS),
            priorities: has(&FOR_PRIORITIES),
        })
    }

    /// Number of devices that this process may use.
    pub(crate) fn devices(&self) -> c_int {
        self.devices
    }

    /// Version of CUDA that the driver supports, such as 13.2.
    pub(crate) fn version(&self) -> Result<(c_int, c_int)> {
        let mut version = 0;
        check(
            // SAFETY: a place for one number.
            unsafe { sys::cuDriverGetVersion(&raw mut version) },
            "cuDriverGetVersion",
        )?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Whether calls can be captured into graphs.
    pub(crate) fn graphs(&self) -> bool {
        self.graphs
    }
}

/// A result of the driver as an error with CUDA's words.
pub(crate) fn check(result: sys::CUresult, call: &'static str) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let kind = match result {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::Resources,
        _ => ErrorKind::Transport,
    };
    Err(Error::new(kind, format!("{call} failed")).got(words(result)))
}

/// CUDA's name and words for a result.
pub(crate) fn words(result: sys::CUresult) -> String {
    let text = |ask: unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult| {
        let mut text: *const c_char = ptr::null();
        // SAFETY: a place for one pointer, to which static text is written.
        let answer = unsafe { ask(result, &raw mut text) };
        if answer != sys::CUresult::CUDA_SUCCESS || text.is_null() {
            return String::new();
        }
        // SAFETY: static, nul-terminated text of the driver.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    let (name, sentence) = (text(sys::cuGetErrorName), text(sys::cuGetErrorString));
    format!("CUDA error {} ({name}: {sentence})", result as u32)
}

/// A device with its primary context, which torch uses, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    context: sys::CUcontext,
}
// SAFETY: a context is the process's; the driver may be called with it on any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Device number `index`. Its context is retained until the process ends.
    ///
    /// # Errors
    /// `InvalidArgument`, when there is no such device; what CUDA says.
    pub(crate) fn open(index: i32) -> Result<Self> {
        let driver = driver()?;
        if index < 0 || index >= driver.devices() {
            return Err(
                Error::new(ErrorKind::InvalidArgument, "there is no such CUDA device")
                    .got(format!("device {index}"))
                    .expected(format!("0 to {}", driver.devices() - 1)),
            );
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        check(
            // SAFETY: places for one value each, here and below.
            unsafe { sys::cuDeviceGet(&raw mut device, index) },
            "cuDeviceGet",
        )?;
        check(
            // SAFETY: as above.
            unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) },
            "cuDevicePrimaryCtxRetain",
        )?;
        Ok(Self { context })
    }

    /// Makes it the thread's current device until the guard is dropped.
    pub(crate) fn enter(self) -> Result<Entered> {
        let mut before = ptr::null_mut();
        check(
            // SAFETY: a place for one pointer.
            unsafe { sys::cuCtxGetCurrent(&raw mut before) },
            "cuCtxGetCurrent",
        )?;
        if before == self.context {
            return Ok(Entered { before: None });
        }
        check(
            // SAFETY: the context was retained by `open` and is never released.
            unsafe { sys::cuCtxSetCurrent(self.context) },
            "cuCtxSetCurrent",
        )?;
        Ok(Entered {
            before: Some(before),
        })
    }
}

/// A device is the thread's current one.
pub(crate) struct Entered {
    before: Option<sys::CUcontext>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: what was current before; NULL is none. A failure leaves another device current,
            // which every caller of ours sets for itself.
            let _still_ours = unsafe { sys::cuCtxSetCurrent(before) };
        }
    }
}

fn raw(stream: Stream) -> sys::CUstream {
    stream.0 as sys::CUstream
}

/// Whether a capture is going on on `stream`.
pub(crate) fn is_capturing(stream: Stream) -> Result<bool> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a stream of the caller, which lives during the call, and a place for one value.
    let result = unsafe { sys::cuStreamIsCapturing(raw(stream), &raw mut status) };
    // Asked on the default stream while another stream is captured: nothing is captured here.
    if result == sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
        return Ok(false);
    }
    check(result, "cuStreamIsCapturing")?;
    Ok(status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE)
}

/// The capture on `stream`: its number and the graph it fills.
pub(crate) fn capture_of(stream: Stream) -> Result<(u64, sys::CUgraph)> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, ptr::null_mut());
    // SAFETY: a stream of the caller; places for one value each, NULL for what nobody asks.
    let result = unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            raw(stream),
            &raw mut status,
            &raw mut id,
            &raw mut graph,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    check(result, "cuStreamGetCaptureInfo")?;
    Ok((id, graph))
}

/// Makes `graph` hold `object`: `destroy` is called with it once when the graph and all that were
/// instantiated from it are gone, on a thread of CUDA's that must not call CUDA.
///
/// # Safety
/// `graph` is being captured, and `destroy` takes `object` over, on any thread.
pub(crate) unsafe fn retain_in_graph(
    graph: sys::CUgraph,
    object: *mut std::ffi::c_void,
    destroy: unsafe extern "C" fn(*mut std::ffi::c_void),
) -> Result<()> {
    /// the destructor may run without anybody waiting for it
    const NO_SYNC: u32 = 1;
    /// the graph takes over the one reference
    const MOVE: u32 = 1;
    let mut held = ptr::null_mut();
    // SAFETY: a place for one pointer; the rest by the caller's promise.
    let made = unsafe { sys::cuUserObjectCreate(&raw mut held, object, Some(destroy), 1, NO_SYNC) };
    if let Err(error) = check(made, "cuUserObjectCreate") {
        // SAFETY: CUDA did not take the object.
        unsafe { destroy(object) };
        return Err(error);
    }
    // SAFETY: an object just made, and a graph that is being captured.
    let retained = unsafe { sys::cuGraphRetainUserObject(graph, held, 1, MOVE) };
    check(retained, "cuGraphRetainUserObject").inspect_err(|_| {
        // SAFETY: the reference was not moved; giving it back runs `destroy`.
        let _given_back = unsafe { sys::cuUserObjectRelease(held, 1) };
    })
}

/// The thread's calls are no part of any capture while this lives.
pub(crate) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    /// Starts it.
    pub(crate) fn start() -> Result<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        check(
            // SAFETY: a place for one value, which is read and written.
            unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) },
            "cuThreadExchangeStreamCaptureMode",
        )?;
        Ok(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: gives back the mode that was there; it cannot fail with a mode of CUDA's own.
        let _restored = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}

/// What CUDA says about the work on `stream`, when it is an error.
pub(crate) fn fault_of(stream: Stream) -> Option<String> {
    // SAFETY: a stream of the caller.
    match unsafe { sys::cuStreamQuery(raw(stream)) } {
        sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY => None,
        fault => Some(words(fault)),
    }
}

/// A stream of the engine's own.
#[derive(Debug)]
pub(crate) struct OwnStream {
    handle: Stream,
    device: Device,
}

impl OwnStream {
    /// A stream that does not wait for the default stream; one that goes first when `high`.
    pub(crate) fn new(device: Device, high: bool) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let _entered = device.enter()?;
        let (mut low, mut best) = (0, 0);
        if high && driver()?.priorities {
            check(
                // SAFETY: places for one number each.
                unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut low, &raw mut best) },
                "cuCtxGetStreamPriorityRange",
            )?;
        }
        let mut handle = ptr::null_mut();
        check(
            // SAFETY: a place for one pointer; the device is current.
            unsafe { sys::cuStreamCreateWithPriority(&raw mut handle, NON_BLOCKING, best) },
            "cuStreamCreateWithPriority",
        )?;
        Ok(Self {
            handle: Stream(handle.addr()),
            device,
        })
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> Stream {
        self.handle
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else {
            return;
        };
        // SAFETY: made by `new`, destroyed once; CUDA finishes what is on it first.
        let result = unsafe { sys::cuStreamDestroy_v2(raw(self.handle)) };
        if let Err(error) = check(result, "cuStreamDestroy") {
            tracing::debug!(error = %error, "a stream could not be destroyed");
        }
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event(sys::CUevent);
// SAFETY: the driver may be called with an event on any thread.
unsafe impl Send for Event {}
// SAFETY: as above; recording is serialised by the engine.
unsafe impl Sync for Event {}

impl Event {
    /// An event of the current device that takes no time stamps.
    pub(crate) fn new() -> Result<Self> {
        const NO_TIMING: u32 = 2;
        let mut event = ptr::null_mut();
        check(
            // SAFETY: a place for one pointer.
            unsafe { sys::cuEventCreate(&raw mut event, NO_TIMING) },
            "cuEventCreate",
        )?;
        Ok(Self(event))
    }

    /// Comes after what is on `stream` now.
    pub(crate) fn record(&self, stream: Stream) -> Result<()> {
        check(
            // SAFETY: a live event, and a stream that lives during the call.
            unsafe { sys::cuEventRecord(self.0, raw(stream)) },
            "cuEventRecord",
        )
    }

    /// Whether it has come. Never for an event recorded in a capture.
    pub(crate) fn has_come(&self) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            fault => check(fault, "cuEventQuery").map(|()| false),
        }
    }

    /// Makes `stream` wait for it.
    pub(crate) fn hold(&self, stream: Stream) -> Result<()> {
        check(
            // SAFETY: a live event, and a stream that lives during the call.
            unsafe { sys::cuStreamWaitEvent(raw(stream), self.0, 0) },
            "cuStreamWaitEvent",
        )
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; CUDA lets it come first when it is on its way.
        let result = unsafe { sys::cuEventDestroy_v2(self.0) };
        if let Err(error) = check(result, "cuEventDestroy") {
            tracing::debug!(error = %error, "an event could not be destroyed");
        }
    }
}

/// Tokens that nobody uses any more, for the next communicators: freeing device memory waits for all that
/// is on the device, which may wait for another rank.
static SPARE_TOKENS: Mutex<Vec<(Device, sys::CUdeviceptr)>> = Mutex::new(Vec::new());

/// A few bytes of the device, for what their content is of no matter.
#[derive(Debug)]
pub(crate) struct Token {
    address: sys::CUdeviceptr,
    device: Device,
}

impl Token {
    /// Memory of eight bytes.
    pub(crate) fn new(device: Device) -> Result<Self> {
        const BYTES: usize = 8;
        let spare = {
            let mut spare = SPARE_TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
            let place = spare
                .iter()
                .position(|(of, _)| of.context == device.context);
            place.map(|place| spare.swap_remove(place).1)
        };
        if let Some(address) = spare {
            return Ok(Self { address, device });
        }
        let _entered = device.enter()?;
        let mut address = 0;
        check(
            // SAFETY: a place for one address; the device is current.
            unsafe { sys::cuMemAlloc_v2(&raw mut address, BYTES) },
            "cuMemAlloc",
        )?;
        let token = Self { address, device };
        let zeros = [0u8; BYTES];
        check(
            // SAFETY: as many bytes on both sides.
            unsafe { sys::cuMemcpyHtoD_v2(address, zeros.as_ptr().cast(), BYTES) },
            "cuMemcpyHtoD",
        )?;
        Ok(token)
    }

    /// Its address.
    pub(crate) fn address(&self) -> usize {
        // Addresses of the device fit in the host's on every platform CUDA runs on.
        usize::try_from(self.address).unwrap_or_default()
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut spare = SPARE_TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push((self.device, self.address));
    }
}

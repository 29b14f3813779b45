//! What windows ask of CUDA's driver: copies and words in stream order, and memory for agreements.
//! Must not know NCCL.

use std::ffi::CStr;

use cudarc::driver::sys;
use ferrocomm_core::call::Stream;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::driver::{Device, check, has};

/// Functions for windows alone.
const FOR_WINDOWS: [&CStr; 6] = [
    c"cuMemcpyDtoDAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuStreamSynchronize",
    c"cuStreamWriteValue32_v2",
    c"cuStreamWaitValue32_v2",
];

/// One thing that happens in stream order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Copies memory that this device reaches.
    Copy {
        from: usize,
        to: usize,
        bytes: usize,
    },
    /// Writes a word, after everything that came before it on the stream can be seen by others.
    Write { word: usize, value: u32 },
    /// Waits until a word, which only grows, has come to a value.
    Wait { word: usize, value: u32 },
}

/// Whether the driver can do all that.
///
/// # Errors
/// `Unsupported`, when it is too old.
pub(crate) fn usable() -> Result<()> {
    match FOR_WINDOWS.iter().find(|name| !has(&[name])) {
        None => Ok(()),
        Some(missing) => Err(Error::new(
            ErrorKind::Unsupported,
            "the NVIDIA driver is too old for windows",
        )
        .got(format!("no {}", missing.to_string_lossy()))),
    }
}

fn raw(stream: Stream) -> sys::CUstream {
    stream.0 as sys::CUstream
}

impl Deed {
    /// Puts it on `stream`. Whoever does that keeps the memory until it has happened.
    ///
    /// # Errors
    /// What CUDA says.
    pub(crate) fn put_on(self, stream: Stream) -> Result<()> {
        let stream = raw(stream);
        match self {
            Self::Copy { bytes: 0, .. } => Ok(()),
            Self::Copy { from, to, bytes } => check(
                // SAFETY: device addresses that the caller keeps, and a stream of the process.
                unsafe { sys::cuMemcpyDtoDAsync_v2(to as u64, from as u64, bytes, stream) },
                "cuMemcpyDtoDAsync",
            ),
            Self::Write { word, value } => check(
                // SAFETY: as above; a word of four bytes.
                unsafe { sys::cuStreamWriteValue32_v2(stream, word as u64, value, 0) },
                "cuStreamWriteValue32",
            ),
            Self::Wait { word, value } => {
                let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
                check(
                    // SAFETY: as above.
                    unsafe { sys::cuStreamWaitValue32_v2(stream, word as u64, value, at_least) },
                    "cuStreamWaitValue32",
                )
            }
        }
    }
}

/// Memory of the device that is this owner's alone.
#[derive(Debug)]
pub(crate) struct Scratch {
    address: sys::CUdeviceptr,
    device: Device,
}

impl Scratch {
    /// Memory of `bytes` bytes of undefined content.
    pub(crate) fn new(device: Device, bytes: usize) -> Result<Self> {
        let _entered = device.enter()?;
        let mut address = 0;
        check(
            // SAFETY: a place for one address; the device is current.
            unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes.max(1)) },
            "cuMemAlloc",
        )?;
        Ok(Self { address, device })
    }

    /// Its address.
    pub(crate) fn address(&self) -> usize {
        // Addresses of the device fit in the host's on every platform CUDA runs on.
        usize::try_from(self.address).unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else {
            return;
        };
        // SAFETY: made by `new`, freed once, when nothing on a stream uses it any more.
        let result = unsafe { sys::cuMemFree_v2(self.address) };
        if let Err(error) = check(result, "cuMemFree") {
            tracing::debug!(error = %error, "device memory could not be freed");
        }
    }
}

/// Copies `bytes` to the device at `to`, in order on `stream`; they may go when this returns.
///
/// # Errors
/// What CUDA says.
pub(crate) fn upload(bytes: &[u8], to: usize, stream: Stream) -> Result<()> {
    check(
        // SAFETY: as many bytes on both sides; CUDA has read pageable memory when this returns.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(to as u64, bytes.as_ptr().cast(), bytes.len(), raw(stream))
        },
        "cuMemcpyHtoDAsync",
    )
}

/// Copies from the device at `from` to `bytes`, when all on `stream` is over.
///
/// # Errors
/// What CUDA says.
pub(crate) fn download(from: usize, bytes: &mut [u8], stream: Stream) -> Result<()> {
    check(
        // SAFETY: as many bytes on both sides; CUDA has written pageable memory when this returns.
        unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                from as u64,
                bytes.len(),
                raw(stream),
            )
        },
        "cuMemcpyDtoHAsync",
    )?;
    check(
        // SAFETY: a stream of the process.
        unsafe { sys::cuStreamSynchronize(raw(stream)) },
        "cuStreamSynchronize",
    )
}

//! The NCCL of this process, loaded when it is first needed. Must not know communicators.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::{Nccl, Search};
use once_cell::sync::OnceCell;

use crate::driver;

static WHEEL: Mutex<Option<PathBuf>> = Mutex::new(None);
static LIBRARY: OnceCell<Nccl> = OnceCell::new();

/// Tells where the library in the Python wheel is, if it is known; counts until it is loaded.
pub fn locate(path: Option<PathBuf>) {
    *WHEEL.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// The library.
///
/// # Errors
/// `Unsupported`, with every place that was tried; another call tries again.
pub(crate) fn library() -> Result<&'static Nccl> {
    LIBRARY.get_or_try_init(|| {
        let wheel = WHEEL.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let nccl = Nccl::load(&Search::from_environment(wheel)).map_err(|error| {
            Error::new(ErrorKind::Unsupported, "NCCL's library cannot be loaded")
                .got(error)
                .expected("libnccl.so.2")
                .remedy("install nvidia-nccl-cu13, or name the library with FERROCOMM_NCCL_LIB")
        })?;
        tracing::info!(
            version = %nccl.version(),
            path = %nccl.path().display(),
            origin = ?nccl.origin(),
            "nccl loaded"
        );
        Ok(nccl)
    })
}

/// Whether communicators can be made in this process.
///
/// # Errors
/// `Unsupported`, with what is missing.
pub fn usable() -> Result<()> {
    driver::driver()?;
    library().map(drop)
}

/// What was found: pairs of a name and a text.
pub fn describe() -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    match library() {
        Ok(nccl) => {
            facts.push(("nccl_version", nccl.version().to_string()));
            facts.push(("nccl_path", nccl.path().display().to_string()));
        }
        Err(error) => facts.push(("nccl_error", error.to_string())),
    }
    match driver::driver() {
        Ok(driver) => {
            facts.push(("cuda_devices", driver.devices().to_string()));
            if let Ok((major, minor)) = driver.version() {
                facts.push(("cuda_version", format!("{major}.{minor}")));
            }
        }
        Err(error) => facts.push(("cuda_error", error.to_string())),
    }
    facts
}

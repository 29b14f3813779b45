//! Finding and opening the library.
//!
//! Two copies of NCCL in one process crash it sooner or later, so a copy that is mapped already
//! comes before everything but the user's own choice. Must not know what it is used for.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::{Symbols, ncclResult_t, ncclWindow_t};
use crate::version::{Missing, Version, first_version};

/// Names the library to use, before any other.
pub(crate) const VARIABLE: &str = "FERROCOMM_NCCL_LIB";

/// Where to look, in this order.
#[derive(Clone, Debug)]
pub struct Search {
    /// the user's choice; no other place is tried when it is set
    pub chosen: Option<PathBuf>,
    /// the file in the Python wheel beside torch
    pub wheel: Option<PathBuf>,
    /// the name by which a mapped copy, and the loader's own search path, are asked
    pub soname: String,
}

impl Search {
    /// The search of this process; `wheel` is the client's knowledge.
    pub fn from_environment(wheel: Option<PathBuf>) -> Self {
        Self {
            chosen: std::env::var_os(VARIABLE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            wheel,
            soname: "libnccl.so.2".into(),
        }
    }
}

/// Window, offset, peer, and a place for the address.
pub type PeerPointer =
    unsafe extern "C" fn(ncclWindow_t, usize, c_int, *mut *mut c_void) -> ncclResult_t;

/// How a library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// named by the user
    Chosen,
    /// in the process already
    Mapped,
    /// in the Python wheel
    Wheel,
    /// on the loader's search path
    SearchPath,
}

/// One place that was tried in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// the place
    pub what: String,
    /// the loader's words
    pub why: String,
}

/// No library that can be used.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// every place that was tried, in order
    pub tried: Vec<Attempt>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tried ")?;
        for (index, attempt) in self.tried.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", attempt.what, attempt.why)?;
        }
        Ok(())
    }
}

impl Error for LoadError {}

/// A loaded library.
pub struct Nccl {
    symbols: Symbols,
    peer_pointer: Option<PeerPointer>,
    version: Version,
    path: PathBuf,
    origin: Origin,
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl")
            .field("version", &self.version)
            .field("path", &self.path)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

impl Nccl {
    /// Finds and opens the library.
    ///
    /// # Errors
    /// Every place that was tried, each with the loader's words.
    pub fn load(search: &Search) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        if let Some(path) = &search.chosen {
            let what = format!("{VARIABLE}={}", path.display());
            return attempt(path.as_os_str(), 0, Origin::Chosen, what, &mut tried)
                .ok_or(LoadError { tried });
        }
        let soname = OsStr::new(&search.soname);
        let mapped = format!("{} in this process", search.soname);
        if let Some(found) = attempt(
            soname,
            libc::RTLD_NOLOAD,
            Origin::Mapped,
            mapped,
            &mut tried,
        ) {
            return Ok(found);
        }
        if let Some(path) = &search.wheel {
            let what = path.display().to_string();
            if let Some(found) = attempt(path.as_os_str(), 0, Origin::Wheel, what, &mut tried) {
                return Ok(found);
            }
        }
        let what = format!("{} on the loader's path", search.soname);
        attempt(soname, 0, Origin::SearchPath, what, &mut tried).ok_or(LoadError { tried })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was found.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The table of functions; `symbol!` reads it.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// `ncclGetPeerDevicePointer`, which another header than the table's declares: where a window of a
    /// peer is for this device, NULL where it is out of reach.
    ///
    /// # Errors
    /// `Missing`, when the library does not have it.
    pub fn peer_pointer(&self) -> Result<PeerPointer, Missing> {
        let symbol = "ncclGetPeerDevicePointer";
        self.peer_pointer.ok_or(Missing {
            symbol,
            needs: first_version(symbol),
            found: self.version,
        })
    }

    /// For `symbol!`: the function behind an entry of the table.
    ///
    /// # Errors
    /// `Missing`, when the library does not have it.
    pub fn find<F: Copy>(
        &self,
        symbol: &'static str,
        entry: &Result<F, libloading::Error>,
    ) -> Result<F, Missing> {
        match entry {
            Ok(function) => Ok(*function),
            Err(_) => Err(Missing {
                symbol,
                needs: first_version(symbol),
                found: self.version,
            }),
        }
    }
}

/// Opens one candidate; what is wrong with it goes to `tried`.
fn attempt(
    name: &OsStr,
    flags: c_int,
    origin: Origin,
    what: String,
    tried: &mut Vec<Attempt>,
) -> Option<Nccl> {
    match open(name, flags, origin) {
        Ok(nccl) => Some(nccl),
        Err(why) => {
            tried.push(Attempt { what, why });
            None
        }
    }
}

fn open(name: &OsStr, flags: c_int, origin: Origin) -> Result<Nccl, String> {
    // SAFETY: opening runs the library's initialisers; the name is NCCL's own, or the user's choice.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flags) };
    let library = library.map_err(|error| {
        if flags & libc::RTLD_NOLOAD != 0 {
            "not mapped".to_owned()
        } else {
            with_causes(&error)
        }
    })?;
    // SAFETY: the function is NCCL's by its name, and is used as long as the table below keeps the
    // library open.
    let peer_pointer = unsafe { library.get::<PeerPointer>(b"ncclGetPeerDevicePointer\0") };
    let peer_pointer = peer_pointer.ok().map(|function| *function);
    // SAFETY: the table looks symbols up by name and keeps the library open as long as it lives.
    let symbols = unsafe { Symbols::from_library(libloading::Library::from(library)) }
        .map_err(|error| with_causes(&error))?;
    let get_version = symbols
        .ncclGetVersion
        .as_ref()
        .map_err(|error| format!("not NCCL: {}", with_causes(error)))?;
    let mut code: c_int = 0;
    // SAFETY: the function is NCCL's by its name, and takes a place for one number.
    let answer = unsafe { get_version(&raw mut code) };
    let code = u32::try_from(code).unwrap_or(0);
    if answer != ncclResult_t::ncclSuccess || code == 0 {
        return Err(format!(
            "ncclGetVersion answers {}, version {code}",
            answer.0
        ));
    }
    let path = file_of(*get_version as *const c_void).unwrap_or_else(|| PathBuf::from(name));
    Ok(Nccl {
        symbols,
        peer_pointer,
        version: Version::from_code(code),
        path,
        origin,
    })
}

/// The error with its causes: the loader's own words are not in its `Display`.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}

/// The file that holds the code at `address`.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: `Dl_info` is four plain words; zeros are a value of it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for, and `info` is a place for the answer.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the library, which is open.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

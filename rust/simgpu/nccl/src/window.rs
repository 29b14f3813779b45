//! Memory for windows, and windows: parts of each rank's memory that the others write to.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use simgpu_common::driver::driver;

use crate::arena::{NOTE, Stopped, open_file_of};
use crate::comm::Comm;
use crate::failure::{Failure, Outcome, cuda};
use crate::locked;

/// What the beginning of a window must be a multiple of.
const ALIGNMENT: usize = 4096;
/// Memory comes in pieces of this size, as on devices.
const GRANULE: usize = 2 << 20;

/// Memory that this library allocated, by its beginning.
static ALLOCATED: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Device memory that windows may be made of.
pub fn allocate(bytes: usize) -> Outcome<usize> {
    let mut pointer = 0;
    let whole = bytes.max(1).next_multiple_of(GRANULE);
    // SAFETY: the out pointer is a local's.
    let status = unsafe { (driver().cuMemAlloc_v2)(&mut pointer, whole) };
    cuda(status, "cuMemAlloc")?;
    locked(&ALLOCATED).get_or_insert_default().insert(pointer);
    Ok(pointer)
}

/// Gives it back.
pub fn free(pointer: usize) -> Outcome {
    if pointer == 0 {
        return Ok(());
    }
    let known = locked(&ALLOCATED)
        .as_mut()
        .is_some_and(|all| all.remove(&pointer));
    if !known {
        return Err(Failure::argument("the memory is not from ncclMemAlloc"));
    }
    // SAFETY: this library's memory, given back once.
    cuda(unsafe { (driver().cuMemFree_v2)(pointer) }, "cuMemFree")
}

/// A window.
pub struct Window {
    /// Its handle, which is never used again.
    pub handle: usize,
    /// Its communicator's handle.
    pub comm: usize,
    /// Where it begins in this rank's memory.
    pub start: usize,
    /// How long it is here.
    pub length: usize,
    /// Each rank's window as this process sees it: beginning and length.
    peers: Vec<(usize, usize)>,
    /// What was mapped for that.
    mapped: Vec<usize>,
}

impl Drop for Window {
    fn drop(&mut self) {
        for start in &self.mapped {
            // SAFETY: mapped for this window alone. The driver reports what it does not know.
            unsafe { (driver().simgpuMemForget)(*start as *mut c_void) };
        }
    }
}

impl Window {
    /// Where `bytes` at an offset of a rank's window are.
    pub fn place(&self, peer: usize, offset: usize, bytes: usize) -> Outcome<usize> {
        let known = self.peers.get(peer);
        let (start, length) =
            known.ok_or_else(|| Failure::argument(format!("peer {peer} is out of range")))?;
        if offset.checked_add(bytes).is_none_or(|end| end > *length) {
            let text = format!("offset {offset} and {bytes} bytes, the window has {length}");
            return Err(Failure::argument(text));
        }
        Ok(start + offset)
    }
}

static WINDOWS: Mutex<Option<HashMap<usize, Arc<Window>>>> = Mutex::new(None);

/// The window of a handle.
pub fn from_handle(handle: usize) -> Outcome<Arc<Window>> {
    let windows = locked(&WINDOWS);
    let known = windows.as_ref().and_then(|all| all.get(&handle)).cloned();
    known.ok_or_else(|| Failure::argument("the window is none, or one that was deregistered"))
}

/// Ends a window.
pub fn deregister(handle: usize) -> Outcome {
    let known = locked(&WINDOWS)
        .as_mut()
        .and_then(|all| all.remove(&handle));
    known
        .map(drop)
        .ok_or_else(|| Failure::argument("the window was deregistered already"))
}

/// Whether a range lies in a window of a communicator.
pub fn covers(comm: &Comm, at: usize, bytes: usize) -> bool {
    locked(&WINDOWS)
        .iter()
        .flat_map(HashMap::values)
        .any(|window| {
            let inside = window.start <= at && at + bytes <= window.start + window.length;
            window.comm == comm.handle && inside
        })
}

/// Where a window's memory is for other processes.
#[derive(Clone, Copy)]
struct Place {
    pid: i32,
    file: i32,
    offset: usize,
    whole: usize,
    length: usize,
}

impl Place {
    fn of(start: usize, length: usize) -> Outcome<Place> {
        let (mut file, mut offset, mut whole) = (0, 0, 0);
        // SAFETY: the out pointers are locals'.
        let status = unsafe {
            (driver().simgpuMemExport)(start as *const c_void, &mut file, &mut offset, &mut whole)
        };
        cuda(status, "the window's memory")?;
        if offset + length > whole {
            return Err(Failure::argument("the window is longer than its memory"));
        }
        Ok(Place {
            pid: std::process::id().cast_signed(),
            file,
            offset,
            whole,
            length,
        })
    }

    fn to_note(self) -> [u8; NOTE] {
        let mut text = [0; NOTE];
        let words = [
            self.pid as usize,
            self.file as usize,
            self.offset,
            self.whole,
            self.length,
        ];
        for (index, word) in words.into_iter().enumerate() {
            text[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        text
    }

    fn from_note(text: &[u8; NOTE]) -> Place {
        let word = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&text[index * 8..][..8]);
            usize::from_le_bytes(bytes)
        };
        Place {
            pid: word(0) as i32,
            file: word(1) as i32,
            offset: word(2),
            whole: word(3),
            length: word(4),
        }
    }

    fn map(self) -> Outcome<usize> {
        let file = open_file_of(self.pid, self.file)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the out pointer is a local's; the driver makes its own copy of the file.
        let status =
            unsafe { (driver().simgpuMemImport)(file.as_raw_fd(), self.whole, &mut pointer) };
        cuda(status, "mapping a window")?;
        Ok(pointer as usize)
    }
}

/// Registers a window. Every rank calls it, and waits for the others.
pub fn register(comm: &Comm, start: usize, length: usize, flags: c_int) -> Outcome<usize> {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    comm.takes_operations()?;
    if start == 0 || length == 0 {
        return Err(Failure::argument("a window of no memory"));
    }
    if !start.is_multiple_of(ALIGNMENT) {
        return Err(Failure::argument("a window begins at a multiple of 4096"));
    }
    if !(0..=3).contains(&flags) {
        return Err(Failure::argument(format!("window flags {flags}")));
    }
    let ours = locked(&ALLOCATED).iter().flatten().any(|from| {
        let (mut base, mut whole) = (0, 0);
        // SAFETY: the out pointers are locals'.
        unsafe { (driver().cuMemGetAddressRange_v2)(&mut base, &mut whole, start) };
        base == *from
    });
    if !ours {
        return Err(Failure::argument(
            "the window's memory is not from ncclMemAlloc",
        ));
    }
    let arena = comm.arena()?;
    let turn = comm.take_turns(2);
    arena.post(turn, &Place::of(start, length)?.to_note());
    let everyone: Vec<_> = (0..arena.ranks).collect();
    let stopped = |Stopped| Failure::usage("the communicator was stopped");
    let notes = arena.collect(turn, &everyone, comm).map_err(stopped)?;
    let (mut peers, mut mapped) = (Vec::new(), Vec::new());
    for (rank, text) in notes.iter().enumerate() {
        let place = Place::from_note(text);
        if rank == arena.rank {
            peers.push((start, place.length));
        } else {
            let base = place.map()?;
            mapped.push(base);
            peers.push((base + place.offset, place.length));
        }
    }
    // Memory is found through its process's open files, which must stay until all have looked.
    arena.post(turn + 1, &[0; NOTE]);
    arena.collect(turn + 1, &everyone, comm).map_err(stopped)?;
    let handle = 0x5900_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) << 8);
    let window = Window {
        handle,
        comm: comm.handle,
        start,
        length,
        peers,
        mapped,
    };
    locked(&WINDOWS)
        .get_or_insert_default()
        .insert(handle, Arc::new(window));
    Ok(handle)
}

//! Memory. What a device holds lies in memory files without a name, so that other processes can map
//! it and nothing is left behind whatever ends this process.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Mutex;

use crate::capture;
use crate::context;
use crate::locked;
use crate::status::{Outcome, Status};
use crate::stream::{forbid_on_stream, wait_for_device};

const PAGE: usize = 4096;

/// What kind of memory a pointer is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a device.
    Device,
    /// Of the host, pinned by its allocation.
    Host,
    /// Of the host, pinned afterwards.
    Registered,
    /// Of both.
    Managed,
}

struct Range {
    length: usize,
    kind: Kind,
    device: i32,
    file: Option<File>,
}

/// What is known of a pointer.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its kind of memory.
    pub kind: Kind,
    /// The device it belongs to.
    pub device: i32,
    /// Where its allocation begins.
    pub start: usize,
    /// How long its allocation is.
    pub length: usize,
}

static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());

fn last_error() -> String {
    std::io::Error::last_os_error().to_string()
}

fn memory_file(length: usize) -> Outcome<File> {
    // SAFETY: the name ends with a zero; the flags are memfd_create's.
    let number = unsafe { libc::memfd_create(c"simgpu".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        simgpu_common::report("cuda", &format!("memfd_create: {}", last_error()));
        return Err(Status::OUT_OF_MEMORY);
    }
    // SAFETY: the number is a file's that nobody else owns.
    let file = unsafe { File::from_raw_fd(number) };
    file.set_len(length as u64)
        .map_err(|_| Status::OUT_OF_MEMORY)?;
    Ok(file)
}

fn map(file: &File, length: usize) -> Outcome<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        simgpu_common::report("cuda", &format!("mmap of {length} bytes: {}", last_error()));
        return Err(Status::OUT_OF_MEMORY);
    }
    Ok(start as usize)
}

fn rounded(length: usize) -> usize {
    length.next_multiple_of(PAGE)
}

/// Bytes that a device's allocations take.
pub fn used(device: i32) -> usize {
    let of_device = |range: &&Range| range.device == device && range.kind == Kind::Device;
    locked(&RANGES)
        .values()
        .filter(of_device)
        .map(|range| rounded(range.length))
        .sum()
}

/// Memory of the current device, or pinned memory of the host.
pub fn allocate(length: usize, kind: Kind) -> Outcome<usize> {
    let device = context::current()?;
    if length == 0 {
        return Err(Status::INVALID_VALUE);
    }
    forbid_on_stream()?;
    capture::check_unsafe_call()?;
    allocate_quietly(length, kind, device)
}

/// As [`allocate`], where a capture does not mind.
pub fn allocate_quietly(length: usize, kind: Kind, device: i32) -> Outcome<usize> {
    if kind == Kind::Device && used(device).saturating_add(length) > context::device_memory() {
        return Err(Status::OUT_OF_MEMORY);
    }
    let file = memory_file(rounded(length))?;
    let start = map(&file, rounded(length))?;
    locked(&RANGES).insert(
        start,
        Range {
            length,
            kind,
            device,
            file: Some(file),
        },
    );
    Ok(start)
}

/// Gives memory back after everything that the device was asked to do before.
pub fn free(start: usize, kind: Kind) -> Outcome {
    if start == 0 {
        return Ok(());
    }
    context::initialized()?;
    forbid_on_stream()?;
    capture::check_unsafe_call()?;
    let device = match locked(&RANGES).get(&start) {
        Some(range)
            if range.kind == kind || kind == Kind::Device && range.kind == Kind::Managed =>
        {
            range.device
        }
        _ => return Err(Status::INVALID_VALUE),
    };
    wait_for_device(device);
    free_quietly(start)
}

/// As [`free`], without waiting.
pub fn free_quietly(start: usize) -> Outcome {
    let range = locked(&RANGES)
        .remove(&start)
        .ok_or(Status::INVALID_VALUE)?;
    // SAFETY: the range was mapped here with this length, and is out of the table for good.
    unsafe { libc::munmap(start as *mut libc::c_void, rounded(range.length)) };
    Ok(())
}

/// Pins memory of the caller's.
pub fn register(start: usize, length: usize) -> Outcome {
    let device = context::current()?;
    if start == 0 || length == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let mut ranges = locked(&RANGES);
    if let Some((other, range)) = ranges.range(..start + length).next_back()
        && other + range.length > start
    {
        return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    ranges.insert(
        start,
        Range {
            length,
            kind: Kind::Registered,
            device,
            file: None,
        },
    );
    Ok(())
}

/// Unpins memory of the caller's.
pub fn unregister(start: usize) -> Outcome {
    let mut ranges = locked(&RANGES);
    match ranges.get(&start) {
        Some(range) if range.kind == Kind::Registered => {
            ranges.remove(&start);
            Ok(())
        }
        _ => Err(Status::HOST_MEMORY_NOT_REGISTERED),
    }
}

fn lookup<T>(pointer: usize, found: impl FnOnce(usize, &Range) -> T) -> Option<T> {
    let ranges = locked(&RANGES);
    let (start, range) = ranges.range(..=pointer).next_back()?;
    (pointer < start + range.length).then(|| found(*start, range))
}

/// What is known of a pointer, if it is known.
pub fn place(pointer: usize) -> Option<Place> {
    lookup(pointer, |start, range| Place {
        kind: range.kind,
        device: range.device,
        start,
        length: range.length,
    })
}

/// The file behind a pointer, the pointer's place in it, and the file's length.
pub fn export(pointer: usize) -> Outcome<(i32, usize, usize)> {
    lookup(pointer, |start, range| {
        let file = range.file.as_ref()?;
        Some((file.as_raw_fd(), pointer - start, rounded(range.length)))
    })
    .flatten()
    .ok_or(Status::INVALID_VALUE)
}

/// Maps a memory file of another process; it stays the caller's to close.
pub fn import(file: i32, length: usize) -> Outcome<usize> {
    let device = context::current()?;
    // SAFETY: the caller owns the file's number; the copy made from it is ours.
    let number = unsafe { libc::dup(file) };
    if number < 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: nobody else owns the new number.
    let file = unsafe { File::from_raw_fd(number) };
    let start = map(&file, rounded(length))?;
    let range = Range {
        length,
        kind: Kind::Managed,
        device,
        file: Some(file),
    };
    locked(&RANGES).insert(start, range);
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_inside_an_allocation_is_known_and_one_past_it_is_not() {
        let _alone = crate::alone();
        let start = allocate(100, Kind::Device).unwrap();
        let inside = place(start + 99).unwrap();
        assert_eq!(
            (inside.kind, inside.start, inside.length),
            (Kind::Device, start, 100)
        );
        assert!(place(start + 100).is_none());
        free(start, Kind::Device).unwrap();
        assert!(place(start).is_none());
    }

    #[test]
    fn memory_is_given_back_once_and_as_what_it_is() {
        let _alone = crate::alone();
        let start = allocate(8, Kind::Device).unwrap();
        assert_eq!(free(start, Kind::Host), Err(Status::INVALID_VALUE));
        free(start, Kind::Device).unwrap();
        assert_eq!(free(start, Kind::Device), Err(Status::INVALID_VALUE));
        assert_eq!(free(0, Kind::Device), Ok(()));
    }

    #[test]
    fn a_device_has_an_end() {
        let _alone = crate::alone();
        let too_much = context::device_memory() + 1;
        assert_eq!(allocate(too_much, Kind::Device), Err(Status::OUT_OF_MEMORY));
    }

    #[test]
    fn memory_is_pinned_once() {
        let _alone = crate::alone();
        let bytes = vec![0u8; 3 * PAGE];
        let start = bytes.as_ptr() as usize;
        register(start, bytes.len()).unwrap();
        assert_eq!(
            register(start + 1, 4),
            Err(Status::HOST_MEMORY_ALREADY_REGISTERED)
        );
        unregister(start).unwrap();
        assert_eq!(unregister(start), Err(Status::HOST_MEMORY_NOT_REGISTERED));
    }

    #[test]
    fn what_is_imported_is_the_same_memory() {
        let _alone = crate::alone();
        let start = allocate(PAGE, Kind::Device).unwrap();
        let (file, offset, length) = export(start + 8).unwrap();
        assert_eq!(offset, 8);
        let other = import(file, length).unwrap();
        // SAFETY: both addresses are the same page, which stays mapped until it is given back.
        unsafe {
            *((start + 8) as *mut u64) = 77;
            assert_eq!(*((other + 8) as *const u64), 77);
        }
        free_quietly(other).unwrap();
        free(start, Kind::Device).unwrap();
    }
}

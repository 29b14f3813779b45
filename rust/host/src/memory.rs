//! Memory two processes share: a sealed memfd, mapped.
//!
//! Anonymous, so nothing is left behind however its processes end. Pages are reserved when it is
//! made, and its size can never change, so touching it never fails. The peer may change any byte at
//! any time: this module hands out copies and atomics, never references to plain bytes, and must
//! not know what the bytes mean.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use ferrocomm_core::error::{Error, ErrorKind, Result};

use crate::budget::{Budget, shortage};
use crate::sync::{AtomicU32, AtomicU64};

/// Seals that fix the size.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A shared mapping; unmapped when dropped.
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and lives as long as it; every access goes through
// atomics or through copies of raw bytes, from whichever thread.
unsafe impl Send for Memory {}
// SAFETY: as above; the copies of two threads may interleave, as those of two processes may.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes memory of `bytes` bytes, all zero, within `budget`, and the descriptor through which a
    /// peer maps it. The descriptor may be dropped once the peer has it.
    ///
    /// # Errors
    /// `Resources` when memory or descriptors run short.
    pub(crate) fn create(bytes: usize, budget: &Budget) -> Result<(Self, OwnedFd)> {
        budget.check(bytes as u64)?;
        let fd = memfd()
            .map_err(|error| shortage(bytes as u64).got(format_args!("memfd_create: {error}")))?;
        reserve(fd.as_fd(), bytes)
            .map_err(|error| shortage(bytes as u64).got(format_args!("reserving it: {error}")))?;
        let start = map(fd.as_fd(), bytes)
            .map_err(|error| shortage(bytes as u64).got(format_args!("mapping it: {error}")))?;
        Ok((Self { start, bytes }, fd))
    }

    /// Maps memory another process made.
    ///
    /// # Errors
    /// `Transport` when it is not memory this engine makes: its size can change, its pages are not
    /// reserved, or it is not within `at_least..=at_most` bytes. `Resources` when mapping fails.
    pub(crate) fn open(fd: &OwnedFd, at_least: usize, at_most: usize) -> Result<Self> {
        let bytes = trusted_size(fd.as_fd())?;
        if !(at_least..=at_most).contains(&bytes) {
            return Err(stranger("shared memory of a wrong size")
                .got(format_args!("{bytes} bytes"))
                .expected(format_args!("{at_least} to {at_most} bytes")));
        }
        let start = map(fd.as_fd(), bytes)
            .map_err(|error| shortage(bytes as u64).got(format_args!("mapping it: {error}")))?;
        Ok(Self { start, bytes })
    }

    /// Gives its pages back, though others may have it mapped; `fd` is its descriptor. Whoever reads
    /// it from now on reads zeros.
    ///
    /// # Errors
    /// Those of `fallocate`.
    pub(crate) fn discard(&self, fd: &OwnedFd) -> io::Result<()> {
        let length = libc::off_t::try_from(self.bytes).map_err(io::Error::other)?;
        // SAFETY: a plain system call on an open descriptor; no memory is passed.
        checked(unsafe {
            libc::fallocate(
                fd.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                0,
                length,
            )
        })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Copies `from` to `offset`.
    ///
    /// # Panics
    /// When it does not fit; offsets are this process's own, never a peer's.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: `at` checked that the target lies in the mapping, which is writable; `from` is
        // memory of this process alone and does not overlap it. The peer may read these bytes
        // meanwhile; it gets any mixture of old and new ones, which it must expect of shared memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) }
    }

    /// Copies from `offset` into `into`.
    ///
    /// # Panics
    /// When it lies outside; offsets are this process's own, never a peer's.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `at` checked that the source lies in the mapping, which is readable; `into` is
        // memory of this process alone and does not overlap it. Should the peer write these bytes
        // meanwhile, `into` gets any mixture; every mixture of bytes is valid.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
    }

    /// Writes words at `offset`, a multiple of 8, where nobody reads or writes meanwhile.
    ///
    /// # Panics
    /// When they lie outside or are not aligned.
    #[inline(always)]
    pub(crate) fn put<const N: usize>(&self, offset: usize, words: &[u64; N]) {
        let place = self.at(offset, size_of_val(words)).cast::<[u64; N]>();
        assert!(place.is_aligned(), "words are aligned");
        // SAFETY: aligned, inside the mapping, and this process alone uses it now, as the users of
        // the memory agree on.
        unsafe { place.write(*words) }
    }

    /// The address of `len` bytes at `offset`, all of them inside the mapping and valid as long as
    /// it. Peers may read and write them at any time that the users of the memory agree on.
    ///
    /// # Panics
    /// When they lie outside.
    #[inline(always)]
    pub(crate) fn pointer(&self, offset: usize, len: usize) -> *mut u8 {
        self.at(offset, len).as_ptr()
    }

    /// The word at `offset`, a multiple of 8.
    ///
    /// # Panics
    /// When it lies outside or is not aligned.
    #[inline(always)]
    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        // A mapping starts with a page.
        let fits = offset.is_multiple_of(size_of::<u64>()) && offset < self.bytes;
        assert!(fits, "a word is aligned and inside its shared memory");
        // SAFETY: aligned, inside the mapping, which has whole pages and outlives the borrow of
        // `self`; both processes access words with atomics alone, and every bit pattern is valid.
        unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// The word at `offset`, a multiple of 4.
    ///
    /// # Panics
    /// When it lies outside or is not aligned.
    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        let word = self.at(offset, size_of::<AtomicU32>()).cast::<AtomicU32>();
        assert!(word.is_aligned(), "a word is aligned");
        // SAFETY: as in `atomic_u64`.
        unsafe { word.as_ref() }
    }

    /// The address of `len` bytes at `offset`, all of them inside.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        assert!(inside, "an access stays inside its shared memory");
        // SAFETY: `offset` is at most `self.bytes`, the length of the mapping at `start`.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and borrowed by nobody any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn memfd() -> io::Result<OwnedFd> {
    // SAFETY: the name is a nul-terminated constant; the call touches no other memory.
    let fd = unsafe {
        libc::memfd_create(
            c"ferrocomm".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    checked(fd)?;
    // SAFETY: just opened, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the file its size, its pages and its seals.
fn reserve(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: plain system calls on an open descriptor; no memory is passed.
    unsafe {
        checked(libc::ftruncate(fd.as_raw_fd(), length))?;
        while let Err(error) = checked(libc::fallocate(fd.as_raw_fd(), 0, 0, length)) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
    }
    Ok(())
}

/// The size of a memfd whose size is sealed and whose pages are reserved.
fn trusted_size(fd: BorrowedFd<'_>) -> Result<usize> {
    // SAFETY: a plain system call on an open descriptor; no memory is passed.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals == -1 || seals & SEALS != SEALS {
        return Err(stranger("shared memory whose size can change"));
    }
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is room for one `stat`, which the call fills when it succeeds.
    let status = unsafe {
        checked(libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()))
            .map_err(|error| stranger("shared memory that cannot be read").got(error))?;
        status.assume_init()
    };
    // A hole would be filled on first touch, beyond any budget, by a signal when memory is short.
    if status.st_blocks.saturating_mul(512) < status.st_size {
        return Err(stranger("shared memory that is not reserved"));
    }
    usize::try_from(status.st_size)
        .map_err(|_| stranger("shared memory of a wrong size").got(status.st_size))
}

fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address the kernel picks; `fd` is open, and stays usable.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn stranger(what: &'static str) -> Error {
    Error::new(ErrorKind::Transport, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn create(bytes: usize) -> (Memory, OwnedFd) {
        Memory::create(bytes, &Budget::of_machine()).unwrap()
    }

    #[test]
    fn both_mappings_show_the_same_bytes() {
        let (one, fd) = create(8192);
        let other = Memory::open(&fd, 4096, 8192).unwrap();
        drop(fd);
        one.write(4095, b"across");
        let mut bytes = [0; 6];
        other.read(4095, &mut bytes);
        assert_eq!(&bytes, b"across");
        other.atomic_u64(64).store(7, Ordering::Release);
        assert_eq!(one.atomic_u64(64).load(Ordering::Acquire), 7);
        assert_eq!((one.len(), other.len()), (8192, 8192));
    }

    #[test]
    fn the_size_can_never_change() {
        let (_memory, fd) = create(8192);
        for length in [0, 1 << 20] {
            // SAFETY: a plain system call on an open descriptor.
            let result = unsafe { libc::ftruncate(fd.as_raw_fd(), length) };
            assert_eq!(result, -1);
        }
    }

    #[test]
    fn discarded_pages_are_given_back_while_others_have_them_mapped() {
        let (memory, fd) = create(1 << 20);
        let other = Memory::open(&fd, 0, 1 << 20).unwrap();
        memory.write(0, b"x");
        memory.discard(&fd).unwrap();
        let file = std::fs::File::from(fd);
        assert_eq!(
            std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()),
            0
        );
        let mut byte = [1];
        other.read(0, &mut byte);
        assert_eq!(byte, [0]);
    }

    #[test]
    fn memory_with_an_open_end_is_refused() {
        let fd = memfd().unwrap();
        // SAFETY: a plain system call on an open descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 8192) }, 0);
        let refused = |fd: &OwnedFd| Memory::open(fd, 0, 1 << 20).err().unwrap().to_string();
        assert!(refused(&fd).contains("size can change"));
        // SAFETY: a plain system call on an open descriptor.
        let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
        assert_eq!(sealed, 0);
        assert!(refused(&fd).contains("not reserved"));
        let (_memory, fd) = create(8192);
        assert!(Memory::open(&fd, 0, 4096).is_err());
        assert!(Memory::open(&fd, 16384, 1 << 20).is_err());
    }

    #[test]
    fn a_shortage_is_an_error_before_anything_is_reserved() {
        let error = Memory::create(1 << 20, &Budget::Fixed(1000)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Resources);
    }

    #[test]
    #[should_panic(expected = "stays inside")]
    fn an_access_outside_panics() {
        create(4096).0.write(4091, b"across");
    }
}

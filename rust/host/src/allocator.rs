//! Memory for tensors that the other ranks of a machine can read where it lies: blocks, carved out of
//! shared segments.
//!
//! A segment is reserved as a whole, within the budget, so that shortage is an error and using a block
//! never fails; it is given back when its last block is freed. Must not know who reads the blocks.

use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrocomm_core::error::{Error, ErrorKind, Result};

use crate::budget::Budget;
use crate::forks;
use crate::segments::{HEADER, Segment};

/// Blocks begin at multiples of this, and are as long as one.
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Segments are so long at least. One that is empty and no longer is kept for the next block.
const SMALLEST: usize = 2 << 20;
/// Segments are no longer than this for the sake of blocks to come.
const LARGEST: usize = 1 << 30;
/// A segment for blocks to come is as long as this part of what there is: their number stays small.
const SHARE: usize = 4;

/// A segment and how it is cut.
struct Carved {
    segment: Segment,
    /// length by offset; neighbours are one
    free: BTreeMap<usize, usize>,
    /// length by offset
    used: BTreeMap<usize, usize>,
}

impl Carved {
    fn new(segment: Segment) -> Self {
        let free = BTreeMap::from([(HEADER, segment.len() - HEADER)]);
        Self {
            segment,
            free,
            used: BTreeMap::new(),
        }
    }

    /// The offset of a new block.
    fn carve(&mut self, bytes: usize) -> Option<usize> {
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.free.remove(&offset);
        if length > bytes {
            self.free.insert(offset + bytes, length - bytes);
        }
        self.used.insert(offset, bytes);
        Some(offset)
    }

    /// Whether there was a block at `offset`.
    fn release(&mut self, offset: usize) -> bool {
        let Some(mut length) = self.used.remove(&offset) else {
            return false;
        };
        let mut start = offset;
        if let Some(behind) = self.free.remove(&(offset + length)) {
            length += behind;
        }
        if let Some((&before, &bytes)) = self.free.range(..offset).next_back()
            && before + bytes == offset
        {
            start = before;
            length += bytes;
        }
        self.free.insert(start, length);
        true
    }
}

/// The blocks of a process.
pub(crate) struct Allocator {
    /// by the address at which they start
    segments: Mutex<BTreeMap<usize, Carved>>,
    budget: Budget,
    generation: u32,
}

impl Allocator {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            segments: Mutex::new(BTreeMap::new()),
            budget,
            generation: forks::generation(),
        }
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<usize, Carved>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `bytes` bytes.
    ///
    /// # Errors
    /// `Resources` when memory or descriptors run short.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        let bytes = bytes.max(1);
        let rounded = bytes
            .checked_next_multiple_of(LINE)
            .filter(|rounded| isize::try_from(*rounded).is_ok_and(|_| *rounded < 1 << 56))
            .ok_or_else(|| shortage(bytes).got("more than any machine has"))?;
        let mut segments = self.segments();
        for (start, carved) in segments.iter_mut() {
            if let Some(offset) = carved.carve(rounded) {
                return at(start + offset);
            }
        }
        let reserved: usize = segments.values().map(|carved| carved.segment.len()).sum();
        let mut carved = Carved::new(self.reserve(rounded, reserved)?);
        let start = carved.segment.start();
        let offset = carved.carve(rounded);
        segments.insert(start, carved);
        at(start + offset.ok_or_else(|| shortage(bytes))?)
    }

    /// A segment with room for `bytes` bytes where there are `reserved` already.
    fn reserve(&self, bytes: usize, reserved: usize) -> Result<Segment> {
        let needed = (bytes + HEADER).next_multiple_of(PAGE);
        let wanted = (reserved / SHARE / PAGE * PAGE).clamp(SMALLEST, LARGEST);
        let ample = Segment::create(needed.max(wanted), &self.budget);
        match ample {
            Err(_) if wanted > needed => Segment::create(needed, &self.budget),
            ample => ample,
        }
        .map_err(|error| match error.kind() {
            ErrorKind::Resources => shortage(bytes).got(error),
            _ => error,
        })
    }

    /// Frees the block at `address`.
    ///
    /// # Errors
    /// `InvalidArgument` when no block begins there, `Forked` when it may be one of the parent's.
    pub(crate) fn release(&self, address: usize) -> Result<()> {
        let mut segments = self.segments();
        let Some((&start, carved)) = segments.range_mut(..=address).next_back() else {
            return Err(unknown(address, self.generation));
        };
        if !carved.release(address - start) {
            return Err(unknown(address, self.generation));
        }
        let is_empty = carved.used.is_empty();
        // The memory goes back without the lock.
        let gone = is_empty
            .then(|| Self::given_back(&mut segments, start))
            .flatten();
        drop(segments);
        drop(gone);
        Ok(())
    }

    /// Takes the empty segment at `start`, unless it is the one that is kept.
    fn given_back(segments: &mut BTreeMap<usize, Carved>, start: usize) -> Option<Carved> {
        let kept = |carved: &Carved| carved.used.is_empty() && carved.segment.len() <= SMALLEST;
        let is_kept = segments.get(&start).is_some_and(kept)
            && segments.values().filter(|carved| kept(carved)).count() == 1;
        if is_kept {
            None
        } else {
            segments.remove(&start)
        }
    }

    #[cfg(test)]
    fn reserved(&self) -> usize {
        let segments = self.segments();
        segments.values().map(|carved| carved.segment.len()).sum()
    }
}

fn at(address: usize) -> Result<NonNull<u8>> {
    NonNull::new(ptr::with_exposed_provenance_mut(address))
        .ok_or_else(|| Error::new(ErrorKind::State, "a block lies at address 0"))
}

fn shortage(bytes: usize) -> Error {
    Error::new(
        ErrorKind::Resources,
        "not enough memory for a block of shared memory",
    )
    .expected(format_args!("{bytes} bytes"))
    .remedy(
        "free memory, raise the memory limit of the container or control group, or use ordinary \
         memory, which every operation takes",
    )
}

fn unknown(address: usize, generation: u32) -> Error {
    let got = format_args!("{address:#x}").to_string();
    if generation > 0 {
        return Error::new(
            ErrorKind::Forked,
            "a forked child cannot free a block of its parent",
        )
        .got(got)
        .remedy("leave it; it goes when the child ends");
    }
    Error::new(
        ErrorKind::InvalidArgument,
        "no block of shared memory begins at this address",
    )
    .got(got)
    .expected("an address that was allocated and not freed since")
}

/// The allocator of this process; a forked child gets one of its own and leaves the blocks of its
/// parent alone.
fn process() -> &'static Allocator {
    static PROCESS: AtomicPtr<Allocator> = AtomicPtr::new(ptr::null_mut());
    let generation = forks::generation();
    loop {
        let current = PROCESS.load(Ordering::Acquire);
        // SAFETY: NULL, or a box that was given up below and is never dropped.
        if let Some(allocator) = unsafe { current.as_ref() }
            && allocator.generation == generation
        {
            return allocator;
        }
        let new = Box::into_raw(Box::new(Allocator::new(Budget::of_machine())));
        let exchanged = PROCESS.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_err() {
            // SAFETY: made above, and seen by nobody.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// `bytes` bytes of memory that the other ranks of this machine can read where it lies, aligned to 64
/// bytes, its content undefined; none is a block too. The caller gives it back with `release`.
///
/// # Errors
/// `Resources` when memory or descriptors run short.
pub fn allocate(bytes: usize) -> Result<NonNull<u8>> {
    process().allocate(bytes)
}

/// Gives back the block that `allocate` returned as `address`.
///
/// # Errors
/// `InvalidArgument` when there is no such block; `Forked` when it may be one of the parent's.
pub fn release(address: usize) -> Result<()> {
    process().release(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator() -> Allocator {
        Allocator::new(Budget::of_machine())
    }

    fn address(block: NonNull<u8>) -> usize {
        block.as_ptr() as usize
    }

    #[test]
    fn blocks_are_aligned_apart_and_usable_whatever_their_length() {
        let allocator = allocator();
        let lengths = [0, 1, 63, 64, 65, 4096, 100_000, SMALLEST, 3 * SMALLEST + 1];
        let blocks: Vec<_> = lengths
            .into_iter()
            .map(|bytes| (address(allocator.allocate(bytes).unwrap()), bytes))
            .collect();
        for (index, (start, bytes)) in blocks.iter().enumerate() {
            assert_eq!(start % LINE, 0);
            // SAFETY: the block is this test's and so long.
            unsafe { ptr::write_bytes(*start as *mut u8, index as u8 + 1, *bytes) }
        }
        for (index, (start, bytes)) in blocks.iter().enumerate() {
            // SAFETY: as above.
            let block = unsafe { std::slice::from_raw_parts(*start as *const u8, *bytes) };
            assert!(block.iter().all(|byte| *byte == index as u8 + 1));
        }
        for (start, _) in blocks {
            allocator.release(start).unwrap();
        }
        assert!(allocator.reserved() <= SMALLEST);
    }

    #[test]
    fn what_is_freed_is_used_again_and_neighbours_become_one() {
        let allocator = allocator();
        let third = (SMALLEST - HEADER) / 3 / LINE * LINE;
        let blocks: Vec<_> = (0..3)
            .map(|_| address(allocator.allocate(third).unwrap()))
            .collect();
        for index in [0, 2, 1] {
            allocator.release(blocks[index]).unwrap();
        }
        let whole = allocator.allocate(SMALLEST - HEADER).unwrap();
        assert_eq!(address(whole), blocks[0]);
        assert_eq!(allocator.reserved(), SMALLEST);
    }

    #[test]
    fn long_segments_go_when_their_last_block_does() {
        let allocator = allocator();
        let blocks = [(); 2].map(|()| allocator.allocate(8 << 20).unwrap());
        assert!(allocator.reserved() >= 16 << 20);
        for block in blocks {
            allocator.release(address(block)).unwrap();
        }
        assert_eq!(allocator.reserved(), 0);
    }

    #[test]
    fn a_shortage_is_an_error_and_less_is_still_to_be_had() {
        let allocator = Allocator::new(Budget::Fixed(1 << 20));
        let error = allocator.allocate(2 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Resources);
        assert!(error.to_string().contains("2097152 bytes"), "{error}");
        assert!(allocator.allocate(usize::MAX).is_err());
        assert!(allocator.allocate(isize::MAX as usize).is_err());
        // Ample segments do not fit either, a tight one does.
        allocator.allocate(1000).unwrap();
        assert_eq!(allocator.reserved(), PAGE);
    }

    #[test]
    fn a_block_is_freed_once_and_by_its_start() {
        let allocator = allocator();
        let block = address(allocator.allocate(1000).unwrap());
        let refused = |address| allocator.release(address).unwrap_err().kind();
        assert_eq!(refused(block + LINE), ErrorKind::InvalidArgument);
        assert_eq!(refused(8), ErrorKind::InvalidArgument);
        allocator.release(block).unwrap();
        assert_eq!(refused(block), ErrorKind::InvalidArgument);
    }

    #[test]
    fn threads_share_an_allocator() {
        let allocator = allocator();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let allocator = &allocator;
                scope.spawn(move || {
                    for round in 0..500_usize {
                        let bytes = 1 + round * 37 % 5000;
                        let block = allocator.allocate(bytes).unwrap();
                        // SAFETY: the block is this thread's and so long.
                        let same = unsafe {
                            ptr::write_bytes(block.as_ptr(), thread, bytes);
                            std::slice::from_raw_parts(block.as_ptr(), bytes)
                                .iter()
                                .all(|byte| *byte == thread)
                        };
                        assert!(same);
                        allocator.release(address(block)).unwrap();
                    }
                });
            }
        });
        assert!(allocator.reserved() <= SMALLEST);
    }
}

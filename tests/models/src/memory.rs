//! Shared memory as the checker sees it: words, each an atomic, and plain bytes, of which it tells
//! when two threads use the same one at once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use loom::cell::UnsafeCell;

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU32, AtomicU64};

/// The part of a shared memory that a model uses: words, plain bytes, and places whose address is
/// asked for. All are zero at first. They come into being when they are first named, which must be
/// before threads share them; the checker complains if it is later.
pub(crate) struct Memory {
    words64: Named<AtomicU64>,
    words32: Named<AtomicU32>,
    places: Named<Place>,
    start: usize,
    bytes: Vec<UnsafeCell<u8>>,
}

/// What lies where an address leads: one number, however long the place is.
pub(crate) type Place = UnsafeCell<u64>;

/// Objects by offset.
struct Named<T>(Mutex<BTreeMap<usize, Box<T>>>);

impl<T> Named<T> {
    fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn get(&self, offset: usize, new: impl FnOnce() -> T) -> &T {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let object: *const T =
            &raw const **objects.entry(offset).or_insert_with(|| Box::new(new()));
        // SAFETY: a box stays where it is, and none is taken out before `self` ends.
        unsafe { &*object }
    }
}

// SAFETY: words are atomics. That no byte is used by two threads at once is what the models check:
// the checker's cells report it.
unsafe impl Sync for Memory {}
// SAFETY: it owns its words and bytes.
unsafe impl Send for Memory {}

impl Memory {
    /// With plain bytes at these offsets.
    pub(crate) fn new(bytes: Range<usize>) -> Self {
        Self {
            words64: Named::new(),
            words32: Named::new(),
            places: Named::new(),
            start: bytes.start,
            bytes: bytes.map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    pub(crate) fn create(_: usize, _: &Budget) -> Result<(Self, OwnedFd)> {
        let nothing = std::fs::File::open("/dev/null");
        let fd = nothing.map_err(|error| Error::new(ErrorKind::Resources, error.to_string()))?;
        Ok((Self::new(0..0), fd.into()))
    }

    pub(crate) fn open(_: &OwnedFd, _: usize, _: usize) -> Result<Self> {
        let what = "the threads of a model share the memory itself";
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        self.words64.get(offset, || AtomicU64::new(0))
    }

    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        self.words32.get(offset, || AtomicU32::new(0))
    }

    /// The address of a `Place`.
    pub(crate) fn pointer(&self, offset: usize, _: usize) -> *mut u8 {
        let place: *const Place = self.places.get(offset, || UnsafeCell::new(0));
        place.cast_mut().cast()
    }

    /// Puts the first word into the place at `offset`.
    pub(crate) fn put(&self, offset: usize, words: &[u64]) {
        let place: *const Place = self.pointer(offset, 0).cast_const().cast();
        // SAFETY: the memory's places live as long as it.
        unsafe { &*place }.with_mut(|place| {
            // SAFETY: the checker has just found that no other thread uses this place now.
            unsafe { *place = words[0] };
        });
    }

    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        for (at, byte) in (offset..).zip(from) {
            self.bytes[at - self.start].with_mut(|place| {
                // SAFETY: the checker has just found that no other thread uses this byte now.
                unsafe { *place = *byte };
            });
        }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            self.bytes[at - self.start].with(|place| {
                // SAFETY: the checker has just found that no other thread writes this byte now.
                *byte = unsafe { *place };
            });
        }
    }
}

//! Shared memory as the checker sees it: words, each an atomic, and plain bytes, of which it tells
//! when two threads use the same one at once.

use std::ops::Range;

use loom::cell::UnsafeCell;

use crate::sync::{AtomicU32, AtomicU64};

/// The part of a shared memory that a model uses. The offsets are those of the shipping layout or
/// any others; an access outside of them panics.
pub(crate) struct Memory {
    words64: Vec<(usize, AtomicU64)>,
    words32: Vec<(usize, AtomicU32)>,
    start: usize,
    bytes: Vec<UnsafeCell<u8>>,
}

// SAFETY: words are atomics. That no byte is used by two threads at once is what the models check:
// the checker's cells report it.
unsafe impl Sync for Memory {}
// SAFETY: it owns its words and bytes.
unsafe impl Send for Memory {}

impl Memory {
    /// All zero: words of 64 and of 32 bits at these offsets, and bytes in between.
    pub(crate) fn new(words64: &[usize], words32: &[usize], bytes: Range<usize>) -> Self {
        Self {
            words64: words64.iter().map(|at| (*at, AtomicU64::new(0))).collect(),
            words32: words32.iter().map(|at| (*at, AtomicU32::new(0))).collect(),
            start: bytes.start,
            bytes: bytes.map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        find(&self.words64, offset)
    }

    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        find(&self.words32, offset)
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

fn find<T>(words: &[(usize, T)], offset: usize) -> &T {
    let found = words.iter().find(|(at, _)| *at == offset);
    &found.expect("a word the model has").1
}

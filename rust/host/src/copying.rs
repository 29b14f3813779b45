//! How bytes are put where another processor reads them.
//!
//! On some processors a line that another one has just written is slow to fetch, and one that lies in
//! memory is not: there, long payloads are better stored past the caches. Must not know whose bytes
//! they are, or which processor this is.

/// Copies `bytes` bytes to `to`, for another processor to read; past the caches when they are
/// `past_caches_from` or more.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes` bytes, and they do not overlap.
pub(crate) unsafe fn copy_out(from: *const u8, to: *mut u8, bytes: usize, past_caches_from: usize) {
    if bytes >= past_caches_from {
        // SAFETY: by the caller's promise.
        unsafe { store_past_caches(from, to, bytes) }
    } else {
        // SAFETY: by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
    }
}

/// # Safety
/// As `copy_out`.
#[cfg(target_arch = "x86_64")]
unsafe fn store_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const STEP: usize = size_of::<__m128i>();
    const LINE: usize = 4 * STEP;
    // Until `to` is at the start of a line.
    let head = to.align_offset(LINE).min(bytes);
    // SAFETY: every access lies within the `bytes` bytes that the caller promises; stores are to
    // multiples of a line, and SSE2 is part of the architecture. The fence makes the stores visible
    // before whatever is stored next.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let mut at = head;
        while at + LINE <= bytes {
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let line = [
                _mm_loadu_si128(source),
                _mm_loadu_si128(source.add(1)),
                _mm_loadu_si128(source.add(2)),
                _mm_loadu_si128(source.add(3)),
            ];
            for (index, part) in line.into_iter().enumerate() {
                _mm_stream_si128(target.add(index), part);
            }
            at += LINE;
        }
        std::ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes - at);
        _mm_sfence();
    }
}

/// # Safety
/// As `copy_out`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_alignment() {
        let from: Vec<u8> = (0..5000_u32).map(|byte| byte as u8).collect();
        for (skip, offset, bytes) in [(0, 0, 4096), (1, 3, 4097), (7, 61, 2049), (3, 64, 2500)] {
            let mut to = vec![0_u8; 5000];
            // SAFETY: both are long enough.
            unsafe {
                store_past_caches(from.as_ptr().add(skip), to.as_mut_ptr().add(offset), bytes)
            }
            assert_eq!(to[offset..offset + bytes], from[skip..skip + bytes]);
            assert!(to[..offset].iter().all(|byte| *byte == 0));
            assert!(to[offset + bytes..].iter().all(|byte| *byte == 0));
        }
    }
}

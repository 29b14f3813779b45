//! Memory: allocation, what a pointer is, copies and fills.

use std::ffi::{c_int, c_uint, c_ushort, c_void};
use std::sync::Arc;

use super::{driver_api, put, put_wanted};
use crate::capture;
use crate::context;
use crate::memory::{self, Kind};
use crate::status::{Outcome, Status};
use crate::stream::{Stream, Work, forbid_on_stream};

/// Copies when it runs. The ranges may overlap, as between a buffer and itself.
fn copying(to: usize, from: usize, length: usize) -> Work {
    Arc::new(move || {
        // SAFETY: the caller keeps both ranges until the operation is complete.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length) };
    })
}

fn pageable(pointer: usize) -> bool {
    memory::place(pointer).is_none()
}

/// A copy in stream order. Memory that is not pinned makes the caller wait, as with CUDA, and
/// cannot be captured.
fn copy_async(to: usize, from: usize, length: usize, stream: usize) -> Outcome {
    let stream = Stream::from_handle(stream)?;
    if length == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let waits = pageable(to) || pageable(from);
    if waits && capture::info(&stream)?.is_some() {
        capture::invalidate(&stream);
        return Err(Status::CAPTURE_UNSUPPORTED);
    }
    if waits {
        forbid_on_stream()?;
    }
    stream.enqueue(copying(to, from, length))?;
    if waits { stream.synchronize() } else { Ok(()) }
}

/// A copy that is complete when the call ends.
fn copy(to: usize, from: usize, length: usize) -> Outcome {
    forbid_on_stream()?;
    let stream = Stream::from_handle(0)?;
    if length == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(Status::INVALID_VALUE);
    }
    capture::check_unsafe_call()?;
    stream.enqueue(copying(to, from, length))?;
    stream.synchronize()
}

fn fill_async<T: Copy + Send + Sync + 'static>(
    to: usize,
    value: T,
    count: usize,
    stream: usize,
) -> Outcome {
    if to == 0 && count > 0 || !to.is_multiple_of(size_of::<T>()) {
        return Err(Status::INVALID_VALUE);
    }
    Stream::from_handle(stream)?.enqueue(Arc::new(move || {
        // SAFETY: the caller keeps the range until the operation is complete, and it is aligned.
        unsafe { std::slice::from_raw_parts_mut(to as *mut T, count) }.fill(value);
    }))
}

fn fill<T: Copy + Send + Sync + 'static>(to: usize, value: T, count: usize) -> Outcome {
    fill_async(to, value, count, 0)?;
    Stream::from_handle(0)?.synchronize()
}

/// Writes what is asked of a pointer to `out`, which is as wide as the attribute.
fn pointer_attribute(out: *mut c_void, number: c_int, pointer: usize) -> Outcome {
    let place = memory::place(pointer).ok_or(Status::INVALID_VALUE)?;
    let on_device = matches!(place.kind, Kind::Device | Kind::Managed);
    match number {
        1 => put(out.cast(), context::handle(Some(place.device))),
        2 => put(out.cast::<c_uint>(), if on_device { 2 } else { 1 }),
        3 | 4 => put(out.cast(), pointer),
        6 | 13 => put(out.cast::<c_uint>(), 1),
        7 => put(out.cast::<u64>(), place.start as u64),
        8 => put(out.cast::<c_uint>(), u32::from(place.kind == Kind::Managed)),
        9 => put(out.cast::<c_int>(), place.device),
        11 => put(out.cast(), place.start),
        12 => put(out.cast(), place.length),
        _ => {
            simgpu_common::report(
                "cuda",
                &format!("pointer attribute {number} is not simulated"),
            );
            Err(Status::NOT_SUPPORTED)
        }
    }
}

driver_api! {
    /// Memory of the current device.
    fn cuMemAlloc_v2(pointer: *mut usize, length: usize) {
        put(pointer, memory::allocate(length, Kind::Device)?)
    }

    /// Memory of device and host.
    fn cuMemAllocManaged(pointer: *mut usize, length: usize, _flags: c_uint) {
        put(pointer, memory::allocate(length, Kind::Managed)?)
    }

    /// Gives device memory back.
    fn cuMemFree_v2(pointer: usize) { memory::free(pointer, Kind::Device) }

    /// Device memory, as if the stream had allocated it.
    fn cuMemAllocAsync(pointer: *mut usize, length: usize, stream: usize) {
        let stream = Stream::from_handle(stream)?;
        if capture::info(&stream)?.is_some() {
            simgpu_common::report("cuda", "cuMemAllocAsync is not simulated in a capture");
            return Err(Status::NOT_SUPPORTED);
        }
        if length == 0 {
            return Err(Status::INVALID_VALUE);
        }
        put(pointer, memory::allocate_quietly(length, Kind::Device, stream.device)?)
    }

    /// Gives device memory back when the stream has come so far.
    fn cuMemFreeAsync(pointer: usize, stream: usize) {
        let stream = Stream::from_handle(stream)?;
        let known = memory::place(pointer).is_some_and(|place| place.start == pointer);
        if !known {
            return Err(Status::INVALID_VALUE);
        }
        stream.enqueue(Arc::new(move || {
            if memory::free_quietly(pointer).is_err() {
                simgpu_common::report("cuda", "cuMemFreeAsync of memory that is already free");
                std::process::abort();
            }
        }))
    }

    /// Pinned memory.
    fn cuMemHostAlloc(pointer: *mut *mut c_void, length: usize, _flags: c_uint) {
        put(pointer, memory::allocate(length, Kind::Host)? as *mut c_void)
    }

    /// Pinned memory.
    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, length: usize) {
        put(pointer, memory::allocate(length, Kind::Host)? as *mut c_void)
    }

    /// Gives pinned memory back.
    fn cuMemFreeHost(pointer: *mut c_void) { memory::free(pointer as usize, Kind::Host) }

    /// Pins memory.
    fn cuMemHostRegister_v2(pointer: *mut c_void, length: usize, _flags: c_uint) {
        memory::register(pointer as usize, length)
    }

    /// Unpins memory.
    fn cuMemHostUnregister(pointer: *mut c_void) { memory::unregister(pointer as usize) }

    /// The address under which a device reaches pinned memory.
    fn cuMemHostGetDevicePointer_v2(out: *mut usize, pointer: *mut c_void, _flags: c_uint) {
        memory::place(pointer as usize).ok_or(Status::INVALID_VALUE)?;
        put(out, pointer as usize)
    }

    /// The allocation that a pointer is in.
    fn cuMemGetAddressRange_v2(start: *mut usize, length: *mut usize, pointer: usize) {
        let place = memory::place(pointer).ok_or(Status::NOT_FOUND)?;
        put_wanted(start, place.start);
        put_wanted(length, place.length);
        Ok(())
    }

    /// What is asked of a pointer.
    fn cuPointerGetAttribute(out: *mut c_void, number: c_int, pointer: usize) {
        context::initialized()?;
        pointer_attribute(out, number, pointer)
    }

    /// Several things asked of a pointer; what is unknown becomes zero.
    fn cuPointerGetAttributes(
        count: c_uint, numbers: *const c_int, outs: *const *mut c_void, pointer: usize,
    ) {
        context::initialized()?;
        if numbers.is_null() || outs.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        for index in 0..count as usize {
            // SAFETY: the caller passes `count` numbers and as many pointers.
            let (number, out) = unsafe { (*numbers.add(index), *outs.add(index)) };
            match pointer_attribute(out, number, pointer) {
                Err(Status::INVALID_VALUE) => put(out.cast::<c_uint>(), 0)?,
                other => other?,
            }
        }
        Ok(())
    }

    /// Copies.
    fn cuMemcpy(to: usize, from: usize, length: usize) { copy(to, from, length) }

    /// Copies to the device.
    fn cuMemcpyHtoD_v2(to: usize, from: usize, length: usize) { copy(to, from, length) }

    /// Copies to the host.
    fn cuMemcpyDtoH_v2(to: usize, from: usize, length: usize) { copy(to, from, length) }

    /// Copies on the device.
    fn cuMemcpyDtoD_v2(to: usize, from: usize, length: usize) { copy(to, from, length) }

    /// Copies in stream order.
    fn cuMemcpyAsync(to: usize, from: usize, length: usize, stream: usize) {
        copy_async(to, from, length, stream)
    }

    /// Copies to the device in stream order.
    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, length: usize, stream: usize) {
        copy_async(to, from, length, stream)
    }

    /// Copies to the host in stream order.
    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, length: usize, stream: usize) {
        copy_async(to, from, length, stream)
    }

    /// Copies on the device in stream order.
    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, length: usize, stream: usize) {
        copy_async(to, from, length, stream)
    }

    /// Fills bytes.
    fn cuMemsetD8_v2(to: usize, value: u8, count: usize) { fill(to, value, count) }

    /// Fills halves of words.
    fn cuMemsetD16_v2(to: usize, value: c_ushort, count: usize) { fill(to, value, count) }

    /// Fills words.
    fn cuMemsetD32_v2(to: usize, value: c_uint, count: usize) { fill(to, value, count) }

    /// Fills bytes in stream order.
    fn cuMemsetD8Async(to: usize, value: u8, count: usize, stream: usize) {
        fill_async(to, value, count, stream)
    }

    /// Fills halves of words in stream order.
    fn cuMemsetD16Async(to: usize, value: c_ushort, count: usize, stream: usize) {
        fill_async(to, value, count, stream)
    }

    /// Fills words in stream order.
    fn cuMemsetD32Async(to: usize, value: c_uint, count: usize, stream: usize) {
        fill_async(to, value, count, stream)
    }

    /// Copies `rows` rows of `width` bytes, whose beginnings are apart by the two pitches. Of the
    /// simulator: the runtime's two-dimensional copy.
    fn simgpuMemcpyRowsAsync(
        to: usize, to_pitch: usize, from: usize, from_pitch: usize, width: usize, rows: usize,
        stream: usize,
    ) {
        if width > to_pitch || width > from_pitch {
            return Err(Status::INVALID_VALUE);
        }
        for row in 0..rows {
            copy_async(to + row * to_pitch, from + row * from_pitch, width, stream)?;
        }
        Ok(())
    }
}

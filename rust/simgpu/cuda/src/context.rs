//! Devices, and which of them is current on a thread. Only primary contexts exist.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use simgpu_common::fault;

use crate::status::{Outcome, Status};

/// Where context handles begin; the device follows from the distance.
const CONTEXT_BASE: usize = 0x5100_0000_0000;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The stack of contexts; its top is current.
    static CONTEXTS: RefCell<Vec<Option<i32>>> = const { RefCell::new(Vec::new()) };
}

/// How many devices there are: `SIMGPU_DEVICES`, or one.
pub fn device_count() -> i32 {
    static COUNT: OnceLock<i32> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let count = fault::number("SIMGPU_DEVICES").unwrap_or(1);
        i32::try_from(count).unwrap_or(1).clamp(0, 64)
    })
}

/// Bytes that a device has: `SIMGPU_MEMORY`, or 8 GiB.
pub fn device_memory() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let bytes = fault::number("SIMGPU_MEMORY").unwrap_or(8 << 30);
        usize::try_from(bytes).unwrap_or(8 << 30)
    })
}

/// Starts the driver.
pub fn initialize() -> Outcome {
    if device_count() == 0 {
        return Err(Status::NO_DEVICE);
    }
    INITIALIZED.store(true, Ordering::Release);
    Ok(())
}

/// Refuses what comes before the driver was started.
pub fn initialized() -> Outcome {
    if INITIALIZED.load(Ordering::Acquire) {
        Ok(())
    } else {
        Err(Status::NOT_INITIALIZED)
    }
}

/// Refuses a device that does not exist.
pub fn check_device(device: i32) -> Outcome {
    initialized()?;
    if (0..device_count()).contains(&device) {
        Ok(())
    } else {
        Err(Status::INVALID_DEVICE)
    }
}

/// The device whose context is current on this thread, if one is.
pub fn current_or_none() -> Option<i32> {
    CONTEXTS.with_borrow(|stack| stack.last().copied().flatten())
}

/// The device whose context is current on this thread.
pub fn current() -> Outcome<i32> {
    initialized()?;
    current_or_none().ok_or(Status::INVALID_CONTEXT)
}

/// Makes a device's context current, or none.
pub fn set_current(device: Option<i32>) {
    CONTEXTS.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(device);
    });
}

/// Puts a context above the one that is current.
pub fn push(device: i32) {
    CONTEXTS.with_borrow_mut(|stack| stack.push(Some(device)));
}

/// Takes the current context away.
pub fn pop() -> Outcome<i32> {
    CONTEXTS
        .with_borrow_mut(|stack| stack.pop())
        .flatten()
        .ok_or(Status::INVALID_CONTEXT)
}

/// The handle of a device's primary context.
pub fn handle(device: Option<i32>) -> usize {
    match device {
        Some(device) => CONTEXT_BASE + ((device.unsigned_abs() as usize) << 12),
        None => 0,
    }
}

/// The device of a context's handle; NULL is no context.
pub fn device_of(context: usize) -> Outcome<Option<i32>> {
    if context == 0 {
        return Ok(None);
    }
    let index = context.wrapping_sub(CONTEXT_BASE) >> 12;
    match i32::try_from(index) {
        Ok(device) if device < device_count() => Ok(Some(device)),
        _ => Err(Status::INVALID_CONTEXT),
    }
}

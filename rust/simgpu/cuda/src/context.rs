//! Devices, and which of them is current on a thread. Only primary contexts exist.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use simgpu_common::fault;

use crate::status::{Outcome, Status};

/// Where context handles begin; the device follows from the distance.
const CONTEXT_BASE: usize = 0x5100_0000_0000;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// How many contexts a thread may stack.
const DEPTH: usize = 16;

/// A thread's stack of contexts, whose top is current. It has no destructor, because programs call
/// the driver from destructors of their own that run later than those of threads.
#[derive(Clone, Copy)]
struct Contexts {
    stack: [Option<i32>; DEPTH],
    depth: usize,
}

thread_local! {
    static CONTEXTS: Cell<Contexts> =
        const { Cell::new(Contexts { stack: [None; DEPTH], depth: 0 }) };
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
    let contexts = CONTEXTS.get();
    contexts
        .depth
        .checked_sub(1)
        .and_then(|top| contexts.stack[top])
}

/// The device whose context is current on this thread.
pub fn current() -> Outcome<i32> {
    initialized()?;
    current_or_none().ok_or(Status::INVALID_CONTEXT)
}

/// Makes a device's context current, or none.
pub fn set_current(device: Option<i32>) {
    let mut contexts = CONTEXTS.get();
    contexts.depth = contexts.depth.max(1);
    contexts.stack[contexts.depth - 1] = device;
    CONTEXTS.set(contexts);
}

/// Puts a context above the one that is current.
pub fn push(device: i32) -> Outcome {
    let mut contexts = CONTEXTS.get();
    *contexts
        .stack
        .get_mut(contexts.depth)
        .ok_or(Status::INVALID_VALUE)? = Some(device);
    contexts.depth += 1;
    CONTEXTS.set(contexts);
    Ok(())
}

/// Takes the current context away.
pub fn pop() -> Outcome<i32> {
    let mut contexts = CONTEXTS.get();
    let device = current_or_none().ok_or(Status::INVALID_CONTEXT)?;
    contexts.depth -= 1;
    CONTEXTS.set(contexts);
    Ok(device)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_stack() {
        let _alone = crate::alone();
        push(0).unwrap();
        set_current(None);
        assert_eq!(current(), Err(Status::INVALID_CONTEXT));
        assert_eq!(pop(), Err(Status::INVALID_CONTEXT));
        set_current(Some(0));
        assert_eq!(pop(), Ok(0));
        assert_eq!(current(), Ok(0));
    }

    #[test]
    fn a_context_handle_leads_to_its_device_and_others_to_none() {
        let _alone = crate::alone();
        assert_eq!(device_of(handle(Some(0))), Ok(Some(0)));
        assert_eq!(device_of(0), Ok(None));
        assert_eq!(device_of(handle(Some(63))), Err(Status::INVALID_CONTEXT));
        assert_eq!(device_of(12), Err(Status::INVALID_CONTEXT));
    }
}

//! Functions that no driver has: memory files for the simulated NCCL, and operations with which
//! tests hold a stream up.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{driver_api, put};
use crate::locked;
use crate::memory;
use crate::status::Status;
use crate::stream::Stream;

/// Gates by number; true is open.
static GATES: Mutex<Option<HashMap<u64, bool>>> = Mutex::new(None);
static GATE_MOVED: Condvar = Condvar::new();

fn wait_for_gate(gate: u64) {
    let mut gates = locked(&GATES);
    while gates.as_ref().and_then(|all| all.get(&gate)) != Some(&true) {
        gates = GATE_MOVED
            .wait(gates)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

fn set_gate(gate: u64, open: bool) {
    locked(&GATES).get_or_insert_default().insert(gate, open);
    GATE_MOVED.notify_all();
}

driver_api! {
    /// The memory file behind a pointer, the pointer's place in it, and the file's length.
    fn simgpuMemExport(
        pointer: *const c_void, file: *mut c_int, offset: *mut usize, length: *mut usize,
    ) {
        let (number, place, whole) = memory::export(pointer as usize)?;
        put(file, number)?;
        put(offset, place)?;
        put(length, whole)
    }

    /// Maps a memory file as memory that devices reach.
    fn simgpuMemImport(file: c_int, length: usize, pointer: *mut *mut c_void) {
        if pointer.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        put(pointer, memory::import(file, length)? as *mut c_void)
    }

    /// Gives memory back at once, without waiting for the device.
    fn simgpuMemForget(pointer: *mut c_void) { memory::free_quietly(pointer as usize) }

    /// An operation that takes some milliseconds: a slow kernel.
    fn simgpuStreamSleep(stream: usize, milliseconds: c_uint) {
        let time = Duration::from_millis(u64::from(milliseconds));
        Stream::from_handle(stream)?.enqueue(Arc::new(move || thread::sleep(time)))
    }

    /// An operation that lasts until the gate is opened: a kernel that spins.
    fn simgpuStreamGate(stream: usize, gate: u64) {
        Stream::from_handle(stream)?.enqueue(Arc::new(move || wait_for_gate(gate)))
    }

    /// Opens a gate, for good or until it is closed.
    fn simgpuGateOpen(gate: u64) {
        set_gate(gate, true);
        Ok(())
    }

    /// Closes a gate.
    fn simgpuGateClose(gate: u64) {
        set_gate(gate, false);
        Ok(())
    }
}

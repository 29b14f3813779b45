//! Memory, registration, windows and one-sided operations.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::{nccl_api, not_null, put};
use crate::comm::Comm;
use crate::dtype::DataType;
use crate::failure::{Code, Failure, Outcome};
use crate::group;
use crate::launch::{Action, check_buffer};
use crate::registered;
use crate::window;

/// For tests: how many registrations cover a range of memory; with no bytes, how many there are.
#[unsafe(no_mangle)]
pub extern "C" fn simgpuNcclRegistered(start: usize, bytes: usize) -> c_int {
    c_int::try_from(registered::covering(start, bytes)).unwrap_or(c_int::MAX)
}

/// As in NCCL's header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitDescription {
    count: c_int,
    peer: c_int,
    signal: c_int,
    context: c_int,
}

/// Checks what one-sided operations have in common; gives peer and context.
fn check(comm: &Comm, peer: c_int, signal: c_int, context: c_int) -> Outcome<(usize, usize)> {
    comm.ready()?;
    let ranks = comm.arena()?.ranks;
    let peer = usize::try_from(peer).ok().filter(|peer| *peer < ranks);
    let peer = peer.ok_or_else(|| Failure::argument(format!("peer out of range 0..{ranks}")))?;
    if signal != 0 {
        return Err(Failure::argument(format!("sigIdx {signal}, expected 0")));
    }
    let contexts = comm.config.contexts;
    let context = usize::try_from(context)
        .ok()
        .filter(|context| *context < contexts);
    let context =
        context.ok_or_else(|| Failure::argument(format!("ctx out of range 0..{contexts}")))?;
    Ok((peer, context))
}

fn no_flags(flags: c_uint) -> Outcome {
    if flags == 0 {
        Ok(())
    } else {
        Err(Failure::argument(format!("flags {flags}, expected 0")))
    }
}

/// What a put is called with.
struct Put {
    from: usize,
    count: usize,
    dtype: c_int,
    window: usize,
    offset: usize,
}

impl Put {
    fn action(&self, comm: &Arc<Comm>, peer: usize, context: usize) -> Outcome<Action> {
        let size = DataType::from_number(self.dtype)?.size();
        let bytes = self.count.checked_mul(size);
        let bytes = bytes.ok_or_else(|| Failure::argument("count is too large"))?;
        check_buffer("localbuff", self.from, bytes)?;
        if !window::covers(comm, self.from, bytes) {
            return Err(Failure::argument("localbuff is not in a registered window"));
        }
        let window = window::from_handle(self.window)?;
        if window.comm != comm.handle {
            return Err(Failure::argument("the window is of another communicator"));
        }
        let to = window.place(peer, self.offset, bytes)?;
        Ok(Action::Put {
            from: self.from,
            to,
            bytes,
            peer,
            context,
        })
    }
}

nccl_api! {
    /// Memory for windows.
    fn ncclMemAlloc(pointer: *mut usize, bytes: usize) {
        not_null(pointer, "ptr")?;
        crate::comm::current_device()?;
        put(pointer, "ptr", window::allocate(bytes)?)?;
        Ok(Code::SUCCESS)
    }

    /// Gives it back.
    fn ncclMemFree(pointer: usize) {
        window::free(pointer)?;
        Ok(Code::SUCCESS)
    }

    /// Registers a buffer.
    fn ncclCommRegister(comm: usize, buffer: usize, bytes: usize, handle: *mut usize) {
        Comm::from_handle(comm)?.ready()?;
        check_buffer("buff", buffer, bytes)?;
        not_null(handle, "handle")?;
        put(handle, "handle", registered::add(comm, buffer, bytes))?;
        Ok(Code::SUCCESS)
    }

    /// Ends a registration.
    fn ncclCommDeregister(comm: usize, handle: usize) {
        Comm::from_handle(comm)?;
        registered::remove(comm, handle)?;
        Ok(Code::SUCCESS)
    }

    /// Registers a window.
    fn ncclCommWindowRegister(
        comm: usize, buffer: usize, bytes: usize, handle: *mut usize, flags: c_int,
    ) {
        put(handle, "win", 0)?;
        let comm = Comm::from_handle(comm)?;
        put(handle, "win", window::register(&comm, buffer, bytes, flags)?)?;
        Ok(Code::SUCCESS)
    }

    /// Ends a window.
    fn ncclCommWindowDeregister(comm: usize, handle: usize) {
        Comm::from_handle(comm)?;
        window::deregister(handle)?;
        Ok(Code::SUCCESS)
    }

    /// Where a window begins in this rank's memory.
    fn ncclWinGetUserPtr(comm: usize, handle: usize, pointer: *mut usize) {
        Comm::from_handle(comm)?;
        put(pointer, "outUserPtr", window::from_handle(handle)?.start)?;
        Ok(Code::SUCCESS)
    }

    /// Where another rank's window is for this process.
    fn ncclGetPeerDevicePointer(handle: usize, offset: usize, peer: c_int, pointer: *mut usize) {
        let peer = usize::try_from(peer).map_err(|_| Failure::argument("peer is negative"))?;
        put(pointer, "outPtr", window::from_handle(handle)?.place(peer, offset, 0)?)?;
        Ok(Code::SUCCESS)
    }

    /// As the one before: all ranks of one machine reach each other's memory.
    fn ncclGetLsaDevicePointer(handle: usize, offset: usize, peer: c_int, pointer: *mut usize) {
        let peer = usize::try_from(peer).map_err(|_| Failure::argument("lsaRank is negative"))?;
        put(pointer, "outPtr", window::from_handle(handle)?.place(peer, offset, 0)?)?;
        Ok(Code::SUCCESS)
    }

    /// Writes into another rank's window, and signals.
    fn ncclPutSignal(
        from: usize, count: usize, dtype: c_int, peer: c_int, window: usize, offset: usize,
        signal: c_int, context: c_int, flags: c_uint, comm: usize, stream: usize,
    ) {
        let comm = Comm::from_handle(comm);
        let action = comm.clone().and_then(|comm| {
            no_flags(flags)?;
            let (peer, context) = check(&comm, peer, signal, context)?;
            Put { from, count, dtype, window, offset }.action(&comm, peer, context)
        });
        group::issue(comm, stream, action)
    }

    /// Signals.
    fn ncclSignal(
        peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: usize, stream: usize,
    ) {
        let comm = Comm::from_handle(comm);
        let action = comm.clone().and_then(|comm| {
            no_flags(flags)?;
            let (peer, context) = check(&comm, peer, signal, context)?;
            Ok(Action::Signal { peer, context })
        });
        group::issue(comm, stream, action)
    }

    /// Waits for signals.
    fn ncclWaitSignal(count: c_int, all: *const WaitDescription, comm: usize, stream: usize) {
        let comm = Comm::from_handle(comm);
        let action = comm.clone().and_then(|comm| {
            not_null(all, "signalDescs")?;
            // SAFETY: not null, and the caller passes `count` descriptions.
            let all = unsafe { std::slice::from_raw_parts(all, count.max(0) as usize) };
            let waits = all.iter().map(|one| {
                let (peer, context) = check(&comm, one.peer, one.signal, one.context)?;
                let count = u64::try_from(one.count).map_err(|_| Failure::argument("opCnt"))?;
                Ok((peer, context, count))
            });
            Ok(Action::WaitSignals(waits.collect::<Outcome<_>>()?))
        });
        group::issue(comm, stream, action)
    }
}

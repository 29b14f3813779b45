//! Batches of sends and receives. Must not know how they are matched or moved.

use std::ffi::c_void;
use std::sync::Arc;

use ferrocomm_abi::*;
use ferrocomm_core::Result;
use ferrocomm_core::call::{Operation, PointToPoint, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_engine::Communicator;

use crate::arguments::{Arguments, manner_of, options_of, source_of};
use crate::comm::{fc_comm, with_comm};
use crate::ffi::{self, Handle, Out, guard_poisoning};
use crate::operation::finish;
use crate::work::fc_work;

/// Sends and receives that are issued as one unit. Owned by the caller, one thread at a time;
/// given back with `fc_batch_destroy`.
pub struct fc_batch {
    _opaque: [u8; 0],
}

/// What is behind a `fc_batch`.
pub(crate) struct Batch {
    communicator: Arc<Communicator>,
    parts: Vec<(PointToPoint, Dtype)>,
}

impl Handle for fc_batch {
    type Value = Batch;
    const NOUN: &'static str = "batch";
}

/// Runs `body` on a batch; a panic puts its communicator out of use.
///
/// # Safety
/// `batch` is NULL or a live batch that no other thread uses.
unsafe fn with_batch(
    batch: *mut fc_batch,
    body: impl FnOnce(&mut Batch) -> Result<()>,
) -> fc_status {
    // SAFETY: by the caller's promise.
    let batch = unsafe { ffi::value_mut(batch) };
    let poisoned = batch.as_ref().ok().map(|batch| batch.communicator.clone());
    guard_poisoning(
        || {
            let batch = batch?;
            batch.communicator.check_process()?;
            body(batch)
        },
        |message| {
            if let Some(communicator) = poisoned {
                communicator.fail_with_panic(message);
            }
        },
    )
}

impl Batch {
    fn add(
        &mut self,
        dtype: fc_dtype,
        part: impl FnOnce(&Arguments<'_>) -> Result<PointToPoint>,
    ) -> Result<()> {
        let arguments = Arguments::new(&self.communicator, dtype)?;
        let part = part(&arguments)?;
        let dtype = arguments.dtype;
        self.parts.push((part, dtype));
        Ok(())
    }
}

/// Makes an empty batch for `comm`, which may be destroyed before it. `*out` receives an owned
/// batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_batch_create(comm: *mut fc_comm, out: *mut *mut fc_batch) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a pointer.
    unsafe {
        with_comm(comm, |handle| {
            let out = Out::new(out, "out")?;
            let communicator = handle.communicator.clone();
            out.set(ffi::give(Batch {
                communicator,
                parts: Vec::new(),
            }));
            Ok(())
        })
    }
}

/// Adds a send, as `fc_comm_send` takes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_batch_send(
    batch: *mut fc_batch,
    buffer: *const c_void,
    count: usize,
    dtype: fc_dtype,
    dst: i32,
    tag: u32,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live batch of this thread.
    unsafe {
        with_batch(batch, |batch| {
            batch.add(dtype, |arguments| {
                let to = arguments.rank("dst", dst)?;
                Ok(PointToPoint::Send {
                    buffer: arguments.region("buffer", buffer, count)?,
                    to,
                    tag,
                })
            })
        })
    }
}

/// Adds a receive, as `fc_comm_recv` takes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_batch_recv(
    batch: *mut fc_batch,
    buffer: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    src: i32,
    tag: u32,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live batch of this thread.
    unsafe {
        with_batch(batch, |batch| {
            batch.add(dtype, |arguments| {
                let from: Source = source_of(arguments, src)?;
                let buffer = arguments.region("buffer", buffer, count)?;
                Ok(PointToPoint::Recv { buffer, from, tag })
            })
        })
    }
}

/// Issues what was added as one unit, complete when all of it is, and empties the batch, also on
/// failure. An empty batch is complete at once. `work` as for `fc_comm_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_batch_issue(
    batch: *mut fc_batch,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live batch of this thread, NULL or initialised options,
    // and NULL or a place for a pointer.
    unsafe {
        with_batch(batch, |batch| {
            let mut task = Task::Batch(std::mem::take(&mut batch.parts));
            let manner = options_of(options)
                .and_then(|options| manner_of(&options))
                .map_err(|error| batch.communicator.named(error, Operation::Batch))?;
            finish(&batch.communicator, &mut task, Dtype::Byte, manner, work)
        })
    }
}

/// Gives the batch back; what was added and not issued is forgotten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_batch_destroy(batch: *mut fc_batch) {
    // SAFETY: the caller gives up its batch, once.
    drop(unsafe { ffi::take(batch) });
}

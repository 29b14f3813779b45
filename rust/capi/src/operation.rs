//! Collectives, sends and receives. Must not know which engine moves the data, or how.

use std::ffi::c_void;
use std::sync::Arc;

use ferrocomm_abi::*;
use ferrocomm_core::Result;
use ferrocomm_core::call::{Collective, Mode, Operation, PointToPoint, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_engine::Communicator;

use crate::arguments::{Arguments, Manner, manner_of, options_of, source_of};
use crate::comm::{fc_comm, with_comm};
use crate::ffi;
use crate::work::fc_work;

/// Issues a task: waits for it when `work` is NULL, else hands out its work.
///
/// # Safety
/// `work` is NULL or a place for one pointer, and the task's regions stay valid until it is
/// complete.
#[inline(always)]
pub(crate) unsafe fn finish(
    communicator: &Arc<Communicator>,
    task: &mut Task,
    dtype: Dtype,
    manner: Manner,
    work: *mut *mut fc_work,
) -> Result<()> {
    let Manner {
        timeout,
        stream,
        on_stream,
    } = manner;
    if work.is_null() && !communicator.on_streams() {
        return communicator.run(task, dtype, timeout);
    }
    let mode = if work.is_null() || on_stream {
        Mode::Sync
    } else {
        Mode::Async
    };
    let task = std::mem::replace(task, Task::Batch(Vec::new()));
    let pending = if communicator.on_streams() {
        communicator.start_on(task, dtype, timeout, mode, stream)?
    } else {
        communicator.start(task, dtype, timeout)?
    };
    if !work.is_null() {
        // SAFETY: not NULL, and a place for one pointer by the caller's promise.
        unsafe { work.write(ffi::give::<fc_work>(pending)) };
    }
    Ok(())
}

/// The frame of every operation: reads options and dtype, builds the task, issues it.
///
/// # Safety
/// The pointers are what the header asks for, and the buffers stay valid until the operation is
/// complete.
#[inline(always)]
unsafe fn operate(
    comm: *mut fc_comm,
    operation: Operation,
    dtype: fc_dtype,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
    task: impl FnOnce(&Arguments<'_>) -> Result<Task>,
) -> fc_status {
    // SAFETY: by the caller's promise, here and below.
    unsafe {
        with_comm(comm, |handle| {
            let communicator = &handle.communicator;
            let named = |error| communicator.named(error, operation);
            let (arguments, manner) = prepare(communicator, dtype, options).map_err(named)?;
            // The task is never moved: that would take longer than all the rest of a short call.
            match &mut task(&arguments) {
                Ok(task) => finish(communicator, task, arguments.dtype, manner, work),
                Err(error) => Err(named(error.clone())),
            }
        })
    }
}

/// The part of `operate` that all operations have in common.
///
/// # Safety
/// `options` is NULL or an initialised struct.
#[inline(always)]
unsafe fn prepare<'a>(
    communicator: &'a Communicator,
    dtype: fc_dtype,
    options: *const fc_op_options,
) -> Result<(Arguments<'a>, Manner)> {
    let mut arguments = Arguments::new(communicator, dtype)?;
    if options.is_null() {
        return Ok((arguments, Manner::DEFAULT));
    }
    // SAFETY: by the caller's promise.
    let options = unsafe { options_of(options) }?;
    arguments.premul_factor = options.premul_factor;
    arguments.premul_address = options.premul_device_factor.expose_provenance();
    Ok((arguments, manner_of(&options)?))
}

/// Copies `count` elements of `buffer` on `root` to `buffer` on every other rank. `options` and
/// `work` as for `fc_comm_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_broadcast(
    comm: *mut fc_comm,
    buffer: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    root: i32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::Broadcast,
            dtype,
            options,
            work,
            |arguments| {
                let root = arguments.rank("root", root)?;
                let buffer = arguments.region("buffer", buffer, count)?;
                Ok(Task::Collective(Collective::Broadcast { buffer, root }))
            },
        )
    }
}

/// Combines `count` elements of every rank with `op`; every rank gets the same bits in `output`,
/// which may be `input` but not overlap it otherwise.
///
/// Every operation ends with `options` (NULL: all defaults) and `work`. `work` NULL: the operation
/// runs on this thread and its status is returned. Otherwise it is only started: a failure to start
/// is returned, and `*work` receives an owned work. Buffers stay valid until it is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_all_reduce(
    comm: *mut fc_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    op: fc_reduce_op,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::AllReduce,
            dtype,
            options,
            work,
            |arguments| {
                let op = arguments.reduce_op(op)?;
                let input = arguments.region("input", input, count)?;
                let output = arguments.region("output", output, count)?;
                Ok(Task::Collective(Collective::AllReduce {
                    input,
                    output,
                    op,
                }))
            },
        )
    }
}

/// Combines `count` elements of every rank with `op` into `output` on `root`. `output` may be
/// `input`, and NULL on the other ranks, where it is not touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_reduce(
    comm: *mut fc_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    op: fc_reduce_op,
    root: i32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(comm, Operation::Reduce, dtype, options, work, |arguments| {
            let (op, root) = (arguments.reduce_op(op)?, arguments.rank("root", root)?);
            let input = arguments.region("input", input, count)?;
            let output = arguments
                .is_root(root)
                .then(|| arguments.region("output", output, count))
                .transpose()?;
            Ok(Task::Collective(Collective::Reduce {
                input,
                output,
                op,
                root,
            }))
        })
    }
}

/// Copies `count` elements of every rank to `output`, which holds `size * count` elements in rank
/// order. `input` may be its own part of `output`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_all_gather(
    comm: *mut fc_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::AllGather,
            dtype,
            options,
            work,
            |arguments| {
                let input = arguments.region("input", input, count)?;
                let outputs = arguments.parts("output", output, count)?;
                Ok(Task::Collective(Collective::AllGather { input, outputs }))
            },
        )
    }
}

/// Like `fc_comm_all_gather` with `counts[r]` elements from rank r into `outputs[r]`; both lists
/// have one entry per rank, and `counts` is the same on every rank. `input` holds `counts[rank]`
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_all_gather_v(
    comm: *mut fc_comm,
    input: *const c_void,
    outputs: *const *mut c_void,
    counts: *const usize,
    dtype: fc_dtype,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::AllGather,
            dtype,
            options,
            work,
            |arguments| {
                let outputs = arguments.buffers_v("outputs", outputs.cast(), counts)?;
                let own = arguments.own_count(counts)?;
                let input = arguments.region("input", input, own)?;
                Ok(Task::Collective(Collective::AllGather { input, outputs }))
            },
        )
    }
}

/// Combines with `op` and gives rank r the r-th part: `input` holds `size * count` elements,
/// `output` `count`. `output` may be its own part of `input`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_reduce_scatter(
    comm: *mut fc_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    op: fc_reduce_op,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::ReduceScatter,
            dtype,
            options,
            work,
            |arguments| {
                let op = arguments.reduce_op(op)?;
                let inputs = arguments.parts("input", input, count)?;
                let output = arguments.region("output", output, count)?;
                Ok(Task::Collective(Collective::ReduceScatter {
                    inputs,
                    output,
                    op,
                }))
            },
        )
    }
}

/// Like `fc_comm_reduce_scatter` with a part of `counts[r]` elements at `inputs[r]` for rank r;
/// both lists have one entry per rank, and `counts` is the same on every rank. `output` holds
/// `counts[rank]` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_reduce_scatter_v(
    comm: *mut fc_comm,
    inputs: *const *const c_void,
    counts: *const usize,
    output: *mut c_void,
    dtype: fc_dtype,
    op: fc_reduce_op,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::ReduceScatter,
            dtype,
            options,
            work,
            |arguments| {
                let op = arguments.reduce_op(op)?;
                let inputs = arguments.buffers_v("inputs", inputs, counts)?;
                let own = arguments.own_count(counts)?;
                let output = arguments.region("output", output, own)?;
                Ok(Task::Collective(Collective::ReduceScatter {
                    inputs,
                    output,
                    op,
                }))
            },
        )
    }
}

/// Sends the r-th part of `input` to rank r and receives rank r's part for this rank as the r-th
/// part of `output`; parts have `count` elements. The buffers do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_all_to_all(
    comm: *mut fc_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::AllToAll,
            dtype,
            options,
            work,
            |arguments| {
                let inputs = arguments.parts("input", input, count)?;
                let outputs = arguments.parts("output", output, count)?;
                Ok(Task::Collective(Collective::AllToAll { inputs, outputs }))
            },
        )
    }
}

/// Like `fc_comm_all_to_all` with `input_counts[r]` elements at `inputs[r]` for rank r and
/// `output_counts[r]` elements from rank r into `outputs[r]`. What one rank gives another must be
/// what the other expects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_all_to_all_v(
    comm: *mut fc_comm,
    inputs: *const *const c_void,
    input_counts: *const usize,
    outputs: *const *mut c_void,
    output_counts: *const usize,
    dtype: fc_dtype,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::AllToAll,
            dtype,
            options,
            work,
            |arguments| {
                let inputs = arguments.buffers_v("inputs", inputs, input_counts)?;
                let outputs = arguments.buffers_v("outputs", outputs.cast(), output_counts)?;
                Ok(Task::Collective(Collective::AllToAll { inputs, outputs }))
            },
        )
    }
}

/// Copies `count` elements of rank r to `outputs[r]` on `root`; `outputs` may be NULL on the other
/// ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_gather(
    comm: *mut fc_comm,
    input: *const c_void,
    count: usize,
    outputs: *const *mut c_void,
    dtype: fc_dtype,
    root: i32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(comm, Operation::Gather, dtype, options, work, |arguments| {
            let root = arguments.rank("root", root)?;
            let input = arguments.region("input", input, count)?;
            let outputs = arguments.at_root("outputs", root, outputs.cast(), count)?;
            Ok(Task::Collective(Collective::Gather {
                input,
                outputs,
                root,
            }))
        })
    }
}

/// Copies `count` elements of `inputs[r]` on `root` to `output` on rank r; `inputs` may be NULL on
/// the other ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_scatter(
    comm: *mut fc_comm,
    inputs: *const *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    root: i32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::Scatter,
            dtype,
            options,
            work,
            |arguments| {
                let root = arguments.rank("root", root)?;
                let inputs = arguments.at_root("inputs", root, inputs, count)?;
                let output = arguments.region("output", output, count)?;
                Ok(Task::Collective(Collective::Scatter {
                    inputs,
                    output,
                    root,
                }))
            },
        )
    }
}

/// Sends `count` elements to rank `dst`, which may be this rank. Sends and receives are matched by
/// (peer, tag), first in first out, whatever else is pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_send(
    comm: *mut fc_comm,
    buffer: *const c_void,
    count: usize,
    dtype: fc_dtype,
    dst: i32,
    tag: u32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(comm, Operation::Send, dtype, options, work, |arguments| {
            let to = arguments.rank("dst", dst)?;
            let buffer = arguments.region("buffer", buffer, count)?;
            Ok(Task::PointToPoint(PointToPoint::Send { buffer, to, tag }))
        })
    }
}

/// Receives `count` elements from rank `src`, or with `FC_ANY_SOURCE` from whichever rank sends
/// first; `fc_work_source` tells which. A time-out or a cancel leaves the communicator usable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_recv(
    comm: *mut fc_comm,
    buffer: *mut c_void,
    count: usize,
    dtype: fc_dtype,
    src: i32,
    tag: u32,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(comm, Operation::Recv, dtype, options, work, |arguments| {
            let from = source_of(arguments, src)?;
            let buffer = arguments.region("buffer", buffer, count)?;
            Ok(Task::PointToPoint(PointToPoint::Recv { buffer, from, tag }))
        })
    }
}

/// Completes when every rank has called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_barrier(
    comm: *mut fc_comm,
    options: *const fc_op_options,
    work: *mut *mut fc_work,
) -> fc_status {
    // SAFETY: the pointers are what the header asks for.
    unsafe {
        operate(
            comm,
            Operation::Barrier,
            FC_DTYPE_BYTE,
            options,
            work,
            |_| Ok(Task::Collective(Collective::Barrier)),
        )
    }
}

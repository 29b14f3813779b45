//! Putting a call's steps on a stream, one communicator at a time.
//!
//! Must not know works, events or time-outs.

use std::ffi::{c_int, c_void};
use std::ptr;

use ferrocomm_core::call::Stream;
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::{Error, Result};
use ferrocomm_nccl_sys::sys::{
    CUstream_st, ncclComm_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t,
};
use ferrocomm_nccl_sys::{Nccl, symbol};

use crate::errors;
use crate::handle::{Handle, finished};
use crate::plan::{Plan, Step};
use crate::reductions::{Combine, Wire, scalar};

/// Where steps go.
struct Target<'a> {
    nccl: &'a Nccl,
    comm: ncclComm_t,
    stream: Stream,
    deadline: Deadline,
}

/// Puts the steps of `plan` on `stream`. Whatever fails, a group that was opened is closed.
///
/// # Errors
/// `Unsupported` for a function this NCCL lacks; NCCL's; `Timeout`, when a call stays in progress.
pub(crate) fn put(plan: &Plan, handle: &Handle, stream: Stream, deadline: Deadline) -> Result<()> {
    let target = Target {
        nccl: handle.nccl,
        comm: handle.get()?.0,
        stream,
        deadline,
    };
    match plan.combine {
        Some(Combine::Premul(factor)) => {
            let mut bytes = scalar(factor, plan.wire)?;
            let here = ncclScalarResidence_t::ncclScalarHostImmediate;
            target.steps_with(plan, bytes.as_mut_ptr().cast(), here)
        }
        Some(Combine::PremulAt(address)) => target.steps_with(
            plan,
            memory(address),
            ncclScalarResidence_t::ncclScalarDevice,
        ),
        Some(Combine::Plain(op)) => target.steps(plan, op),
        None => target.steps(plan, ncclRedOp_t::ncclSum),
    }
}

fn memory(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn rank(rank: u32) -> c_int {
    // A communicator has at most as many ranks as an `int` can count.
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

macro_rules! function {
    ($target:expr, $name:ident) => {
        symbol!($target.nccl, $name).map_err(|error| errors::missing(&error))
    };
}

impl Target<'_> {
    /// Turns the answer of `call` into a result.
    fn ended(&self, call: &'static str, result: ncclResult_t) -> Result<()> {
        match result {
            ncclResult_t::ncclSuccess => Ok(()),
            // SAFETY: the issuing thread's communicator. Where another thread gives it up meanwhile,
            // NCCL lets calls in progress return.
            ncclResult_t::ncclInProgress => unsafe {
                finished(self.nccl, self.comm, call, result, self.deadline)
            },
            // SAFETY: as above.
            _ => Err(unsafe {
                errors::failed(self.nccl, self.comm, call, result, Some(self.stream))
            }),
        }
    }

    fn steps(&self, plan: &Plan, op: ncclRedOp_t) -> Result<()> {
        if !plan.grouped {
            return plan
                .steps
                .iter()
                .try_for_each(|step| self.step(step, plan.wire, op, false));
        }
        let start = function!(self, ncclGroupStart)?;
        let end = function!(self, ncclGroupEnd)?;
        // SAFETY: opens a group of this thread, which is closed below on every path.
        self.ended// SAFETY: as said above.
("ncclGroupStart", unsafe { start() })?;
        let outcome = plan
            .steps
            .iter()
            .try_for_each(|step| self.step(step, plan.wire, op, true));
        // SAFETY: closes the group that was opened above.
        let result = unsafe { end() };
        // What failed inside is the cause, and the end then fails with it.
        outcome.and_then(|()| self.ended("ncclGroupEnd", result))
    }

    /// One function of NCCL. Inside a group, what is in progress ends with the group.
    fn step(&self, step: &Step, wire: Wire, op: ncclRedOp_t, grouped: bool) -> Result<()> {
        let (name, result) = self.call(step, wire, op)?;
        if grouped && result == ncclResult_t::ncclInProgress {
            return Ok(());
        }
        self.ended(name, result)
    }

    fn call(
        &self,
        step: &Step,
        wire: Wire,
        op: ncclRedOp_t,
    ) -> Result<(&'static str, ncclResult_t)> {
        let (comm, dtype) = (self.comm, wire.dtype);
        let stream: *mut CUstream_st = ptr::with_exposed_provenance_mut(self.stream.0);
        // For every call: the addresses are the client's, valid until the operation is over
        // by its promise; the communicator is this thread's to use; the stream lives during the call.
        Ok(match *step {
            Step::AllReduce { send, recv, count } => {
                let call = function!(self, ncclAllReduce)?;
                // SAFETY: as said above.
                ("ncclAllReduce", unsafe {
                    call(memory(send), memory(recv), count, dtype, op, comm, stream)
                })
            }
            Step::Reduce {
                send,
                recv,
                count,
                root,
            } => {
                let call = function!(self, ncclReduce)?;
                // SAFETY: as said above.
                ("ncclReduce", unsafe {
                    let root = rank(root);
                    call(
                        memory(send),
                        memory(recv),
                        count,
                        dtype,
                        op,
                        root,
                        comm,
                        stream,
                    )
                })
            }
            Step::Broadcast {
                send,
                recv,
                count,
                root,
            } => {
                let call = function!(self, ncclBroadcast)?;
                // SAFETY: as said above.
                ("ncclBroadcast", unsafe {
                    let root = rank(root);
                    call(memory(send), memory(recv), count, dtype, root, comm, stream)
                })
            }
            Step::AllGather { send, recv, count } => {
                let call = function!(self, ncclAllGather)?;
                // SAFETY: as said above.
                ("ncclAllGather", unsafe {
                    call(memory(send), memory(recv), count, dtype, comm, stream)
                })
            }
            Step::ReduceScatter { send, recv, count } => {
                let call = function!(self, ncclReduceScatter)?;
                // SAFETY: as said above.
                ("ncclReduceScatter", unsafe {
                    call(memory(send), memory(recv), count, dtype, op, comm, stream)
                })
            }
            Step::AllToAll { send, recv, count } => {
                let call = function!(self, ncclAlltoAll)?;
                // SAFETY: as said above.
                ("ncclAlltoAll", unsafe {
                    call(memory(send), memory(recv), count, dtype, comm, stream)
                })
            }
            Step::Send {
                buffer,
                bytes,
                peer,
            } => {
                let call = function!(self, ncclSend)?;
                let byte = Wire::BYTE.dtype;
                // SAFETY: as said above.
                ("ncclSend", unsafe {
                    call(memory(buffer), bytes, byte, rank(peer), comm, stream)
                })
            }
            Step::Recv {
                buffer,
                bytes,
                peer,
            } => {
                let call = function!(self, ncclRecv)?;
                let byte = Wire::BYTE.dtype;
                // SAFETY: as said above.
                ("ncclRecv", unsafe {
                    call(memory(buffer), bytes, byte, rank(peer), comm, stream)
                })
            }
        })
    }

    /// `steps` with an op that multiplies every input by the factor before it is added. NCCL lets go
    /// of an op once the last call with it has returned, so the op ends here.
    fn steps_with(
        &self,
        plan: &Plan,
        factor: *mut c_void,
        residence: ncclScalarResidence_t,
    ) -> Result<()> {
        let op = self.premul(factor, residence, plan.wire)?;
        let outcome = self.steps(plan, op);
        let given_back = self.give_back(op);
        outcome.and(given_back)
    }

    fn premul(
        &self,
        factor: *mut c_void,
        residence: ncclScalarResidence_t,
        wire: Wire,
    ) -> Result<ncclRedOp_t> {
        let create = function!(self, ncclRedOpCreatePreMulSum)?;
        let mut op = ncclRedOp_t::ncclSum;
        // SAFETY: a place for one op, and one element of the type: in host memory, which NCCL reads
        // before it returns, or in the device's, valid until the operation is over by the client's
        // promise.
        let result = unsafe { create(&raw mut op, factor, wire.dtype, residence, self.comm) };
        self.ended("ncclRedOpCreatePreMulSum", result)?;
        Ok(op)
    }

    fn give_back(&self, op: ncclRedOp_t) -> Result<()> {
        let destroy = function!(self, ncclRedOpDestroy)?;
        // SAFETY: made by `premul` on this communicator; calls that were made with it keep it.
        self.ended// SAFETY: as said above.
("ncclRedOpDestroy", unsafe { destroy(op, self.comm) })
    }
}

/// The error as one of a call that this communicator can go on after, or not: an argument that NCCL
/// refuses, or a function it lacks, leaves nothing on the stream.
pub(crate) fn is_harmless(error: &Error) -> bool {
    use ferrocomm_core::ErrorKind::{InvalidArgument, Unsupported};
    matches!(error.kind(), InvalidArgument | Unsupported)
}

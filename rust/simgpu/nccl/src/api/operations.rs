//! Operations: collectives, messages, and the reductions that callers make.

use std::ffi::c_int;
use std::sync::Arc;

use super::{nccl_api, not_null, put};
use crate::comm::Comm;
use crate::dtype::{Combine, DataType, Reduction, Scalar};
use crate::exchange::{Collective, Kind, Transfer};
use crate::failure::{Code, Failure, Outcome};
use crate::group;
use crate::launch::{Action, check_buffer};

/// What a collective of the API is called with.
struct Call {
    kind: Kind,
    send: usize,
    recv: usize,
    count: usize,
    dtype: c_int,
    reduction: Option<c_int>,
    root: c_int,
}

fn reduction(comm: &Comm, number: c_int, dtype: DataType) -> Outcome<Reduction> {
    Ok(match number {
        0 => Reduction::Plain(Combine::Sum),
        1 => Reduction::Plain(Combine::Prod),
        2 => Reduction::Plain(Combine::Max),
        3 => Reduction::Plain(Combine::Min),
        4 => Reduction::Average,
        _ => comm.made_reduction(number, dtype)?,
    })
}

/// How many times `count` elements each buffer has.
fn extents(kind: Kind, ranks: usize, is_root: bool) -> (usize, usize) {
    let at_root = |times: usize| if is_root { times } else { 0 };
    match kind {
        Kind::AllReduce => (1, 1),
        Kind::Reduce => (1, at_root(1)),
        Kind::Broadcast => (at_root(1), 1),
        Kind::AllGather => (1, ranks),
        Kind::ReduceScatter => (ranks, 1),
        Kind::AlltoAll => (ranks, ranks),
        Kind::Gather => (1, at_root(ranks)),
        Kind::Scatter => (at_root(ranks), 1),
    }
}

fn check(comm: &Comm, call: &Call) -> Outcome<Action> {
    let arena = comm.arena()?;
    let root = usize::try_from(call.root)
        .ok()
        .filter(|root| *root < arena.ranks);
    let root = root.ok_or_else(|| {
        Failure::argument(format!(
            "root {} is out of range 0..{}",
            call.root, arena.ranks
        ))
    })?;
    let dtype = DataType::from_number(call.dtype)?;
    let how = call
        .reduction
        .map(|number| reduction(comm, number, dtype))
        .transpose()?;
    let (sends, receives) = extents(call.kind, arena.ranks, arena.rank == root);
    let bytes = call.count.checked_mul(dtype.size());
    let whole = bytes.and_then(|bytes| bytes.checked_mul(arena.ranks));
    let (Some(bytes), Some(_)) = (bytes, whole) else {
        return Err(Failure::argument(format!(
            "count {} is too large",
            call.count
        )));
    };
    check_buffer("sendbuff", call.send, sends * bytes)?;
    check_buffer("recvbuff", call.recv, receives * bytes)?;
    Ok(Action::Collective(Collective {
        kind: call.kind,
        send: call.send,
        recv: call.recv,
        count: call.count,
        dtype,
        reduction: how.unwrap_or(Reduction::Plain(Combine::Sum)),
        root,
    }))
}

fn collective(comm: usize, stream: usize, call: &Call) -> Outcome<Code> {
    let comm = Comm::from_handle(comm);
    let action = match &comm {
        Ok(comm) => comm.ready().and_then(|()| check(comm, call)),
        Err(failure) => Err(failure.clone()),
    };
    group::issue(comm, stream, action)
}

fn check_transfer(
    comm: &Arc<Comm>,
    sends: bool,
    at: usize,
    count: usize,
    dtype: c_int,
    peer: c_int,
) -> Outcome<Action> {
    comm.ready()?;
    let arena = comm.arena()?;
    let peer = usize::try_from(peer)
        .ok()
        .filter(|peer| *peer < arena.ranks)
        .ok_or_else(|| {
            Failure::argument(format!("peer {peer} is out of range 0..{}", arena.ranks))
        })?;
    let bytes = count.checked_mul(DataType::from_number(dtype)?.size());
    let bytes = bytes.ok_or_else(|| Failure::argument(format!("count {count} is too large")))?;
    check_buffer(if sends { "sendbuff" } else { "recvbuff" }, at, bytes)?;
    Ok(Action::Transfer(Transfer {
        sends,
        at,
        bytes,
        peer,
    }))
}

nccl_api! {
    /// Reduces everywhere.
    fn ncclAllReduce(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, comm: usize, stream: usize,
    ) {
        let (kind, reduction) = (Kind::AllReduce, Some(op));
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root: 0 })
    }

    /// Reduces at the root.
    fn ncclReduce(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, root: c_int, comm: usize,
        stream: usize,
    ) {
        let (kind, reduction) = (Kind::Reduce, Some(op));
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root })
    }

    /// Reduces, and gives each rank a block.
    fn ncclReduceScatter(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, comm: usize, stream: usize,
    ) {
        let (kind, reduction) = (Kind::ReduceScatter, Some(op));
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root: 0 })
    }

    /// Gives the root's elements to all.
    fn ncclBroadcast(
        send: usize, recv: usize, count: usize, dtype: c_int, root: c_int, comm: usize,
        stream: usize,
    ) {
        let (kind, reduction) = (Kind::Broadcast, None);
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root })
    }

    /// As the one before, in place.
    fn ncclBcast(
        buffer: usize, count: usize, dtype: c_int, root: c_int, comm: usize, stream: usize,
    ) {
        let (kind, send, recv, reduction) = (Kind::Broadcast, buffer, buffer, None);
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root })
    }

    /// Gives everybody's elements to all.
    fn ncclAllGather(
        send: usize, recv: usize, count: usize, dtype: c_int, comm: usize, stream: usize,
    ) {
        let (kind, reduction) = (Kind::AllGather, None);
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root: 0 })
    }

    /// Gives each rank everybody's block for it.
    fn ncclAlltoAll(
        send: usize, recv: usize, count: usize, dtype: c_int, comm: usize, stream: usize,
    ) {
        let (kind, reduction) = (Kind::AlltoAll, None);
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root: 0 })
    }

    /// Gives everybody's elements to the root.
    fn ncclGather(
        send: usize, recv: usize, count: usize, dtype: c_int, root: c_int, comm: usize,
        stream: usize,
    ) {
        let (kind, reduction) = (Kind::Gather, None);
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root })
    }

    /// Gives each rank a block of the root's.
    fn ncclScatter(
        send: usize, recv: usize, count: usize, dtype: c_int, root: c_int, comm: usize,
        stream: usize,
    ) {
        let (kind, reduction) = (Kind::Scatter, None);
        collective(comm, stream, &Call { kind, send, recv, count, dtype, reduction, root })
    }

    /// Sends.
    fn ncclSend(
        send: usize, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: usize,
    ) {
        let comm = Comm::from_handle(comm);
        let action = comm
            .clone()
            .and_then(|comm| check_transfer(&comm, true, send, count, dtype, peer));
        group::issue(comm, stream, action)
    }

    /// Receives.
    fn ncclRecv(
        recv: usize, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: usize,
    ) {
        let comm = Comm::from_handle(comm);
        let action = comm
            .clone()
            .and_then(|comm| check_transfer(&comm, false, recv, count, dtype, peer));
        group::issue(comm, stream, action)
    }

    /// Makes a reduction that multiplies first: by a scalar read now, or on the device (0).
    fn ncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: *const u8, dtype: c_int, residence: c_int, comm: usize,
    ) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        not_null(op, "op")?;
        not_null(scalar, "scalar")?;
        let dtype = DataType::from_number(dtype)?;
        let scalar = match residence {
            0 => {
                check_buffer("scalar", scalar as usize, dtype.size())?;
                Scalar::At(scalar as usize)
            }
            1 => {
                let mut bytes = [0; 8];
                // SAFETY: not null, and an element of the caller's.
                unsafe { scalar.copy_to_nonoverlapping(bytes.as_mut_ptr(), dtype.size()) };
                Scalar::Bytes(bytes)
            }
            _ => return Err(Failure::argument(format!("scalar residence {residence}"))),
        };
        put(op, "op", comm.make_reduction(dtype, Reduction::PreMulSum(scalar)))?;
        Ok(Code::SUCCESS)
    }

    /// Ends a reduction.
    fn ncclRedOpDestroy(op: c_int, comm: usize) {
        Comm::from_handle(comm)?.end_reduction(op)?;
        Ok(Code::SUCCESS)
    }
}

"""The compiled extension: communicators, works and the c10d backend over the engine.

Every operation takes `async_op`, `hints` and `timeout` and returns a work. Synchronous, it returns
when the operation is done; asynchronous, when it is issued, and the tensors must then be left alone
until the work is complete. Tensors may be non-contiguous. A bad argument raises ValueError or
NotImplementedError before anything moves, and the communicator stays usable; a time-out, a lost
peer or a mismatch raises `torch.distributed.DistBackendError`, and the communicator has failed.

A communicator may be used from several threads; operations take effect in the order of issue. The
GIL is released while the engine works.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch._C._distributed_c10d import Backend, Store
from torch.distributed import ReduceOp as _C10dReduceOp

from torchcomms._hook_args import *  # noqa: F403
from torchcomms._hook_args import OpName
from torchcomms._options import *  # noqa: F403
from torchcomms._options import BatchP2POptions, CommOptions, P2POp

RedOpType = _C10dReduceOp.RedOpType

class ReduceOp:
    """How elements are combined. torch.distributed's own ops are accepted in its place."""

    SUM: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    def __init__(self, op: _C10dReduceOp | _C10dReduceOp.RedOpType) -> None: ...
    @staticmethod
    def PREMUL_SUM(factor: float | Tensor) -> ReduceOp:
        """The ranks' inputs times `factor`, which is the same on all of them, then the sum."""
    @property
    def type(self) -> _C10dReduceOp.RedOpType: ...
    def __copy__(self) -> ReduceOp: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> ReduceOp: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class WorkStatus(Enum):
    """Where an operation stands.

    NOT_STARTED is a collective on CPU tensors that waits behind an earlier one of its communicator:
    its time-out does not run yet. Sends and receives, and operations on a device's stream or of a
    backend in Python, are INPROGRESS from the issue on.
    """

    NOT_STARTED = ...
    INPROGRESS = ...
    COMPLETED = ...
    TIMEDOUT = ...
    ERROR = ...

class TorchWork:
    """An operation that was issued. Dropping it leaves the operation running."""

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits for the operation and raises its failure; past `timeout` the operation fails."""
    def wait_blocking(self) -> None:
        """As `wait` without a limit but the operation's own."""
    def is_completed(self) -> bool:
        """Looks, without waiting."""
    @property
    def status(self) -> WorkStatus: ...
    def exception(self) -> BaseException | None:
        """The failure of an operation that failed."""
    def register_work_start_hook(self, hook: Callable[[], object]) -> None:
        """Calls `hook` when the engine has the operation, which it has: at once."""
    def register_work_end_hook(self, hook: Callable[[], object]) -> None:
        """Calls `hook` when the operation is over, however it ended.

        At once when it is over already; else on another thread, where an exception of the hook is
        only reported.
        """
    def cancel(self) -> None:
        """Ends a pending send or receive; other operations go on."""
    def source_rank(self) -> int:
        """Rank that a receive matched; -1 before that."""
    def sequence(self) -> int:
        """Number of the operation on its communicator."""
    def result(self) -> list[Tensor]:
        """The output tensors."""

class RemovableHandle:
    """A registered hook; also a context that takes it off at its end."""

    def remove(self) -> None:
        """Takes the hook off, from any thread and from within hooks; again does nothing."""
    def __enter__(self) -> RemovableHandle: ...
    def __exit__(self, *exception: object) -> None: ...

class AllGatherHandle:
    """Made by `TorchComm.all_gather_p_init`."""

class BatchSendRecv:
    """Sends and receives that start together, in any order on the two sides."""

    def add(self, operation: P2POp) -> None:
        """A send or receive as an object."""
    def send(self, tensor: Tensor, dst: int) -> None: ...
    def recv(self, tensor: Tensor, src: int) -> None: ...
    def issue(
        self,
        async_op: bool = False,
        options: BatchP2POptions | None = None,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Starts what was added; the batch is empty afterwards."""

class MemAllocator:
    """Memory that ranks of one machine read where it lies. From `torchcomms.get_mem_allocator`."""

    @property
    def backend(self) -> str: ...
    def empty(self, size: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """A CPU tensor of undefined content there, freed with its last storage.

        Raises `torch.distributed.DistBackendError` when memory is short.
        """
    def empty_like(self, tensor: Tensor) -> Tensor:
        """As `empty`, contiguous, with the size and dtype of `tensor`."""

class TorchCommWinAccessType(Enum):
    """Whether the window of a rank has an address in this process."""

    WIN_ACCESS_TYPE_UNIFIED = ...
    WIN_ACCESS_TYPE_SEPARATE = ...

class TorchCommWindowAttr:
    """What holds of the window of one rank, seen from this one."""

    @property
    def access_type(self) -> TorchCommWinAccessType: ...

class TorchCommWindow:
    """A tensor of every rank that the others write to. Made by `TorchComm.new_window`.

    What one rank does to the window of another takes effect in the order of the calls. Offsets are
    counted in elements of the tensor that is passed, from the beginning of the other's window, and
    checked against what that rank registered. A tensor has the dtype of the own window, or the
    window is of uint8.
    """

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def device(self) -> torch.device: ...
    def get_size(self) -> int:
        """Elements of the registered tensor."""
    def get_tensor(self) -> Tensor:
        """The registered tensor itself."""
    def tensor_register(
        self,
        tensor: Tensor,
        owning: bool = True,
        timeout: timedelta | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        """Lends a contiguous tensor to the other ranks: a collective.

        Ranks may register different sizes. Tensors of `torchcomms.get_mem_allocator` are the
        fastest, and the hint `share_memory`, given here or to the communicator, moves another one
        there. With `owning` the window keeps the tensor's memory; else the caller does.
        """
    def tensor_deregister(
        self, timeout: timedelta | None = None, hints: Mapping[str, str] | None = None
    ) -> None:
        """Ends that: a collective, after which nobody uses the memory through the window."""
    def put(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Writes `tensor` there. Complete when it may be used again; does not signal."""
    def put_signal(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """`put`, then `signal`. An extension."""
    def get(
        self,
        tensor: Tensor,
        src_rank: int,
        source_offset_nelems: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Reads into `tensor` from there. An extension."""
    def signal(
        self,
        dst_rank: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Adds one to the signals that `dst_rank` can take of this rank."""
    def wait_signal(
        self,
        peer_rank: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Takes one signal of `peer_rank`, once there is one. A time-out takes none."""
    def map_remote_tensor(self, rank: int) -> Tensor:
        """The memory of that rank's window itself; of the own shape if as long, else flat.

        Possible where `get_attr(rank)` says UNIFIED, which the own rank always is. Its content is
        the window's until `tensor_deregister`; using it later does no harm.
        """
    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr: ...

class ReconfigureOptions:
    """The arguments of `TorchComm.reconfigure` in one object; the same on all members."""

    uuid: int
    init_handles: list[str] | set[str]
    timeout: timedelta | None
    hints: dict[str, str] | None
    def __init__(
        self,
        uuid: int,
        init_handles: Sequence[str] | Set[str],
        timeout: timedelta | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> None: ...

class TorchComm:
    """A communicator: this process as one rank of a group. Made by `torchcomms.new_comm`."""

    def get_rank(self) -> int: ...
    def get_size(self) -> int: ...
    def get_name(self) -> str: ...
    def get_device(self) -> torch.device: ...
    def get_backend(self) -> str: ...
    def get_backend_version(self) -> str:
        """The engine's version; of a backend in Python its own, or its package's."""
    def get_options(self) -> CommOptions:
        """What holds for its operations now."""
    def get_hints(self) -> dict[str, str]: ...
    def set_hints(self, hints: Mapping[str, str]) -> None:
        """Adds to the hints, for its windows and for what is split from it from now on.

        The engine reads its own when the ranks join.
        """
    def get_backend_impl(self) -> Any:
        """The Python backend that serves it; the communicator itself where the engine does."""
    def unsafe_get_backend(self) -> Any:
        """As `get_backend_impl`."""
    def tensor_register(self, tensor: Tensor) -> None:
        """Prepares a contiguous tensor, kept until `tensor_deregister` or `finalize`.

        NCCL registers it with the communicator; the host engine needs nothing.
        """
    def tensor_deregister(self, tensor: Tensor) -> None: ...
    def register_pre_hook(self, hook: Callable[[OpName, int, Any], object]) -> RemovableHandle:
        """Calls `hook(op_name, op_id, args)` before an operation is issued.

        `args` is of the operation's class, such as `AllReducePreHookArgs`. An exception reaches the
        caller of the operation, which is not issued. Hooks run in the order of registration, on the
        caller's thread; they may call operations, register and remove.
        """
    def register_post_hook(self, hook: Callable[[int, Any], object]) -> RemovableHandle:
        """Calls `hook(op_id, args)` when an operation was issued; a synchronous one is over then.

        `args` is of the operation's class, such as `AllReducePostHookArgs`. An exception reaches
        the caller of the operation, which goes on.
        """
    def register_abort_hook(self, hook: Callable[[], object]) -> RemovableHandle:
        """Calls `hook()` before the communicator is given up: in `abort`, when it has failed, and
        before a failure ends the process. May be called more than once and on any thread.
        """
    def all_gather_p_init(
        self,
        output: Tensor,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> AllGatherHandle:
        """A persistent `all_gather_single` into `output`, which is checked once.

        Hints and time-out are those of its calls that give none.
        """
    def all_gather_p_exec(
        self,
        handle: AllGatherHandle,
        input: Tensor,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Gathers the ranks' `input`s into the handle's output."""
    def all_gather_p_free(self, handle: AllGatherHandle) -> None:
        """Ends the handle; what it issued goes on."""
    def get_mem_allocator(self) -> MemAllocator:
        """See `torchcomms.get_mem_allocator`."""
    @property
    def mem_allocator(self) -> MemAllocator: ...
    def get_sequence(self) -> int:
        """Collectives issued so far."""
    def get_timeout(self) -> timedelta: ...
    def set_timeout(self, timeout: timedelta) -> None:
        """Default limit of the operations issued from now on."""
    def is_abort_supported(self) -> bool: ...
    def is_aborted(self) -> bool: ...
    def state(self) -> str:
        """`ready`, `failed`, `aborted`, `finalized`, or `unconfigured` without members."""
    def error(self) -> str:
        """Cause of `failed`; empty otherwise."""
    def info(self) -> str:
        """JSON: name, engine, rank, size, state, transport, and count and bytes by operation."""
    def finalize(self) -> None:
        """Waits for what is pending and ends the communicator; again does nothing."""
    def abort(self) -> None:
        """Ends what is pending with an error, from any thread; again does nothing."""
    def get_init_handle(self) -> str:
        """By what other processes reach this communicator, to be handed to them in any way.

        For one made with `enable_reconfigure=True`. It stays valid until the communicator is
        finalized, but says which rank it has now: ask again before ranks are chosen by a set.
        """
    @overload
    def reconfigure(
        self,
        uuid: int,
        init_handles: Sequence[str] | Set[str],
        timeout: timedelta | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> TorchWork:
        """Gives the communicator its members, or other ones; every member calls it alike.

        In a list the rank is the position; of a set the engine makes an order, the same on all
        members. `uuid` is a number that was never used on this communicator. Legal in every state
        but `finalized`; what is pending fails. Until the work is complete nothing can be issued.
        Where it fails it fails on all members that came, and says who did not or what differs; the
        communicator has then failed, and can be reconfigured. Raises ValueError, and changes
        nothing, for a uuid that was used and for handles without this communicator's own.
        """
    @overload
    def reconfigure(self, options: ReconfigureOptions) -> TorchWork: ...
    def split(
        self,
        ranks: Sequence[int],
        name: str = "",
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchComm | None:
        """Communicator of `ranks`, in that order. Every rank calls; one outside gets None.

        It has the hints of this one, and before them those given here, which are the same on all
        ranks: the engine reads them. `timeout` is that of the new one, else this one's.
        """
    def suspend(self) -> None:
        """Gives up what device memory can be taken again, until `resume`; every rank calls it.

        Raises `NotImplementedError` where the engine or its library cannot.
        """
    def resume(self) -> None:
        """Takes that memory again; every rank calls it."""
    def memory_stats(self) -> dict[str, int]:
        """Bytes of the device: `suspend`, `persist` and `total`; `suspended` is 1 or 0."""
    def get_nccl_comm_ptr(self) -> int:
        """The `ncclComm_t`, borrowed, for `torch.distributed._symmetric_memory` and the like."""
    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Registers the memory that a `torch.cuda.MemPool` has now; the communicator keeps it."""
    def deregister_mem_pool(self, pool: Any) -> None:
        """Takes that back, as the end of the communicator does."""
    def _register_memory(self, address: int, bytes: int, owner: Any) -> None: ...
    def _deregister_memory_of(self, owner: Any) -> int: ...
    def __copy__(self) -> TorchComm: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> TorchComm: ...
    def broadcast(
        self,
        tensor: Tensor,
        root: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """`tensor` of rank `root` to all, in place."""
    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp | _C10dReduceOp | _C10dReduceOp.RedOpType,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Combines the ranks' `tensor`s, in place, the same bits everywhere."""
    def reduce(
        self,
        tensor: Tensor,
        root: int,
        op: ReduceOp | _C10dReduceOp | _C10dReduceOp.RedOpType,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """As `all_reduce`, but only `root`'s tensor is changed."""
    def all_gather(
        self,
        tensor_list: Sequence[Tensor],
        tensor: Tensor,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """`tensor_list[r]` receives rank r's `tensor`."""
    def all_gather_v(
        self,
        tensor_list: Sequence[Tensor],
        tensor: Tensor,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """As `all_gather`, with sizes that differ between ranks."""
    def all_gather_single(
        self,
        output: Tensor,
        input: Tensor,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """`output` holds the ranks' `input`s one after another."""
    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: ReduceOp | _C10dReduceOp | _C10dReduceOp.RedOpType,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Combines `input_list[r]` of all ranks into rank r's `output`."""
    def reduce_scatter_v(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: ReduceOp | _C10dReduceOp | _C10dReduceOp.RedOpType,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """As `reduce_scatter`, with sizes that differ between ranks."""
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: ReduceOp | _C10dReduceOp | _C10dReduceOp.RedOpType,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """As `reduce_scatter` with one tensor of `size` equal parts."""
    def all_to_all(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor_list: Sequence[Tensor],
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Entry r of the inputs goes to rank r; sizes may differ."""
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """As `all_to_all` with `size` equal parts along the first dimension."""
    def all_to_all_v_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """As `all_to_all_single` with parts of these sizes along the first dimension."""
    def scatter(
        self,
        output_tensor: Tensor,
        input_tensor_list: Sequence[Tensor],
        root: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Entry r of `root`'s list goes to rank r; the list is empty elsewhere."""
    def gather(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor: Tensor,
        root: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Entry r of `root`'s list receives rank r's tensor; the list is empty elsewhere."""
    def gather_single(
        self,
        output: Tensor,
        input: Tensor,
        root: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """`root`'s `output` holds the ranks' `input`s one after another."""
    def barrier(
        self,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """Complete when every rank has called it."""
    def send(
        self,
        tensor: Tensor,
        dst: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """To rank `dst`."""
    def recv(
        self,
        tensor: Tensor,
        src: int,
        async_op: bool = False,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchWork:
        """From rank `src`, into `tensor`; -1: from any, which the work's `source_rank` says."""
    def new_window(
        self,
        tensor: Tensor | None = None,
        hints: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
    ) -> TorchCommWindow:
        """A window, of `tensor` where there is one: then it is a collective.

        Hints are those of `TorchCommWindow.tensor_register`, and of the communicator.
        """
    def batch_op_create(self) -> BatchSendRecv:
        """An empty batch of sends and receives."""

class _BackendWrapper(Backend):
    def __init__(self, comm: TorchComm, name: str = "") -> None: ...
    def get_comm(self) -> TorchComm:
        """The very object it was made with."""
    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """As `TorchComm.register_mem_pool`."""
    def deregister_mem_pool(self, pool: Any) -> None:
        """As `TorchComm.deregister_mem_pool`."""

_built_for_torch: str

def _new_comm(
    backend: str,
    device: torch.device,
    name: str,
    store: Store,
    rank: int,
    size: int,
    timeout_ms: int,
    hints: Mapping[str, str],
) -> TorchComm: ...
def _foreign_comm(
    implementation: Any,
    backend: str,
    device: torch.device,
    name: str,
    timeout: timedelta,
    hints: Mapping[str, str],
) -> TorchComm: ...
def _new_unconfigured_comm(
    backend: str,
    device: torch.device,
    name: str,
    rank: int,
    size: int,
    timeout_ms: int,
    hints: Mapping[str, str],
) -> TorchComm: ...
def _mem_allocator(backend: str) -> MemAllocator: ...
def _engine_info() -> str: ...
def _locate_nccl(path: str | None) -> None: ...
def _recorder_dump(max_entries: int, only_active: bool) -> str: ...
def _recorder_reset() -> None: ...
def _register_backend_name(name: str) -> None: ...
def _is_backend_registered(name: str) -> bool: ...
def _set_log_callback(callback: Callable[[int, str, str], object] | None, level: int) -> None: ...

"""Programs of programs.py: the profiler, graphs, and training."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from programs_common import (
    OURS,
    RANK,
    SIZE,
    device,
    empty,
    join,
    made,
    program,
    seen,
)

# Names that torch's own backend takes from its functions.
PROFILED = {
    "allGatherSingleImpl": "all_gather_single",
    "reduceScatterSingleImpl": "reduce_scatter_single",
    "allToAllSingleImpl": "all_to_all_single",
}


def profiled_calls() -> None:
    tensor, whole, part = made([1.0] * 2 * SIZE), empty(2 * SIZE * SIZE), empty(2)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.broadcast(tensor, 1)
    dist.reduce(tensor, 1)
    dist.all_gather_into_tensor(whole, tensor)
    dist.reduce_scatter_tensor(part, tensor)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    dist.barrier()
    if RANK == 0:
        dist.send(tensor, 1)
    elif RANK == 1:
        dist.recv(tensor, 0)


@program
def profiled() -> Any:
    """torch's profiler is told of the same operations, with the same arguments."""
    from torch.profiler import ProfilerActivity, profile

    join()
    profiled_calls()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        profiled_calls()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        with open(f"{folder}/trace.json") as file:
            events = json.load(file)["traceEvents"]
    fields = ["Seq", "Rank", "In msg nelems", "Out msg nelems", "dtype", "Group size"]
    fields += ["Process Group Name", "In split size", "Out split size"]
    found = []
    for event in events:
        facts = event.get("args", {})
        name = facts.get("Collective name", "wait")
        if event.get("name") != "record_param_comms" or name == "wait":
            continue
        call: dict[str, Any] = {"name": PROFILED.get(name, name), "dims": facts["Input Dims"][0]}
        call |= {field: facts.get(field) for field in fields}
        if name in ("send", "recv"):
            del call["Seq"]  # torch's own does not count them
        found.append(call)
    assert len(found) == (9 if RANK < 2 else 8), found
    if OURS:
        spans = [event["name"] for event in events if event.get("name", "").startswith("nccl:")]
        assert spans.count("nccl:all_reduce") == 2, spans
    dist.destroy_process_group()
    return found


# ---- graphs


@program
def graphs() -> Any:
    join()
    tensor, beside = made([1.0] * 4), made([2.0] * 4)
    gathered = empty(4 * SIZE)
    dist.all_reduce(made([0.0]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor)
        work = dist.all_reduce(beside, async_op=True)
        work.wait()
        # Nobody else holds this one; the graph does.
        dist.all_gather_into_tensor(gathered, torch.empty_like(tensor).copy_(tensor))
    del work
    gc.collect()
    assert seen(tensor) == [1.0] * 4
    for _ in range(3):
        graph.replay()
    # Operations outside go on beside the graph.
    again = made([1.0])
    dist.all_reduce(again)
    torch.cuda.synchronize()
    assert seen(tensor) == [float(SIZE**3)] * 4
    assert seen(beside) == [2.0 * SIZE**3] * 4
    assert seen(gathered) == [float(SIZE**3)] * 4 * SIZE
    assert seen(again) == [float(SIZE)]
    del graph
    gc.collect()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return seen(gathered)


# ---- training


def trained(wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> Any:
    """Three steps of a small model on this rank's part of the data: losses and weights."""
    from simops import SimOps
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_leaves

    class Ops(SimOps):
        """Leaves a sharded tensor to its own class, which comes back with the parts, and fakes."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, FakeTensor):
                    return function(*args, **(kwargs or {}))
                if is_traceable_wrapper_subclass(leaf):
                    return NotImplemented
            return super().__torch_dispatch__(function, types, args, kwargs)

    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
    batch = torch.randn(3, 4 * SIZE, 8)[:, 4 * RANK : 4 * RANK + 4]
    with Ops():
        model = wrap(torch.nn.Sequential(*layers).to(device()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in batch:
            loss = model(step.to(device())).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        weights = [
            parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            for parameter in model.parameters()
        ]
        found = [seen(weight.detach().flatten()) for weight in weights]
    return [losses, found]


@program
def data_parallel() -> Any:
    join()
    found = trained(lambda model: torch.nn.parallel.DistributedDataParallel(model))
    dist.destroy_process_group()
    return found


@program
def fully_sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    join()

    def shard(model: torch.nn.Module) -> torch.nn.Module:
        for layer in (model[0], model[2]):
            fully_shard(layer)
        return fully_shard(model)

    # On the simulator torch's own backend is not always right here, so it is no reference; the
    # same training without shards is.
    if OURS:
        losses, weights = trained(shard)
        torch.cuda.synchronize()
        wholly = trained(lambda model: torch.nn.parallel.DistributedDataParallel(model))
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(wholly[0]))
        for ours, theirs in zip(weights, wholly[1], strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))
    dist.destroy_process_group()
    return None

"""The c10d face: what torch.distributed gives on the engine and on stock gloo, side by side."""

from __future__ import annotations

import warnings
from datetime import timedelta

import collectives
import pytest
import torch
import torch.distributed as dist
from ranks import Rank
from torch.distributed import config


def same_as_stock(me: Rank) -> tuple[int, set[str]]:
    me.world()
    config.use_torchcomms = False
    found = collectives.compare(dist.group.WORLD, dist.new_group(backend="gloo"))
    assert not found.differences, found.differences[:5]
    dist.destroy_process_group()
    return found.compared, {name.split()[0] for name in found.refused_by_stock}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_collective_gives_what_stock_gives(job_over, size):
    for compared, _ in job_over(same_as_stock, size, limit=120):
        assert compared > 1000


def same_as_stock_without_the_switch(me: Rank) -> None:
    config.use_torchcomms = False
    me.world("cpu:ferrocomm", switch=False)
    import torchcomms

    (group,) = torchcomms.engine_info()["groups"]
    assert group["served_by"] == "ferrocomm"
    assert group["communicator"]["engine"] == "host"
    stock = dist.new_group(backend="gloo")
    found = collectives.compare(dist.group.WORLD, stock)
    assert not found.differences, found.differences[:5]
    dist.destroy_process_group()


def test_plugin_name_needs_no_switch(job):
    job(same_as_stock_without_the_switch, 2)


def bare_plugin_name(me: Rank) -> None:
    me.world("ferrocomm", switch=False)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0, 2.0, 2.0]
    group = dist.new_group()
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [4.0, 4.0, 4.0]
    dist.destroy_process_group()


def test_bare_plugin_name(job):
    job(bare_plugin_name, 2)


def futures(me: Rank) -> None:
    me.world()
    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    seen = []
    chained = future.then(lambda f: seen.append(f.value()) or f.value()[0] * 2)
    assert chained.wait().tolist() == [4.0] * 5
    assert len(seen) == 1
    assert seen[0][0].data_ptr() == tensor.data_ptr()
    assert work.is_completed()
    assert work.is_success()
    assert work.result()[0].data_ptr() == tensor.data_ptr()
    # the work is dropped before it is done: the future still completes, once, with the output
    out = torch.zeros(2 * me.size)
    future = dist.all_gather_into_tensor(out, torch.ones(2), async_op=True).get_future()
    assert future.wait()[0].data_ptr() == out.data_ptr()
    assert out.unique().tolist() == [1.0]
    dist.destroy_process_group()


def test_futures_carry_the_outputs(job_over):
    job_over(futures, 2)


def dropped_work(me: Rank) -> None:
    """Nobody keeps the work or the tensor, and still it moves."""
    me.world()
    for _ in range(20):
        dist.all_reduce(torch.ones(100_000), async_op=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2.0
    dist.destroy_process_group()


def test_a_dropped_work_goes_on(job_over):
    job_over(dropped_work, 2)


def coalesced(me: Rank) -> None:
    me.world()
    tensors = [torch.full((n,), float(n)) for n in (1, 7, 4096)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [t.unique().tolist() for t in tensors] == [[2.0], [14.0], [8192.0]]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[0].item() == 4.0
    mixed = [torch.ones(3), torch.ones(2, dtype=torch.float32)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_reduce_coalesced(mixed)
    assert [t.unique().tolist() for t in mixed] == [[2.0], [2.0]]
    outputs = [torch.zeros(2 * n) for n in (3, 5)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // 2,), 1.0 + me.rank))
    for output in outputs:
        half = output.numel() // 2
        assert output.tolist() == [1.0] * half + [2.0] * half
    dist.destroy_process_group()


def test_coalescing(job):
    job(coalesced, 2)


def premultiplied(me: Rank) -> None:
    """FSDP2 asks for PREMUL_SUM when a divide factor is set; stock gloo refuses it."""
    me.world()
    op = dist._make_nccl_premul_sum(0.5)
    tensor = torch.full((4,), 2.0 * (me.rank + 1))
    dist.all_reduce(tensor, op)
    assert tensor.tolist() == [3.0] * 4
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, tensor, op)
    assert out.tolist() == [3.0] * 2
    dist.destroy_process_group()


def test_premul_sum(job):
    job(premultiplied, 2)


def inference(me: Rank) -> None:
    me.world()
    with torch.inference_mode():
        mine = torch.full((3,), float(me.rank))
        gathered = [torch.empty(3) for _ in range(2)]
        dist.all_gather(gathered, mine)
        assert [t[0].item() for t in gathered] == [0.0, 1.0]
        out = torch.empty(3)
        dist.reduce_scatter(out, [mine.clone(), mine.clone()])
        assert out.tolist() == [1.0] * 3
        dist.gather(mine, gathered if me.rank == 0 else None)
        dist.broadcast(mine, 1)
        assert mine.tolist() == [1.0] * 3
        # strided outputs are written back through inference tensors too
        column = torch.zeros(3, 2)[:, 0]
        dist.broadcast(column, 0)
        dist.all_reduce(column, async_op=True).wait()
    dist.destroy_process_group()


def test_inference_mode(job):
    job(inference, 2)


def bad_input(me: Rank) -> None:
    me.world()
    bad = [
        lambda: dist.broadcast(torch.ones(2), 9),
        lambda: dist.all_gather([torch.ones(2)], torch.ones(2)),
        lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)),
        lambda: dist.all_to_all_single(torch.ones(5), torch.ones(5)),
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [-1, 5], [-1, 5]),
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 2], [1, 2]),
        lambda: dist.reduce_scatter(torch.ones(2), [torch.ones(2)]),
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        lambda: dist.gather(torch.ones(2), [torch.ones(2)] if me.rank == 0 else None),
        lambda: dist.scatter(torch.ones(2), [torch.ones(2)] if me.rank == 0 else None),
        lambda: dist.send(torch.ones(2), 1 - me.rank, tag=-1),
    ]
    # a root alone can see that its list is too short; the others must not be left waiting
    rooted = (8, 9)
    for number, call in enumerate(bad):
        if number in rooted and me.rank != 0:
            continue
        try:
            call()
        except (ValueError, RuntimeError, TypeError):
            pass
        else:
            pytest.fail(f"bad call {number} was accepted")
        if number in rooted:
            continue
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2.0, number
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2.0
    dist.destroy_process_group()


def test_bad_input_leaves_the_group_usable(job_over):
    job_over(bad_input, 2)


def late_ranks(me: Rank) -> None:
    me.world(timeout=20)
    if me.rank in (1, 3):
        return
    limit = timedelta(seconds=1)
    if me.rank == 0:
        with pytest.raises(RuntimeError, match=r"\b1\b.*\b3\b"):
            dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
    else:
        with pytest.raises(RuntimeError):
            dist.monitored_barrier(timeout=limit, wait_all_ranks=True)


def test_monitored_barrier_names_all_that_are_late(job):
    job(late_ranks, 4)


def first_late_rank(me: Rank) -> None:
    me.world(timeout=20)
    dist.monitored_barrier()
    if me.rank == 0:
        with pytest.raises(RuntimeError, match=r"\b1\b"):
            dist.monitored_barrier(timeout=timedelta(seconds=1))


def test_monitored_barrier_names_the_first_that_is_late(job):
    job(first_late_rank, 2)


def sequence_numbers(me: Rank) -> None:
    me.world()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2
    assert backend.name() == "gloo"
    dist.destroy_process_group()


def test_sequence_numbers(job):
    job(sequence_numbers, 2)


def beside_the_recorder(me: Rank) -> None:
    """torch's recorder numbers operations per process; a communicator of ours must not trip it."""
    me.world()
    comm = me.comm("beside")
    import torchcomms

    for _ in range(3):
        dist.all_reduce(torch.ones(4))
        comm.all_reduce(torch.ones(4), torchcomms.ReduceOp.SUM)
        dist.barrier()
    comm.finalize()
    dist.destroy_process_group()


def test_a_communicator_between_collectives_of_a_group(job):
    env = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}
    job(beside_the_recorder, 2, env=env)


def detail_mode(me: Rank) -> None:
    dist.set_debug_level_from_env()
    me.world()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0, 2.0]
    dist.destroy_process_group()


def test_debug_detail(job):
    job(detail_mode, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})

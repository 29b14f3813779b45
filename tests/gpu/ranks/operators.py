"""One process that runs torch's operators on simulated tensors."""

import simgpu
import torch
from simops import SimOps


def expect_failure(kind: type[Exception], text: str, run: object) -> None:
    try:
        run()  # type: ignore[operator]
    except kind as failure:
        if text not in str(failure):
            raise AssertionError(f"the failure does not say {text!r}") from failure
    else:
        raise AssertionError(f"no {kind.__name__}")


def same(tensor: torch.Tensor, expected: list[float]) -> None:
    got = tensor.cpu().tolist()
    if got != expected:
        raise AssertionError(f"got {got}, expected {expected}")


def kernels_are_refused() -> None:
    tensor = torch.tensor([1.0, 2.0]).cuda()
    expect_failure(RuntimeError, "not simulated", lambda: tensor + 1)
    same(tensor, [1, 2])


def in_stream_order() -> None:
    tensor = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    gate = simgpu.Gate(side)
    with torch.cuda.stream(side):
        tensor.fill_(5)
        doubled = tensor * 2
    same(tensor, [0, 0])
    gate.open()
    torch.cuda.current_stream().wait_stream(side)
    same(tensor, [5, 5])
    same(doubled, [10, 10])


def a_slow_kernel_is_waited_for() -> None:
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    event = torch.cuda.Event()
    simgpu.sleep(200)
    simgpu.write_word(word, 7)
    event.record()
    if event.query():
        raise AssertionError("the event is there before the slow kernel")
    event.synchronize()
    same(word, [7])


def captured() -> None:
    tensor = torch.ones(2, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.mul_(3)
    same(tensor, [1, 1])
    graph.replay()
    graph.replay()
    same(tensor, [9, 9])


def shapes_that_data_decides() -> None:
    tensor = torch.tensor([0.0, 3.0, 0.0, 4.0], device="cuda")
    same(torch.nonzero(tensor).flatten(), [1, 3])
    if tensor.sum().item() != 7 or not torch.allclose(tensor, tensor.clone()):
        raise AssertionError("a scalar is wrong")


def parts_keep_their_memory() -> None:
    tensor = torch.arange(6.0, device="cuda").view(2, 3)
    same(tensor.t().contiguous().flatten(), [0, 3, 1, 4, 2, 5])
    tensor.t()[0] += 10
    same(tensor.flatten(), [10, 1, 2, 13, 4, 5])
    same(tensor.to(torch.bfloat16).sum(dim=0), [23, 5, 7])


def trains() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    twin = torch.nn.Linear(3, 1, device="cuda")
    twin.load_state_dict(model.state_dict())
    data = torch.randn(5, 3)
    for one, batch in ((model, data), (twin, data.cuda())):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            one(batch).pow(2).mean().backward()
            optimizer.step()
    torch.testing.assert_close(twin.weight.detach().cpu(), model.weight.detach())


def a_failure_in_the_stream_is_raised() -> None:
    indices = torch.tensor([7], device="cuda")
    torch.index_select(torch.zeros(2, device="cuda"), 0, indices)
    torch.cuda.synchronize()
    expect_failure(RuntimeError, "failed on its stream", lambda: indices + 1)


def memory_ends() -> None:
    expect_failure(RuntimeError, "out of memory", lambda: torch.empty(1 << 40, device="cuda"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    kernels_are_refused()
    with SimOps():
        in_stream_order()
        a_slow_kernel_is_waited_for()
        captured()
        shapes_that_data_decides()
        parts_keep_their_memory()
        trains()
        a_failure_in_the_stream_is_raised()
        memory_ends()
    print("done", flush=True)

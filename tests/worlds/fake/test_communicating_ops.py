"""Custom ops that communicate inside send on fake tensors what they send on tensors with memory.

Modules: ``worlds/fake/fake_dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dsexplore._internal.capture.record import record
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.fake.fake_dispatch import communicating_implementation
from dsexplore._internal.worlds.simulate import simulate


def over_ranks(x: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))


@torch.library.custom_op("dsexplore_tests::summed", mutates_args=())
def summed(x: torch.Tensor) -> torch.Tensor:
    """Call a function that communicates."""
    return over_ranks(x)


@torch.library.custom_op("dsexplore_tests::by_name", mutates_args=())
def by_name(x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    torch.distributed.all_reduce(made)
    return made


@torch.library.custom_op("dsexplore_tests::chosen", mutates_args=())
def chosen(x: torch.Tensor) -> torch.Tensor:
    """Fail before the call of a function that communicates."""
    raise AssertionError(f"ran on fake tensors: {x.gather(0, x).shape}, {over_ranks.__name__}")


@torch.library.custom_op("dsexplore_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError(f"ran on fake tensors, of which {dist.get_rank()} is the rank")


for op in (summed, by_name, chosen, doubled):
    op.register_fake(torch.empty_like)


def of_context_parallel(device: str) -> None:
    ops = pytest.importorskip(
        "torch.distributed.tensor.experimental._context_parallel._cp_custom_ops",
        reason="context parallelism of torch 2.9 has no ops of its own",
    )
    key, value = (torch.ones(1, 2, 8, 4, device=device, requires_grad=True) for _ in range(2))
    keys, values = ops.flex_cp_allgather(key, value, 2, dist.group.WORLD.group_name)
    assert keys.shape == (1, 2, 32, 4)
    (keys.sum() + values.sum()).backward()
    assert key.grad is not None
    assert (key.grad.shape, key.grad.device.type) == (key.shape, device)


def of_users(device: str) -> None:
    for op in (summed, by_name):
        made = op(torch.ones(3, device=device))
        assert (made.shape, made.device.type) == ((3,), device)


def sent(calls: Callable[[str], None], device: str, *, fake: bool) -> Trace:
    with simulate(4, fake=fake, hardware="h100" if device == "cuda" else None), record() as trace:
        calls(device)
    return trace


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("calls", "ops"),
    [(of_context_parallel, ["all_gather"] * 2 + ["reduce_scatter"] * 2), (of_users, ["all_reduce"] * 2)],
)
def test_what_they_send_is_recorded(calls: Callable[[str], None], ops: list[str], device: str) -> None:
    fake, real = sent(calls, device, fake=True), sent(calls, device, fake=False)
    columns = ["op", "message_bytes", "dtype", "shape", "phase", "cause", "source", "is_async"]
    assert fake.events["op"].to_list() == ops
    assert fake.events.select(columns).equals(real.events.select(columns))


def overload(definition: Any) -> Any:
    return definition._opoverload


def test_other_ops_are_described() -> None:
    assert communicating_implementation(torch.ops.aten.add.Tensor) is None
    assert communicating_implementation(overload(doubled)) is None
    with simulate(4, fake=True), record() as trace:
        assert doubled(torch.ones(3)).shape == (3,)
    assert len(trace) == 0


def test_an_op_that_fails_on_fake_tensors_says_so() -> None:
    assert communicating_implementation(overload(chosen)) is not None  # for its names: what it does shows as it runs
    with simulate(4, fake=True), pytest.raises(AssertionError, match="ran on fake tensors"):
        chosen(torch.zeros(3, dtype=torch.long))

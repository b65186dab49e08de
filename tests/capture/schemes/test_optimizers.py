"""Optimizer steps and gradient clipping on DTensors.

Modules: ``capture/optimizer_steps.py``, ``capture/stack/stack_reading.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.names import torch_at_least

FORMS: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]
LAYERS = 2
NORMS_ARE_REDUCED = torch_at_least("2.10")
"""Whether the norms of sharded gradients are reduced one by one; torch 2.9 reduces the norm of all of them."""


class Parts(nn.Module):
    """Parameters of odd sizes, each a DTensor with a gradient that is partial over tp."""

    def __init__(self, mesh: DeviceMesh, count: int) -> None:
        super().__init__()
        self.mesh = mesh
        for index in range(count):
            whole = distribute_tensor(torch.ones(3 + index), mesh, [Replicate()])
            self.register_parameter(f"p{index}", nn.Parameter(whole))

    def set_gradients(self) -> None:
        for parameter in self.parameters():
            parameter.grad = DTensor.from_local(torch.ones(parameter.shape), self.mesh, [Partial()], run_check=False)


@pytest.mark.parametrize(
    ("optimizer", "form"),
    [*((torch.optim.AdamW, form) for form in FORMS), *((torch.optim.SGD, form) for form in FORMS[:2])],
    ids=str,
)
def test_steps_on_shards_communicate_nothing(
    world: Callable[..., DeviceMesh],
    llama: Any,
    tokens: torch.Tensor,
    optimizer: Any,
    form: dict[str, bool],
) -> None:
    """FSDP2's gradients are shards like its parameters: no collective in the step."""
    model = llama(LAYERS)
    mesh = world("dp=4")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    stepper = optimizer(model.parameters(), lr=0.1, **form)
    model(tokens).sum().backward()
    with record() as trace:
        stepper.step()
    assert len(trace) == 0


@pytest.mark.parametrize("form", FORMS[:2], ids=str)  # torch's fused SGD takes no DTensor
def test_partial_gradients_are_reduced_by_the_step(
    world: Callable[..., DeviceMesh], totals: Any, column: Any, form: dict[str, bool]
) -> None:
    """SGD, k parameters with partial gradients: the update of each redistributes its gradient once, which is k
    all_reduce of the parameters' bytes, of phase optimizer, implicit, outside any module."""
    mesh = world("tp=4")
    model = Parts(mesh, 3)
    model.set_gradients()
    stepper = torch.optim.SGD(model.parameters(), lr=0.1, **form)
    with record() as trace:
        stepper.step()
    assert totals(trace, "phase", "op", "axis") == {("optimizer", "all_reduce", "tp"): (3, 4 * (3 + 4 + 5))}
    assert column(trace, "trigger", "implicit") == [("", True)] * 3
    assert all("P→R" in cause for cause in column(trace, "cause"))


def test_sequence_parallel_norms(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any
) -> None:
    """AdamW on a norm whose gradient is partial reads it three times (weight decay aside): 3 all_reduce of D·e for
    each of the block's 2 norms."""
    mesh = world("tp=4")
    model = parallelize_module(block(), mesh, {"norm1": SequenceParallel(), "norm2": SequenceParallel()})
    norms = [model.norm1, model.norm2]
    for norm in norms:
        norm(torch.ones(sizes.batch, 2, sizes.d)).sum().backward()
    stepper = torch.optim.AdamW([norm.weight for norm in norms], foreach=False)
    with record() as trace:
        stepper.step()
    assert totals(trace, "phase", "op") == {("optimizer", "all_reduce"): (6, 6 * sizes.d * sizes.float)}


@pytest.mark.parametrize("foreach", [False, True])
def test_clipping_sharded_gradients(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any, column: Any, foreach: bool
) -> None:
    """Clipping k sharded gradients makes one vector of k partial norms: 1 all_reduce of k·e, outside backward."""
    mesh = world("dp=4")
    model = llama(LAYERS)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(tokens).sum().backward()
    with record() as trace:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
    norms = len(list(model.parameters())) if NORMS_ARE_REDUCED else 1
    assert totals(trace, "phase", "op", "axis") == {("other", "all_reduce", "dp"): (1, 4 * norms)}
    cause = "linalg_vector_norm" if NORMS_ARE_REDUCED else "reciprocal"
    assert column(trace, "implicit", "cause") == [(True, f"aten.{cause} P→R")]
    assert "test_optimizers.py:" in column(trace, "source")[0]


def test_clipping_on_two_axes(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any
) -> None:
    """TP and FSDP2 together: k partial norms, reduced over each axis that they are partial on: 2 all_reduce of k·e."""
    mesh = world("dp=2,tp=4")
    plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
    model = parallelize_module(block().mlp, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    model(torch.ones(sizes.tokens, sizes.d)).sum().backward()
    with record() as trace:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norms = 3 if NORMS_ARE_REDUCED else 1
    assert totals(trace, "op", "axis") == {("all_reduce", axis): (1, 4 * norms) for axis in ("dp", "tp")}


def test_a_step_inside_backward(world: Callable[..., DeviceMesh], totals: Any) -> None:
    """Optimizers that step in a gradient hook have the phase optimizer, although backward runs."""
    mesh = world("tp=4")
    model = Parts(mesh, 1)
    stepper = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    trigger = torch.ones(2, requires_grad=True)

    def step(_gradient: torch.Tensor) -> None:
        model.set_gradients()
        stepper.step()

    trigger.register_hook(step)
    with record() as trace:
        (trigger * 2).sum().backward()
    assert set(totals(trace, "phase")) == {"optimizer"}

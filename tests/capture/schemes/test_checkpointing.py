"""Activation checkpointing: what runs again in backward is of phase recompute, in its own module.

Modules: ``capture/stack/stack_reading.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from dsexplore._internal.capture.record import record

WIDTH = 6


class Reducing(nn.Module):
    """Communicates in its forward; what follows needs a saved tensor, so recomputation reaches the collective."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        dist.all_reduce(y.detach().clone())
        return y.sin()


class Model(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = Reducing(), Reducing()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return x


class Helper(nn.Module):
    """Checkpoints a function of its own, so that no module's forward is on the stack when it runs again."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y.detach().clone())
        return y.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def example() -> torch.Tensor:
    return torch.ones(3, WIDTH, requires_grad=True)


both = pytest.mark.parametrize("reentrant", [False, True])


@both
def test_recomputed_collectives(world: Callable[..., DeviceMesh], column: Any, reentrant: bool) -> None:
    """Each module's all-reduce once forward and once more in backward, last module first."""
    world("dp=4")
    model = Model(reentrant)
    with record() as trace:
        model(example()).sum().backward()
    assert column(trace, "phase", "trigger", "message_bytes") == [
        ("forward", "Model.first", 3 * WIDTH * 4),
        ("forward", "Model.second", 3 * WIDTH * 4),
        ("recompute", "Model.second", 3 * WIDTH * 4),
        ("recompute", "Model.first", 3 * WIDTH * 4),
    ]
    assert dict(trace.modules.select("module", "calls").iter_rows()) == {
        "Model": 1,
        **{f"Model.{part}{inner}": 2 for part in ("first", "second") for inner in ("", ".linear")},
    }


@both
def test_a_function_of_the_module_itself(world: Callable[..., DeviceMesh], column: Any, reentrant: bool) -> None:
    world("dp=4")
    model = nn.Sequential(Helper(reentrant), nn.ReLU())
    with record() as trace:
        model(example()).sum().backward()
    assert column(trace, "phase", "trigger") == [("forward", "Sequential.0"), ("recompute", "Sequential.0")]


def test_a_function_outside_any_module(world: Callable[..., DeviceMesh], column: Any) -> None:
    world("dp=4")
    function = Helper(reentrant=False).inner
    with record() as trace:
        checkpoint(function, example(), use_reentrant=False).sum().backward()
    assert column(trace, "phase", "trigger") == [("other", ""), ("recompute", "")]


def test_backward_collectives_after_recomputation(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any
) -> None:
    """A tensor-parallel block, checkpointed: forward 2 all-reduces of A = B·T·D·e, backward 5. Recomputation stops
    before the output of w2, whose value nobody needs: it repeats 1 of the 2."""
    mesh = world("tp=4")
    columns = ("attn.wq", "attn.wk", "attn.wv", "mlp.w1", "mlp.w3")
    plan = {**dict.fromkeys(columns, ColwiseParallel()), "attn.wo": RowwiseParallel(), "mlp.w2": RowwiseParallel()}
    model = checkpoint_wrapper(parallelize_module(block(), mesh, plan))
    with record() as trace:
        model(torch.ones(sizes.batch, sizes.seq, sizes.d, requires_grad=True)).sum().backward()
    size = sizes.tokens * sizes.d * sizes.float
    found = totals(trace, "phase", "op", "owner")
    assert found == {
        ("forward", "all_reduce", "Block.attn.wo"): (1, size),
        ("forward", "all_reduce", "Block.mlp.w2"): (1, size),
        ("recompute", "all_reduce", "Block.attn.wo"): (1, size),
        **{("backward", "all_reduce", f"Block.{name}"): (1, size) for name in columns},
    }


def test_nested_checkpoints(world: Callable[..., DeviceMesh], totals: Any) -> None:
    """A checkpoint within a checkpoint: the inner part runs forward, again for the outer, and again for itself."""
    world("dp=4")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = checkpoint_wrapper(Reducing())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).cos()

    model = checkpoint_wrapper(Outer())
    with record() as trace:
        model(example()).sum().backward()
    counts = {key: count for key, (count, _) in totals(trace, "phase", "trigger").items()}
    assert counts == {("forward", "Outer.inner"): 1, ("recompute", "Outer.inner"): 2}


def test_checkpoint_sequential(world: Callable[..., DeviceMesh], totals: Any) -> None:
    """4 modules in 2 segments; only the first segment is checkpointed by torch, so 2 of 4 all-reduces repeat."""
    world("dp=4")
    model = nn.Sequential(*(Reducing() for _ in range(4)))
    with record() as trace:
        checkpoint_sequential(model, 2, example(), use_reentrant=False).sum().backward()
    counts = {phase: count for phase, (count, _) in totals(trace, "phase").items()}
    assert counts == {"forward": 4, "recompute": 2}


def test_a_trace_opened_for_backward_alone(world: Callable[..., DeviceMesh], column: Any) -> None:
    """Recomputed collectives have their phase and module although the forward ran before the recording."""
    world("dp=4")
    model = Model(reentrant=False)
    output = model(example()).sum()
    with record() as trace:
        output.backward()
    assert [(phase, name.rpartition(".")[2]) for phase, name in column(trace, "phase", "trigger")] == [
        ("recompute", "Reducing"),
        ("recompute", "Reducing#2"),
    ]

"""DTensor redistribution: which collectives, over which axis, of how many bytes, and who asked for it.

Modules: ``capture/stack/stack_reading.py``.

Symbols: N the bytes of the whole tensor; dp = 2, tp = 4 ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.names import torch_at_least

ROWS, COLUMNS = 16, 24
N = ROWS * COLUMNS * 4
R, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)


def tensor(mesh: DeviceMesh, *placements: Any) -> DTensor:
    """Return a tensor of 16 × 24 with those placements."""
    shape = [ROWS, COLUMNS]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            shape[placement.dim] //= mesh.size(axis)
    return DTensor.from_local(torch.ones(shape), mesh, placements, run_check=False)


@pytest.mark.parametrize(
    ("before", "after", "expected", "change"),
    [
        ((S0,), (R,), [("all_gather", "tp", N)], "S(0)→R"),
        ((S1,), (R,), [("all_gather", "tp", N)], "S(1)→R"),
        ((P,), (R,), [("all_reduce", "tp", N)], "P→R"),
        ((P,), (S0,), [("reduce_scatter", "tp", N)], "P→S(0)"),
        ((P,), (S1,), [("reduce_scatter", "tp", N)], "P→S(1)"),
        ((R,), (S0,), [], ""),
        ((R, S0), (R, R), [("all_gather", "tp", N)], "(R, S(0))→(R, R)"),
        ((S0, S1), (S0, R), [("all_gather", "tp", N // 2)], "(S(0), S(1))→(S(0), R)"),
        ((S0, S0), (R, R), [("all_gather", "tp", N // 2), ("all_gather", "dp", N)], "(S(0), S(0))→(R, R)"),
        ((P, S0), (R, S0), [("all_reduce", "dp", N // 4)], "(P, S(0))→(R, S(0))"),
        ((P, P), (R, R), [("all_reduce", "dp", N), ("all_reduce", "tp", N)], "(P, P)→(R, R)"),
        ((P, R), (S0, R), [("reduce_scatter", "dp", N)], "(P, R)→(S(0), R)"),
    ],
    ids=str,
)
def test_explicit(
    world: Callable[..., DeviceMesh],
    column: Any,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    expected: list[tuple[str, str, int]],
    change: str,
) -> None:
    """all_gather: the gathered tensor; all_reduce and reduce_scatter: the tensor that is reduced. A tensor sharded
    over both axes is gathered from the inner axis outward: N/2, then N."""
    mesh = world("dp=2,tp=4")
    where = mesh["tp"] if len(before) == 1 else mesh
    with record() as trace:
        tensor(where, *before).redistribute(where, after)
    assert column(trace, "op", "axis", "message_bytes") == expected
    assert all(cause == f"redistribute {change}" for cause in column(trace, "cause"))
    assert not any(column(trace, "implicit"))
    assert all("test_redistribute.py:" in source for source in column(trace, "source"))


def reduced(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return what a redistribute of a partial tensor issues, without one."""
    return all_reduce(x, "sum", mesh) * 1


def test_the_same_op_by_several_ways(world: Callable[..., DeviceMesh], column: Any) -> None:
    """Each event has the cause and the line of its own way."""
    mesh = world("tp=4")
    ways: dict[str, Callable[[], Any]] = {
        "explicit": lambda: tensor(mesh, P).redistribute(mesh, [R]),
        "implicit": lambda: torch.relu(tensor(mesh, P)),
        "direct": lambda: reduced(torch.ones(ROWS, COLUMNS), mesh),
    }
    causes = {"explicit": "redistribute P→R", "implicit": "aten.relu P→R", "direct": ""}
    lines = {way: function.__code__.co_firstlineno for way, function in ways.items()}
    lines["direct"] = reduced.__code__.co_firstlineno + 2
    order = [*ways, *ways]
    with record() as trace:
        for way in order:
            ways[way]()
    assert [(cause, source.rpartition(":")[2]) for cause, source in column(trace, "cause", "source")] == [
        (causes[way], str(lines[way])) for way in order
    ]


def test_from_one_dim_to_another(world: Callable[..., DeviceMesh], column: Any) -> None:
    """S(0) → S(1) exchanges parts by all_to_all of N/tp; on CPUs torch gathers N instead."""
    for target, op, size in (("cuda", "all_to_all", N // 4), ("cpu", "all_gather", N)):
        for fake in (False, True):
            mesh = world("tp=4", fake=fake, hardware="cpu" if target == "cpu" else None)
            with record() as trace:
                tensor(mesh, S0).redistribute(mesh, [S1])
            assert column(trace, "op", "message_bytes", "cause") == [(op, size, "redistribute S(0)→S(1)")]


@pytest.mark.parametrize(
    ("before", "after", "op"), [(S0, R, None), (P, S0, "all_gather"), (P, R, None), (R, S0, "all_gather")]
)
def test_backward(world: Callable[..., DeviceMesh], column: Any, before: Any, after: Any, op: str | None) -> None:
    """Gradients go back to the placements of the input, as a replica where the input was partial: from S(0)
    by one all_gather of N, from R by none."""
    mesh = world("tp=4")
    x = tensor(mesh, before).requires_grad_()
    output = x.redistribute(mesh, [after]).to_local().sum()
    with record() as trace:
        output.backward()
    assert column(trace, "phase", "op", "message_bytes") == ([("backward", op, N)] if op else [])
    back = "P" if before == P and not torch_at_least("2.10") else "R"  # torch 2.9 asks for P, and gathers
    assert all(cause.startswith(f"redistribute backward S(0)→{back}") for cause in column(trace, "cause"))


def test_implicit_redistributes_say_which_op_wanted_them(world: Callable[..., DeviceMesh], column: Any) -> None:
    """Adding a sharded and a partial tensor reduces the partial one first, although nobody asked."""
    mesh = world("tp=4")
    x, y = tensor(mesh, S0), tensor(mesh, P)
    with record() as trace:
        x + y
        x.redistribute(mesh, [R])
    rows = column(trace, "op", "cause", "implicit")
    assert rows == [("reduce_scatter", "aten.add P→S(0)", True), ("all_gather", "redistribute S(0)→R", False)]


def test_full_tensor_and_distribute_tensor(world: Callable[..., DeviceMesh], column: Any) -> None:
    """full_tensor gathers N; distribute_tensor scatters N to a sharded axis and broadcasts N/tp to a replicated one
    (each rank then has its part)."""
    mesh = world("dp=2,tp=4")
    with record() as trace:
        tensor(mesh, R, S0).full_tensor()
        distribute_tensor(torch.ones(ROWS, COLUMNS), mesh, [R, S0])
    assert column(trace, "op", "axis", "message_bytes") == [
        ("all_gather", "tp", N),
        ("broadcast", "dp", N),
        ("scatter", "tp", N),
    ]


class Wrong(nn.Module):
    """Row-parallel before column-parallel with nothing between: the activation is gathered and cut again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_redistributes_belong_to_the_module_that_runs(world: Callable[..., DeviceMesh], column: Any) -> None:
    mesh = world("tp=4")
    plan = {"first": ColwiseParallel(output_layouts=Replicate()), "second": RowwiseParallel(input_layouts=Replicate())}
    model = parallelize_module(Wrong(), mesh, plan)
    with record() as trace:
        model(torch.ones(2, 8))
    assert column(trace, "op", "trigger", "cause") == [
        ("all_gather", "Wrong.first", "redistribute S(1)→R"),
        ("all_reduce", "Wrong.second", "redistribute P→R"),
    ]

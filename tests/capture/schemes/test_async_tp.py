"""Asynchronous tensor parallelism: symmetric-memory ops that communicate and compute in one call.

Modules: ``capture/collectives/ops.py``.

Their kernels need CUDA and peers in one machine. What every build has is their Meta functions, by which fake and
meta tensors run them: the event is the fused op, and not the plain collectives that the function stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.capture.record import record

RANKS = 4
ROWS, INNER, COLUMNS = 8, 16, 12
BLOCK = ROWS * INNER * 4
"""Bytes of one rank's tensor."""


def call(name: str, group: str, **where: Any) -> None:
    """Call one op on tensors of this rank."""
    ops = torch.ops.symm_mem
    x, weight = torch.empty(ROWS, INNER, **where), torch.empty(INNER, COLUMNS, **where)
    if name == "fused_all_gather_matmul":
        ops.fused_all_gather_matmul(x, [weight, weight], 0, group)
    elif name == "fused_matmul_reduce_scatter":
        ops.fused_matmul_reduce_scatter(x, weight, "sum", 0, group)
    elif name == "_low_contention_all_gather":
        ops._low_contention_all_gather(x, group)
    elif name == "one_shot_all_reduce_copy":
        ops.one_shot_all_reduce_copy(x, x, "sum", group)
    else:
        getattr(ops, name)(x, "sum", group)


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "meta"])
@pytest.mark.parametrize(
    ("name", "op", "size"),
    [
        ("fused_all_gather_matmul", "all_gather", RANKS * BLOCK),
        ("fused_matmul_reduce_scatter", "reduce_scatter", ROWS * COLUMNS * 4),
        ("_low_contention_all_gather", "all_gather", RANKS * BLOCK),
        ("_low_contention_reduce_scatter", "reduce_scatter", BLOCK),
        ("one_shot_all_reduce", "all_reduce", BLOCK),
        ("one_shot_all_reduce_copy", "all_reduce", BLOCK),
    ],
)
def test_ops(world: Callable[..., DeviceMesh], column: Any, fake: bool, name: str, op: str, size: int) -> None:
    """all_gather: n times the rank's part; reduce_scatter: the whole that is reduced, for the fused op the product's
    R·C·e, which is never in memory as a whole; all_reduce: the tensor."""
    mesh = world(f"tp={RANKS}", fake=fake)
    with record() as trace:
        call(name, mesh.get_group().group_name, **({} if fake else {"device": "meta"}))
    assert column(trace, "op", "raw_op", "message_bytes", "axis") == [(op, f"symm_mem::{name}", size, "tp")]


class AsyncFeed(nn.Module):
    """Sequence-parallel feed-forward with fused ops in place of gather, matmul and scatter."""

    def __init__(self, sizes: SimpleNamespace, group: str) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(sizes.d, sizes.ffn // RANKS))
        self.down = nn.Parameter(torch.empty(sizes.ffn // RANKS, sizes.d))
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (hidden,) = torch.ops.symm_mem.fused_all_gather_matmul(x, [self.up], 0, self.group)
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(torch.relu(hidden), self.down, "sum", 0, self.group)


def test_a_module(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """1 all_gather and 1 reduce_scatter of A = B·T·D·e, as without fusion."""
    mesh = world(f"tp={RANKS}", fake=True)
    model = AsyncFeed(sizes, mesh.get_group().group_name)
    with record() as trace, torch.no_grad():
        output = model(torch.empty(sizes.tokens // RANKS, sizes.d))
    size = sizes.tokens * sizes.d * sizes.float
    assert output.shape == (sizes.tokens // RANKS, sizes.d)
    assert totals(trace, "phase", "op", "trigger") == {
        ("forward", op, "AsyncFeed"): (1, size) for op in ("all_gather", "reduce_scatter")
    }

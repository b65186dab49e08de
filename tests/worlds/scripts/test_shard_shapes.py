"""Local shapes computed from placements are those that torch made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.worlds.scripts.shard_shapes import ranks_by_shapes, sharded_shapes

AXES = {"dp": (2, 4), "tp": (1, 2)}


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_of_fsdp_with_tensor_parallelism(rank: int) -> None:
    with dsexplore.simulate(mesh="dp=4,tp=2", rank=rank) as mesh, dsexplore.commtrace() as trace:
        model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 3))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        model(torch.ones(1, 6)).sum().item()
    shapes, explained = sharded_shapes(trace.tables, rank, AXES)
    assert len(explained) == trace.parameters.height == 4
    numbers = ranks_by_shapes(shapes, np.arange(8))
    assert len(set(numbers.tolist())) > 2  # 3 rows over 4 ranks, 10 over 2 × 4
    assert sharded_shapes(trace.tables, rank, {"dp": (2, 4)})[1] < explained  # an axis that is not known


def test_even_shards_are_all_alike() -> None:
    with dsexplore.simulate(mesh="dp=4") as mesh, dsexplore.commtrace() as trace:
        model = nn.Linear(8, 8)
        fully_shard(model, mesh=mesh)
        model(torch.ones(1, 8)).sum().item()
    shapes, _ = sharded_shapes(trace.tables, 0, {"dp": (1, 4)})
    assert set(ranks_by_shapes(shapes, np.arange(4)).tolist()) == {0}

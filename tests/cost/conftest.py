"""Small programs whose costs are known, traced for the tests of predictions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import dsexplore
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds import demo
from tests.cost.sharded_llama import sharded_llama


def llama_of(mesh: str, layers: int = 2, **options: object) -> Trace:
    """Return one step of the demo's Llama, of a size where products count, over the axes dp and tp."""
    shape = demo.Shape(layers=layers, dim=1024, heads=8, kv_heads=4, hidden=4096, vocabulary=8192)
    with dsexplore.simulate(mesh=mesh, fake=True) as world:
        model = sharded_llama(world, shape)
        with dsexplore.commtrace(costs=True, **options) as trace:  # type: ignore[arg-type] # of the caller
            demo.train_step(model, torch.randint(8192, (2, 1025)))
    return trace


def layers_of(count: int, width: int = 512, rows: int = 4096, dp: int = 4) -> Trace:
    """Linear layers without bias under FSDP2, forward and backward."""
    with dsexplore.simulate(dp, fake=True) as mesh:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.randn(rows, width)).sum().backward()
    return trace


@pytest.fixture(scope="session")
def traced_llama() -> Callable[..., Trace]:
    """`llama_of`."""
    return llama_of


@pytest.fixture(scope="session")
def traced_layers() -> Callable[..., Trace]:
    """`layers_of`."""
    return layers_of

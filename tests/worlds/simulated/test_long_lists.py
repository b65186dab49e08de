"""torch propagates the sharding of ops on lists of DTensors once for each kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._ops import utils as sharding_utils
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.patch_table import TABLE
from dsexplore._internal.worlds.simulated import long_lists

EXPAND = sharding_utils.expand_to_full_mesh_op_strategy
TORCHS = getattr(ShardingPropagator, "propagate_op_sharding_non_cached", None)
pytestmark = pytest.mark.skipif(TORCHS is None, reason="this version of torch has no such function")
KINDS = 2
"""Weights and biases."""
LAYERS = 4
SHARDS = st.sampled_from(
    [(Replicate(), Replicate()), (Shard(0), Replicate()), (Shard(0), Shard(1)), (Shard(1), Shard(1))]
)


def as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tuple(entry for entry in TABLE if entry not in long_lists.PATCHES)
    assert len(table) < len(TABLE)
    monkeypatch.setattr("dsexplore._internal.worlds.simulate.TABLE", table)


def traced(**options: Any) -> dsexplore.Trace:
    """Trace two steps of an optimizer on parameters with two shards of one dim."""
    with dsexplore.simulate(mesh="dp=2,tp=2", fake=True) as mesh:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS)))
        for layer in model:
            parallelize_module(layer, mesh["tp"], RowwiseParallel(input_layouts=Replicate()))
            fully_shard(layer, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        with dsexplore.commtrace(costs=True) as trace:
            for _ in range(2):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
    return trace


@pytest.mark.skipif(not torch_at_least("2.12"), reason="up to torch 2.11 lists have strategies of their own")
@pytest.mark.parametrize(("options", "op"), [({"fused": True}, "aten::_fused_adamw_"), ({}, "aten::lerp.Scalar")])
def test_a_step_of_an_optimizer_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], op: str
) -> None:
    expanded: list[str] = []

    def expand(mesh: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        expanded.append(schema.op.name())
        return EXPAND(mesh, schema, *args, **kwargs)

    monkeypatch.setattr(sharding_utils, "expand_to_full_mesh_op_strategy", expand)
    ours = traced(**options)
    asked = expanded.count(op)
    as_torch_does(monkeypatch)
    theirs = traced(**options)
    for name in ("events", "kernels", "memory"):
        left, right = (getattr(one.tables, name).drop("group", strict=False) for one in (ours, theirs))
        assert left.equals(right), name
    assert asked == KINDS
    assert expanded.count(op) == asked + 2 * LAYERS


def whole(mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Return a DTensor of 8 × 8 with these placements."""
    size = [8, 8]
    for placement in placements:
        if isinstance(placement, Shard):
            size[placement.dim] //= 2
    return DTensor.from_local(torch.ones(size), mesh, placements)


def results(compute: Callable[[list[Any], list[Any]], Any], shards: list[Any], partial: list[bool]) -> Any:
    """Return what an op on two lists sends and returns: parameters with these shards, and gradients, some of them
    partial."""
    with dsexplore.simulate(mesh="dp=2,tp=2") as mesh:
        params = [whole(mesh, placements) for placements in shards]
        grads = [
            whole(mesh, (placements[0], Partial()) if summed else placements)
            for placements, summed in zip(shards, partial, strict=True)
        ]
        with dsexplore.commtrace() as trace:
            returned = compute(params, grads)
        seen = [(one.placements, one.shape, one.to_local().shape) for one in returned or params]
    return trace.events.select("op", "axis", "message_bytes", "shape").rows(), seen


COMPUTE: dict[str, Callable[[list[Any], list[Any]], Any]] = {
    "returns": lambda params, grads: torch._foreach_add(params, grads),
    "in place": lambda params, grads: torch._foreach_lerp_(params, grads, 0.5),
    "numbers": lambda params, grads: torch._foreach_mul(params, [*map(float, range(1, len(params) + 1))]),
    "one list": lambda params, grads: torch._foreach_norm(params),
}


@pytest.mark.parametrize("compute", COMPUTE.values(), ids=COMPUTE)
@settings(max_examples=12)
@given(drawn=st.lists(st.tuples(SHARDS, st.booleans()), min_size=1, max_size=6))
def test_lists_of_several_kinds(compute: Any, drawn: list[tuple[Any, bool]]) -> None:
    shards, partial = [one for one, _ in drawn], [summed for _, summed in drawn]
    ours = results(compute, shards, partial)
    with pytest.MonkeyPatch.context() as patch:
        as_torch_does(patch)
        assert results(compute, shards, partial) == ours


def test_torch_is_as_before_when_the_world_is_closed() -> None:
    with dsexplore.simulate(2):
        assert ShardingPropagator.propagate_op_sharding_non_cached is not TORCHS
    assert ShardingPropagator.propagate_op_sharding_non_cached is TORCHS

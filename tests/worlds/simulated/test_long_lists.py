"""Ops on lists of DTensors, with one look through all of them."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, _sharding_prop
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSpec, OpStrategy
from torch.distributed.tensor._ops import utils as sharding_utils
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import dsexplore
from dsexplore.worlds.patches import Patches
from dsexplore.worlds.simulated import long_lists

EXPAND = sharding_utils.expand_to_full_mesh_op_strategy
TORCHS = getattr(_sharding_prop, "_propagate_use_strided_shard_flag", None)
pytestmark = pytest.mark.skipif(TORCHS is None, reason="this version of torch has no such flag")


def specs(mesh: DeviceMesh, flags: tuple[bool | None, ...]) -> tuple[DTensorSpec, ...]:
    """A spec for each flag; None stands for one without a strided shard."""
    strided = (_StridedShard(0, split_factor=2), Shard(0))
    return tuple(
        DTensorSpec(mesh, (Replicate(), Shard(1)))
        if flag is None
        else DTensorSpec(mesh, strided, use_strided_shard_as_shard_order=flag)
        for flag in flags
    )


def flags_after(propagate: Any, strategy: OpStrategy, given: tuple[DTensorSpec, ...]) -> list[Any]:
    """What a function sets in a strategy's specs."""
    copied = deepcopy(strategy.strategies)
    propagate(OpStrategy(copied), SimpleNamespace(args_spec=given))
    outs = [one.output_specs for one in copied]
    return [(one.use_strided_shard_as_shard_order, one.shard_order) for one in outs if isinstance(one, DTensorSpec)]


def test_what_is_looked_through_once_sets_what_torch_sets() -> None:
    with dsexplore.simulate(mesh="dp=2,tp=2") as mesh:
        strategy = OpStrategy([OpSpec(spec) for spec in specs(mesh, (True, False, None))])
        once = long_lists._once_per_op(TORCHS)  # type: ignore[arg-type] # it is there, or the test is left out
        for flags in product((True, False, None), repeat=4):
            given = specs(mesh, flags)
            assert flags_after(once, strategy, given) == flags_after(TORCHS, strategy, given), flags


def traced() -> dsexplore.Trace:
    """A step of a fused optimizer on parameters with two shards of one dim."""
    with dsexplore.simulate(mesh="dp=2,tp=2", fake=True) as mesh:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        for layer in model:
            parallelize_module(layer, mesh["tp"], RowwiseParallel(input_layouts=Replicate()))
            fully_shard(layer, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    return trace


def test_a_step_of_a_fused_optimizer_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    expanded: list[str] = []

    def counted(strategy: Any, schema: Any) -> None:
        calls.append(len(schema.args_spec))
        TORCHS(strategy, schema)  # type: ignore[misc] # it is there, or the test is left out

    def expand(mesh: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        expanded.append(schema.op.name())
        return EXPAND(mesh, schema, *args, **kwargs)

    monkeypatch.setattr(_sharding_prop, "_propagate_use_strided_shard_flag", counted)
    monkeypatch.setattr(sharding_utils, "expand_to_full_mesh_op_strategy", expand)
    monkeypatch.setattr(
        "dsexplore.worlds.simulate.patch_shardings", lambda _patches: None
    )  # the second world would know
    ours = traced()
    seen, most, kinds = len(calls), max(calls), expanded.count("aten::_fused_adamw_")
    monkeypatch.setattr("dsexplore.worlds.simulate.patch_long_lists", lambda _patches: None)
    theirs = traced()
    for name in ("events", "kernels", "memory"):
        left, right = (getattr(one.tables, name).drop("group", strict=False) for one in (ours, theirs))
        assert left.equals(right), name
    assert len(calls) == 2 * seen
    assert most <= 2 < max(calls)
    assert kinds == 2  # weights and biases
    assert expanded.count("aten::_fused_adamw_") == kinds + 8


def test_torch_is_as_before_when_the_world_is_closed() -> None:
    patches = Patches()
    long_lists.patch_long_lists(patches)
    assert _sharding_prop._propagate_use_strided_shard_flag is not TORCHS
    patches.undo()
    assert _sharding_prop._propagate_use_strided_shard_flag is TORCHS

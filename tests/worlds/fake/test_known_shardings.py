"""What is known of shardings is what torch works out, on other meshes of the same shape too."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.experimental import register_sharding

from dsexplore.worlds.fake import known_shardings
from dsexplore.worlds.simulate import simulate

TORCHS = ShardingPropagator.propagate_op_sharding_non_cached


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ops that torch worked a sharding out for, in a process that knows none."""
    found: list[Any] = []

    def noted(propagator: Any, op_schema: Any) -> Any:
        found.append(op_schema.op)
        return TORCHS(propagator, op_schema)

    monkeypatch.setattr(known_shardings, "_found", {})
    monkeypatch.setattr(ShardingPropagator, known_shardings._FUNCTION, noted)
    return found


def described(mesh: DeviceMesh) -> list[Any]:
    """Specs of what ops of several kinds return."""
    shards, part = [Shard(0), Shard(1)], [Shard(0), Partial()]
    a = distribute_tensor(torch.ones(8, 12), mesh, shards)
    b = DTensor.from_local(torch.ones(4, 12), mesh, part)
    made: list[DTensor] = [
        a + a,
        a * 2,
        a * 2.0,
        a.sqrt(),
        a.sum(0),
        a.sum(1, keepdim=True),
        b + b,
        a.t(),
        a.to(torch.bfloat16),
        torch.zeros_like(a),
        *a.chunk(2, 0),
        *torch._foreach_mul([a, b], 3.0),
        a.add_(1),
        torch.nn.functional.silu(a),
        a.redistribute(placements=[Replicate(), Replicate()]) @ a.t(),
    ]
    return [
        (one.placements, one._spec.tensor_meta, one._spec.shard_order, one.device_mesh is mesh, one._local_tensor.shape)
        for one in made
    ]


def of_rank(rank: int, program: Callable[[DeviceMesh], Any]) -> Any:
    """What a program returns on the dp × tp mesh of one rank's stage of a pipeline."""
    with simulate(mesh="pp=2,dp=2,tp=4", rank=rank, fake=True) as mesh:
        return program(mesh["dp", "tp"])


def test_specs_are_those_that_torch_works_out(asked: list[Any]) -> None:
    first = of_rank(0, described)
    ours, theirs = len(asked), []
    for rank in (0, 3, 13):
        asked.clear()
        assert of_rank(rank, described) == first
        theirs.append(len(asked))
    assert max(theirs) < ours / 3, (ours, theirs)
    known_shardings._found.clear()
    assert of_rank(13, described) == first  # as torch works them out for that rank


def test_another_process_learns_them(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = of_rank(0, described)
    content = pickle.dumps(known_shardings.known())
    before = dict(known_shardings._found)
    monkeypatch.setattr(known_shardings, "_found", {})
    known_shardings.learn(pickle.loads(content))
    assert known_shardings._found == before
    asked.clear()
    assert of_rank(9, described) == first
    assert len(asked) < len(before) / 3


def test_meshes_of_another_shape_are_told_apart(asked: list[Any]) -> None:
    def shards(mesh: DeviceMesh) -> Any:
        return (distribute_tensor(torch.ones(8, 12), mesh, [Shard(0)]) + 1)._local_tensor.shape

    for size in (2, 4):
        with simulate(mesh=f"tp={size}", fake=True) as mesh:
            assert shards(mesh) == (8 // size, 12)
    assert asked.count(torch.ops.aten.add.Tensor) == 2


def test_an_optimizer_that_is_not_fused_asks_once_for_all_worlds(asked: list[Any]) -> None:
    def step(mesh: DeviceMesh) -> list[Any]:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        return [state["exp_avg"].placements for state in optimizer.state.values()]

    first = of_rank(0, step)
    assert len(asked) > 5
    asked.clear()
    assert of_rank(8, step) == first
    assert not asked


def test_what_needs_another_placement_first_is_worked_out_each_time(asked: list[Any]) -> None:
    def mixed(mesh: DeviceMesh) -> Any:
        one = distribute_tensor(torch.ones(8, 8), mesh["tp"], [Shard(0)])
        return (one + distribute_tensor(torch.ones(8, 8), mesh["tp"], [Shard(1)])).placements

    assert of_rank(0, mixed) == of_rank(4, mixed)
    assert asked.count(torch.ops.aten.add.Tensor) == 2


def test_a_rule_of_the_program_is_asked_each_time(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.erfinv.default
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    for name in known_shardings._RULES:
        monkeypatch.setattr(propagator, name, dict(getattr(propagator, name)))
    for name in known_shardings._RULES:
        getattr(propagator, name).pop(op, None)

    def placed(mesh: DeviceMesh) -> Any:
        return torch.erfinv(distribute_tensor(torch.zeros(8), mesh["tp"], [Shard(0)])).placements

    register_sharding(op)(lambda x: [([Shard(0)], [Shard(0)])])
    assert of_rank(0, placed) == (Shard(0),)
    known = len(known_shardings._found)
    register_sharding(op)(lambda x: [([Replicate()], [Replicate()])])
    assert of_rank(0, placed) == (Replicate(),)
    assert len(known_shardings._found) == known
    assert asked.count(op) == 2

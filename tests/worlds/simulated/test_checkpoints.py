"""Distributed checkpoints work on every simulated rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import dsexplore
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore")


def sharded(mesh: DeviceMesh) -> nn.Module:
    return fully_shard(nn.Linear(8, 8), mesh=mesh)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_what_it_saved(rank: int, tmp_path: Path) -> None:
    with simulate(4, rank=rank) as mesh, dsexplore.commtrace() as trace:
        model = sharded(mesh)
        saved = {name: value.to_local().clone() for name, value in model.state_dict().items()}
        dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path)
        assert (tmp_path / f"__{rank}_0.distcp").exists()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().zero_()
        dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value.to_local(), saved[name])
    assert any(note.startswith("a checkpoint of a simulated world holds the shards") for note in trace.info.notes)
    assert {"gather", "scatter", "broadcast"} <= set(trace.events["op"])


@pytest.mark.parametrize("rank", [0, 1])
def test_broadcast_from_rank_0(rank: int) -> None:
    full = nn.Linear(8, 8).state_dict()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    with simulate(4, rank=rank) as mesh, dsexplore.commtrace() as trace:
        model = sharded(mesh)
        set_model_state_dict(model, dict(full) if rank == 0 else {}, options=options)
        if rank == 0:
            torch.testing.assert_close(next(model.parameters()).to_local(), full["weight"][:2])
    assert trace.events["op"].to_list().count("broadcast") >= 4
    assert {256, 32} <= set(trace.where(op="broadcast").events["message_bytes"])


@pytest.mark.parametrize("rank", [0, 1])
def test_broadcast_from_rank_0_fills_a_model_without_memory_on_gpus(rank: int) -> None:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    with simulate(2, rank=rank, hardware="h100") as mesh:
        full = nn.Linear(8, 8).state_dict() if rank == 0 else {}
        with torch.device("meta"):
            model = sharded(mesh)
        assert model.weight.device == torch.device("meta")
        assert not model.weight.is_cuda
        set_model_state_dict(model, full, options=options)
        assert model.weight.is_cuda
        model(torch.randn(2, 8, device="cuda")).sum().backward()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_value_of_the_coordinator_is_what_this_rank_would_send(rank: int) -> None:
    with simulate(4, rank=rank):
        wrapper = _DistWrapper(None, use_dist=True, coordinator_rank=0)
        assert wrapper.broadcast("port", lambda: 29500) == 29500
        assert wrapper.broadcast(step="port", map_fun=lambda: 29500) == 29500

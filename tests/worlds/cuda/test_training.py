"""Unmodified training scripts for GPUs send on simulated ranks what they send on GPUs.

Modules: ``worlds/cuda/``, ``worlds/scripts/``.
"""

from __future__ import annotations

import copy
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.scripts.program import torch_settings_restored

SCRIPTS = Path(__file__).with_name("scripts")
Sent = list[tuple[Any, ...]]


def sent_by(script: str, monkeypatch: pytest.MonkeyPatch, *arguments: str, rank: int = 9, fake: bool = False) -> Sent:
    """Return the collectives of a script on one of 64 ranks, in order: op, message bytes and group size."""
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    world = dsexplore.commtrace(world_size=64, rank=rank, hardware="h100", fake=fake)
    with torch_settings_restored(), world as trace:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    return list(trace.to_frame().select("op", "message_bytes", "group_size").iter_rows())


def test_data_parallel_sends_its_gradients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent = sent_by("ddp.py", monkeypatch, str(tmp_path / "checkpoint.pt"), rank=0)
    gradients = 4 * ((64 * 256 + 256) + 2 * 256 + (256 * 10 + 10))
    assert [row for row in sent if row[0] == "all_reduce"] == 3 * [("all_reduce", gradients, 64), ("all_reduce", 4, 64)]
    assert sent[-1][0] == "barrier"
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["model"]["0.weight"].device.type == "cpu"  # a file that any machine can read


def test_sharded_and_tensor_parallel_is_the_same_on_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = sent_by("fsdp2.py", monkeypatch)
    layer = (64 * 256 + 256) // 4 + 256 * 64 // 4 + 64
    assert [op for op, _, size in sent if size == 16].count("all_gather") == 2 * (3 + 3)
    assert {row for row in sent if row[0] == "all_gather"} == {("all_gather", 2 * layer, 16)}
    assert {row for row in sent if row[0] == "reduce_scatter"} == {("reduce_scatter", 4 * layer, 16)}
    assert sent.count(("all_reduce", 2 * 8 * 64, 4)) == 2 * (3 + 2)  # the first layer's input has no gradient
    assert sent_by("fsdp2.py", monkeypatch, fake=True) == sent


@pytest.mark.parametrize("fake", [False, True])
def test_fsdp1_flattens_tensor_parallel_parameters_where_they_are(fake: bool) -> None:
    with (
        dsexplore.commtrace(world_size=8, hardware="h100", fake=fake) as trace,
        warnings.catch_warnings(action="error"),
    ):
        mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)).cuda()
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        sharded = FullyShardedDataParallel(model, device_mesh=mesh["dp"], use_orig_params=True)
        sharded(torch.ones(2, 16, device="cuda")).sum().backward()
    sent = trace.where(axis="dp").events
    local = 4 * (16 * 32 // 2 + 32 // 2 + 32 * 16 // 2 + 16)
    assert sent.select("op", "message_bytes").rows() == [("all_gather", local), ("reduce_scatter", local)]


@pytest.mark.parametrize("fake", [False, True])
def test_offloaded_parameters_are_on_the_cpu_between_steps(fake: bool) -> None:
    with dsexplore.commtrace(world_size=4, hardware="h100", fake=fake) as trace:
        mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("dp",))
        model = nn.Linear(8, 8)
        fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy())
        optimizer = torch.optim.AdamW(model.parameters())
        with save_on_cpu(pin_memory=True):
            loss = model(torch.ones(2, 8, device="cuda")).square().sum()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        gradient = model.weight.grad
        assert gradient is not None
        assert isinstance(gradient, DTensor)
        kept = [model.weight, gradient, gradient.to_local(), *optimizer.state[model.weight].values()]
        assert {tensor.device.type for tensor in kept} == {"cpu"}
        assert not gradient.is_cuda
        assert model.weight.to("cuda").to_local().is_cuda
        assert loss.is_cuda
    parameters = 4 * (8 * 8 + 8)
    assert trace.events.filter(trace.events["message_bytes"] > 8).select("op", "message_bytes").rows() == [
        ("all_gather", parameters),
        ("reduce_scatter", parameters),
    ]


@pytest.mark.parametrize("fake", [False, True])
def test_a_dtensor_is_moved_to_the_cpu_and_back(fake: bool) -> None:
    with dsexplore.commtrace(world_size=4, hardware="h100", fake=fake):
        mesh = init_device_mesh("cuda", (4,))
        there = distribute_tensor(torch.ones(8, device="cuda"), mesh, [Shard(0)])
        here = there.cpu()
        assert [each.device.type for each in (there, here, here + 1, here.to_local())] == ["cuda", "cpu", "cpu", "cpu"]
        assert there._local_tensor.is_cuda
        back = here.cuda()
        assert [each.device.type for each in (back, back.to_local(), here)] == ["cuda", "cuda", "cpu"]
        assert copy.deepcopy(here).device.type == "cpu"
        assert torch.zeros_like(here, device="cuda").is_cuda
        assert not torch.zeros_like(there, device="cpu").is_cuda
        assert torch.zeros_like(there, device=None).is_cuda


@pytest.mark.parametrize("fake", [False, True])
def test_a_dtensor_stays_itself_when_it_is_moved_to_where_it_is(fake: bool) -> None:
    with dsexplore.commtrace(world_size=4, hardware="h100", fake=fake):
        mesh = init_device_mesh("cuda", (4,))
        sharded = distribute_tensor(torch.ones(8, device="cuda"), mesh, [Shard(0)])
        factor = torch.tensor(0.5, device="cuda")
        halves = torch._foreach_mul([sharded], factor)
        torch._foreach_mul_([sharded], factor)
        written = torch.zeros_like(sharded)
        written.data = sharded
        for tensor in (sharded, *halves, sharded.double(), sharded.to(torch.float16), sharded * factor, written):
            assert tensor.to(tensor.device) is tensor.cuda() is tensor.to(tensor) is tensor
            assert tensor.device == tensor.to_local().device == tensor._local_tensor.device == torch.device("cuda:0")
        assert sharded.new_tensor([1.0]).is_cuda
        for offloaded in (sharded.cpu(), sharded.cpu().double(), sharded.to("cpu", torch.float16)):
            assert offloaded.cpu() is offloaded.to(offloaded.device) is offloaded
            assert (
                offloaded.device == offloaded.to_local().device == offloaded._local_tensor.device == torch.device("cpu")
            )


@pytest.mark.parametrize("fake", [False, True])
def test_clipping_sums_the_norms_of_scaled_gradients_in_one_all_reduce(fake: bool) -> None:
    """Norms on several devices would be summed one by one."""
    with dsexplore.commtrace(world_size=2, hardware="h100", fake=fake) as trace:
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).cuda()
        fully_shard(model, mesh=init_device_mesh("cuda", (2,)))
        model(torch.ones(4, 16, device="cuda")).sum().backward()
        torch._foreach_mul_([parameter.grad for parameter in model.parameters()], torch.tensor(0.5, device="cuda"))
        clip_grad_norm_(model.parameters(), 1.0)
    sent = trace.events.filter(trace.events["op"] == "all_reduce").select("message_bytes", "cause")
    of_norms = (16, "aten.linalg_vector_norm P→R")
    assert sent.rows() == [of_norms if torch_at_least("2.11") else (4, "aten.reciprocal P→R")]


@pytest.mark.parametrize("fake", [False, True])
def test_optimizers_that_run_in_backward(fake: bool) -> None:
    """DDP registers a communication hook for them at the first forward."""
    with dsexplore.commtrace(world_size=4, hardware="h100", fake=fake) as trace:
        model = nn.Linear(8, 8).cuda()
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
        parallel = DistributedDataParallel(model, init_sync=False)
        before = model.weight.detach().clone()
        for _ in range(2):
            parallel(torch.ones(2, 8, device="cuda")).sum().backward()
        assert model.weight.grad is None
        assert fake or not torch.equal(model.weight, before)
    gradients = ("all_reduce", 4 * (8 * 8 + 8), "backward", "DDP gradient bucket")
    sent = trace.events.filter(trace.events["cause"] == "DDP gradient bucket")
    assert sent.select("op", "message_bytes", "phase", "cause").rows() == [gradients] * 2


@pytest.mark.parametrize("fake", [False, True])
def test_a_shard_goes_to_another_dim_by_all_to_all(fake: bool) -> None:
    with dsexplore.commtrace(world_size=8, hardware="h100", fake=fake) as trace:
        mesh = init_device_mesh("cuda", (8,))
        tensor = DTensor.from_local(torch.ones(8, 8, device="cuda"), mesh, [Shard(0)])
        assert tensor.redistribute(placements=[Shard(1)]).to_local().device.type == tensor.device.type == "cuda"
    assert trace.to_frame().select("op", "wire_bytes").rows() == [("all_to_all", 8 * 8 * 4 * 7 // 8)]


def test_torch_finds_the_devices_that_it_asks_for(tmp_path: Path) -> None:
    with dsexplore.simulate(world_size=8, rank=3, hardware="h100") as mesh:
        assert (mesh.device_type, dist.get_backend(), torch.cuda.current_device()) == ("cuda", "nccl", 3)
        device = torch.device("cuda", 3)
        replica = DistributedDataParallel(module=nn.Linear(2, 2).cuda(), device_ids=[3])
        assert replica(torch.ones(1, 2)).device == replica.module.weight.device == device
        sharded = FullyShardedDataParallel(nn.Linear(4, 4).cuda(), device_id=torch.cuda.current_device())
        sharded(torch.ones(1, 4, device="cuda")).sum().backward()
        assert sharded.compute_device == device
        state = {"model": {"weight": torch.ones(3, device="cuda")}}
        dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
        state["model"]["weight"].zero_()
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        assert state["model"]["weight"].tolist() == [1, 1, 1]
        assert state["model"]["weight"].device == device
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        dist.barrier(group=dist.new_group([0, 3], backend="nccl", pg_options=options), device_ids=[3])


def test_values_are_those_of_the_cpu() -> None:
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(4, 8, device=device)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    with dsexplore.simulate(world_size=2, hardware="h100"):
        on_cuda = trained("cuda")
    for one, other in zip(on_cuda, trained("cpu"), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


DRAWS = [
    torch.Tensor.uniform_,
    pytest.param(
        torch.Tensor.exponential_,
        marks=pytest.mark.skipif(not torch_at_least("2.12"), reason="up to torch 2.11 exponential_ is not sharded"),
    ),
    nn.init.kaiming_uniform_,
    nn.Dropout(),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_random_ops_of_dtensors(draw: Callable[[Any], Any]) -> None:
    with dsexplore.simulate(4, "tp=4", hardware="h100") as mesh:
        sharded = distribute_tensor(torch.ones(8, 8, device="cuda"), mesh, [Shard(0)])
        drawn = draw(sharded)
        assert drawn.is_cuda
        assert drawn.to_local().shape == (2, 8)
        assert not drawn.to_local().equal(torch.ones(2, 8, device="cuda"))


@pytest.mark.parametrize("fake", [False, True])
def test_the_loss_of_sharded_logits_takes_targets_that_are_no_dtensor(fake: bool) -> None:
    with dsexplore.commtrace(world_size=4, hardware="h100", fake=fake) as trace:
        mesh = init_device_mesh("cuda", (4,))
        local = torch.ones(6, 8, device="cuda", requires_grad=True)
        targets = torch.zeros(6, dtype=torch.long, device="cuda")
        with loss_parallel():
            loss = nn.functional.cross_entropy(DTensor.from_local(local, mesh, [Shard(1)]), targets)
            loss.backward()
        assert local.grad is not None
        assert local.grad.device.type == "cuda"
    assert trace.events["op"].to_list() == 3 * ["all_reduce"]  # the largest logit, their sum, and the target's

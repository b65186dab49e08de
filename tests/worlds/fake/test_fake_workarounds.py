"""Programs on fake tensors send what they send on real ones."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.fake.invented_values import READ
from dsexplore._internal.worlds.simulate import simulate


def waits_late(mesh: DeviceMesh) -> None:
    """Run a gather, a product that does not need it, and one that does."""
    x = torch.ones(8, 8, requires_grad=True)
    gathered = functional.all_gather_tensor(x, 0, mesh)
    own = x @ x
    (gathered.T @ gathered + own).sum().backward()


@pytest.mark.parametrize("fake", [False, True])
def test_a_functional_collective_is_waited_for_where_it_is_used(fake: bool) -> None:
    with simulate(mesh="tp=2", fake=fake) as mesh, commtrace(costs=True) as trace:
        waits_late(mesh)
    rows = trace.tables.kernels.sort("segment", maintain_order=True).filter(phase="other")
    assert rows.filter(rows["kind"].is_in(["matmul", "wait"]))["kind"].to_list() == ["matmul", "wait", "matmul"]
    assert trace.events["op"].to_list()[:1] == ["all_gather"]


@pytest.mark.skipif(not torch_at_least("2.10"), reason="functional collectives of torch 2.9 pass no gradients")
@pytest.mark.parametrize("fake", [False, True])
def test_gradients_pass_through_what_is_waited_for_late(fake: bool) -> None:
    with simulate(mesh="tp=2", fake=fake) as mesh:
        x = torch.ones(4, 4, requires_grad=True)
        functional.all_gather_tensor(x * 2, 0, mesh).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


def test_elements_of_storages_are_invented_and_said() -> None:
    with (
        warnings.catch_warnings(),
        commtrace(world_size=2, fake=True) as trace,
    ):
        warnings.simplefilter("ignore")
        storage = torch.randn(4).storage()
        assert storage[0] == 1.0
        assert len(storage.tolist()) == 4
        assert torch.randn(4).untyped_storage()[15] == 1
        with pytest.raises(IndexError, match="index 4 out of range for storage of size 4"):
            storage[4]
    assert any(note.startswith(READ) for note in trace.info.notes)


@pytest.mark.parametrize("strategy", [ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD])
def test_fsdp1_with_original_parameters_steps_more_than_once(strategy: ShardingStrategy) -> None:
    def sent(fake: bool) -> list[int]:
        with commtrace(world_size=4, fake=fake) as trace:
            model = FullyShardedDataParallel(nn.Linear(8, 8).cuda(), sharding_strategy=strategy, use_orig_params=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.ones(2, 8, device="cuda")).sum().backward()
                optimizer.step()
        return trace.events["message_bytes"].to_list()

    assert sent(fake=True) == sent(fake=False)

"""Seeds and states of a CUDA generator are saved, restored and forked; checkpoint and DTensor read them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import rand as distributed_rand
from torch.utils.checkpoint import checkpoint

import dsexplore
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), cuda_stand_in():
        yield


def drawn() -> list[float]:
    numbers: list[float] = torch.rand(3, device="cuda").tolist()
    return numbers


def test_a_state_goes_on_from_where_it_was_read() -> None:
    torch.cuda.manual_seed(7)
    drawn()
    state = torch.cuda.get_rng_state()
    assert (state.dtype, state.shape) == (torch.uint8, (16,))
    assert torch.equal(state, torch.cuda.get_rng_state())
    first = drawn()
    assert not torch.equal(state, torch.cuda.get_rng_state())
    assert drawn() != first
    torch.cuda.set_rng_state(state)
    assert drawn() == first
    torch.cuda.set_rng_state_all([state] * torch.cuda.device_count())
    assert drawn() == first
    assert torch.cuda.initial_seed() == 7


def test_seeds() -> None:
    torch.cuda.manual_seed_all(3)
    first = drawn()
    torch.manual_seed(3)
    assert drawn() == first
    assert torch.cuda.initial_seed() == torch.initial_seed() == 3
    torch.cuda.seed()
    assert drawn() != first


def test_a_negative_seed_has_a_state_of_sixteen_bytes() -> None:
    torch.cuda.manual_seed(-1)
    assert torch.cuda.get_rng_state().tolist() == [255] * 8 + [0] * 8


def test_forked_numbers_leave_no_trace() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.manual_seed(2)
        drawn()
    first = drawn()
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        pass
    assert drawn() == first


def test_generators() -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert generator.device == torch.device("cuda", 1)
    first = torch.rand(3, device="cuda", generator=generator)
    state = generator.get_state()
    second = torch.rand(3, device="cuda", generator=generator)
    again = generator.clone_state()
    assert torch.equal(generator.set_state(state).get_state(), state)
    assert torch.equal(torch.rand(3, generator=generator), second)
    assert again.initial_seed() == generator.manual_seed(5).initial_seed() == 5
    assert torch.equal(torch.rand(3, generator=generator), first)
    generator.set_offset(8)
    assert generator.get_offset() == 8
    with pytest.raises(RuntimeError, match="has 16 bytes, this one 3"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    assert type(torch.Generator()) is torch._C.Generator


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_drops_the_same_again(reentrant: bool) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).cuda()
    x = torch.ones(4, 8, device="cuda", requires_grad=True)
    found = []
    for forward in (module, lambda x: checkpoint(module, x, use_reentrant=reentrant)):
        torch.manual_seed(0)
        torch.cuda.get_rng_state()  # as checkpoint does
        module.zero_grad()
        forward(x).square().sum().backward()
        assert module[0].weight.grad is not None
        found.append(module[0].weight.grad.clone())
    assert found[0].count_nonzero() > 0
    assert torch.equal(*found)


def test_distributed_tensors_share_one_state() -> None:
    with dsexplore.commtrace(world_size=4) as trace, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        mesh = torch.distributed.init_device_mesh("cuda", (4,))
        shard = distributed_rand(8, 4, device_mesh=mesh, placements=[Shard(0)])
        whole = distributed_rand(8, 4, device_mesh=mesh, placements=[Replicate()])
        assert shard.device == whole.device == torch.device("cuda", 0)
        assert shard.to_local().tolist() != whole.to_local()[:2].tolist()
    assert trace.to_frame().select("op", "message_bytes").rows() == [("broadcast", 16)]

"""A tensor that a script forgot to move raises as on a GPU; CPU tensors that GPU ops accept do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_to_all_single
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.func import grad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import dsexplore
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

MIXED = "Expected all tensors to be on the same device, but found at least two devices"


@pytest.fixture(params=[False, True], ids=["real", "fake"])
def x(request: pytest.FixtureRequest) -> Iterator[Tensor]:
    with cuda_stand_in():
        if request.param:
            with FakeTensorMode(allow_non_fake_inputs=True):
                yield torch.ones(4, 4, device="cuda")
        else:
            yield torch.ones(4, 4, device="cuda")


@pytest.mark.parametrize(
    "op",
    [
        lambda x, other: x + other,
        lambda x, other: other * x,
        lambda x, other: x @ other,
        lambda x, other: torch.cat([x, other]),
        lambda x, other: torch.stack((other, x)),
        lambda x, other: torch.where(other > 0, x, 0.0),
        lambda x, other: F.linear(x, other),
        lambda x, other: F.mse_loss(x, other),
        lambda x, other: F.cross_entropy(x, other[0].long()),
        lambda x, other: F.layer_norm(x, (4,), weight=other[0]),
        lambda x, other: nn.Linear(4, 4)(x),
        lambda x, other: nn.Linear(4, 4).cuda()(other),
        lambda x, other: nn.Embedding(4, 4).cuda()(other[0].long()),
        lambda x, other: x.masked_fill(other > 0, 0.0),
    ],
)
def test_tensors_on_different_devices(op: Callable[[Tensor, Tensor], Any], x: Tensor) -> None:
    with pytest.raises(RuntimeError, match=rf"{MIXED}, cuda:0 and cpu!"):
        op(x, torch.ones(4, 4))


@pytest.mark.parametrize(
    "op",
    [
        lambda x, other: x + 1 + torch.tensor(2.0),
        lambda x, other: x[torch.tensor([0, 1])],
        lambda x, other: x.view_as(other) + x.reshape_as(other) + x.expand_as(other),
        lambda x, other: x.new_tensor([1.0]),
        lambda x, other: torch.zeros_like(x).copy_(other) + x.to(other).to(x),
        lambda x, other: other.type_as(x),
        lambda x, other: torch.empty_like(x, device="meta"),
    ],
)
def test_what_gpus_take(op: Callable[[Tensor, Tensor], Any], x: Tensor) -> None:
    op(x, torch.ones(4, 4))


@pytest.mark.filterwarnings("error")
def test_packed_sequences_keep_their_sizes_on_the_cpu() -> None:
    with cuda_stand_in():
        packed = nn.utils.rnn.pack_padded_sequence(torch.ones(1, 4, 3, device="cuda"), torch.tensor([4]), True)
        assert (packed.data.is_cuda, packed.batch_sizes.is_cuda) == (True, False)
        made, _ = nn.LSTM(3, 5).cuda()(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(made, batch_first=True)
        assert (padded.is_cuda, padded.shape) == (True, (1, 4, 5))


def test_what_is_written_to_stays_where_it_is(x: Tensor) -> None:
    other = torch.zeros(4, 4)
    assert not other.copy_(x).is_cuda
    assert not other.is_cuda


def test_two_gpus() -> None:
    with cuda_stand_in(), pytest.raises(RuntimeError, match=rf"{MIXED}, cuda:0 and cuda:1!"):
        torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


class Doubled(torch.autograd.Function):
    """Multiplies a saved tensor and a gradient in backward; C++ hands both to Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * 2 * torch.ones_like(x) * torch.ones(4, 4, device="cuda")


def test_tensors_without_a_mark_that_are_on_the_gpu(x: Tensor) -> None:
    """In backward, in checkpoints and under ``torch.func``, no error is raised."""
    x = x.requires_grad_()
    x.register_hook(lambda gradient: gradient * torch.ones(4, 4, device="cuda"))
    (Doubled.apply(x) + checkpoint(lambda y: (y @ x).relu(), x, use_reentrant=False)).sum().backward()
    assert x.grad is not None
    assert grad(lambda y: (y * x.detach()).sum())(x.detach()).shape == (4, 4)


def test_distributed_tensors() -> None:
    with dsexplore.simulate(4, "tp=4", hardware="h100") as mesh:
        replicated = distribute_tensor(torch.ones(4, 4, device="cuda"), mesh, [Replicate()])
        assert (replicated @ replicated).is_cuda


@pytest.mark.parametrize("fake", [False, True])
def test_the_local_tensor_of_a_distributed_one_is_where_that_is(fake: bool) -> None:
    with dsexplore.simulate(4, "dp=2,tp=2", hardware="h100", fake=fake) as mesh:
        whole = distribute_tensor(torch.ones(4, 4, device="cuda"), mesh["tp"], [Replicate()])
        layer = fully_shard(nn.Linear(4, 4, device="cuda"), mesh=mesh["dp"])
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
        parameter = layer.weight
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        for one in (whole, whole + whole, whole @ whole.t(), parameter, parameter.grad, parameter.detach()):
            local = one._local_tensor
            assert (local.is_cuda, local.device, (local[0] * 2).device) == (True, one.device, one.device)
            assert (local.to(torch.float64) * torch.ones(4, device="cuda")).is_cuda
    with cuda_stand_in():
        assert not local.is_cuda


def test_the_parts_of_a_subclass_are_where_it_is() -> None:
    with cuda_stand_in():
        both = TwoTensor(torch.ones(4, 4), torch.ones(4, 4)).cuda() * 2
        assert both.a.device == both.b.device == both.device == torch.device("cuda:0")
        assert (both.a.double() * torch.ones(4, device="cuda")).is_cuda
        apart = both.cpu() * 2
        assert not apart.a.is_cuda


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_a_collective_in_flight_is_waited_for_is_where_its_view_was(fake: bool, gradients: bool) -> None:
    with dsexplore.simulate(4, "cp=4", hardware="h100", fake=fake) as mesh, torch.set_grad_enabled(gradients):
        x = torch.ones(4, 2, device="cuda", requires_grad=gradients)
        sent = all_to_all_single(x.flatten(), None, None, mesh.get_group())
        seen = sent.reshape(2, 4)[1:]
        assert isinstance(seen, AsyncCollectiveTensor)
        waited = seen.wait()
        assert (waited.device, (waited * x[:1, :1]).device) == (torch.device("cuda:0"),) * 2

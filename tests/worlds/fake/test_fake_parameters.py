"""Fake parameters of the program's classes, and of lazy modules, behave like real ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

import dsexplore


class Tagged(nn.Parameter):
    """A parameter with a text."""

    def __new__(cls, data: Tensor, requires_grad: bool = True, tag: str = "") -> Any:
        return super().__new__(cls, data, requires_grad)

    def __init__(self, data: Tensor, requires_grad: bool = True, tag: str = "") -> None:
        self.tag = tag

    def shout(self) -> str:
        return self.tag.upper()


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_instance_of_the_programs_class(device: str) -> None:
    with dsexplore.simulate(2, fake=True, hardware="h100" if device == "cuda" else None):
        parameter: Any = Tagged(torch.ones(3, 2, device=device), tag="gate")
        assert isinstance(parameter, (Tagged, FakeTensor))
        assert isinstance(parameter, nn.Parameter)
        assert type(parameter).__qualname__ == "Tagged"
        assert type(parameter).__module__ == __name__
        assert parameter.shout() == "GATE"
        assert parameter.is_leaf
        assert parameter.requires_grad
        assert parameter.device.type == device
        assert type(parameter * 2) is type(parameter.detach()) is type(parameter.data) is FakeTensor
        (parameter * 2).sum().backward()
        assert parameter.grad.shape == (3, 2)
        copied = copy.deepcopy(parameter)
        assert type(copied) is type(parameter)
        assert copied is not parameter
        assert not Tagged(torch.ones(2), requires_grad=False).requires_grad


def test_a_plain_parameter_is_a_plain_fake_tensor() -> None:
    with dsexplore.simulate(2, fake=True):
        plain = nn.Parameter(torch.ones(2))
        assert type(plain) is FakeTensor
        assert plain.requires_grad
        made = Tensor._make_subclass(nn.Parameter, torch.ones(2))
        assert isinstance(made, FakeTensor)
        assert not made.requires_grad


def test_a_parameter_without_a_shape_is_converted_by_the_arguments_of_to() -> None:
    with dsexplore.simulate(2, fake=True):
        assert nn.LazyLinear(2).weight.to(torch.float16).dtype == torch.float16
        assert nn.LazyBatchNorm1d().running_mean.to("cpu", torch.float16).dtype == torch.float16


def test_what_is_not_a_parameter_of_a_fake_tensor_is_torchs() -> None:
    class Tensors(Tensor):
        pass

    before = torch.ones(2)
    with dsexplore.simulate(2, fake=True):
        assert type(nn.Parameter(before)) is nn.Parameter
        assert type(Tensor._make_subclass(Tensors, before)) is Tensors
        with pytest.raises(RuntimeError, match="Creating a new Tensor subclass Tensors"):
            Tensor._make_subclass(Tensors, torch.ones(2))


def test_a_module_keeps_it_when_it_is_moved() -> None:
    with dsexplore.simulate(2, fake=True, hardware="h100"):
        model = nn.Linear(4, 4)
        model.weight = before = Tagged(model.weight.data, tag="gate")
        model.cuda().bfloat16()
        assert model.weight is before
        assert before.device.type == "cuda"
        assert before.dtype is torch.bfloat16


def _colwise(model: nn.Module, mesh: Any) -> nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel()})


WRAPS: dict[str, Callable[[nn.Module, Any], nn.Module]] = {
    "ddp": lambda model, mesh: DistributedDataParallel(model),
    "fsdp2": lambda model, mesh: fully_shard(model, mesh=mesh),
    "fsdp1": lambda model, mesh: FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True),
    "tp": _colwise,
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("costs", [False, True])
def test_what_is_sent_and_computed_is_as_on_real_tensors(wrap: str, costs: bool) -> None:
    sent = []
    for fake in (False, True):
        with dsexplore.simulate(2, fake=fake, hardware="h100") as mesh:
            model = nn.Sequential(nn.Linear(8, 8, bias=False))
            model[0].weight = Tagged(torch.ones(8, 8, device="cuda"))
            wrapped = WRAPS[wrap](model, mesh)
            optimizer = torch.optim.AdamW(wrapped.parameters())
            with dsexplore.commtrace(costs=costs) as trace:
                wrapped(torch.ones(2, 8, device="cuda", requires_grad=True)).sum().backward()
                optimizer.step()
        flops = int(trace.tables.kernels["flops"].sum()) if costs else 0
        sent.append((trace.tables.events.select("op", "message_bytes", "dtype", "cause", "owner").rows(), flops))
    assert sent[0] == sent[1], wrap
    assert sent[0][0]


def _lazy(device: str) -> nn.Module:
    layers = (nn.LazyConv1d(4, 1), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2))
    return nn.Sequential(*layers).to(device)


@pytest.mark.parametrize("fake", [False, True])
def test_lazy_modules(fake: bool, device: str) -> None:
    with dsexplore.simulate(2, fake=fake, hardware="h100" if device == "cuda" else None):
        model = _lazy(device).double()
        convolution, norm, _, linear = model
        assert isinstance(convolution.weight, UninitializedParameter)
        assert isinstance(norm.running_mean, UninitializedBuffer)
        with pytest.raises(RuntimeError, match="Can't access the shape of an uninitialized"):
            convolution.weight.shape  # noqa: B018 - a property
        with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
            linear.weight.mul(2) if device == "cpu" else linear.weight.sum()
        copied = copy.deepcopy(linear)
        model(torch.ones(3, 5, 7, device=device, dtype=torch.double))
        assert convolution.weight.shape == (4, 5, 1)
        assert linear.weight.shape == (2, 28)
        assert not any(is_lazy(each) for each in (*model.parameters(), *model.buffers()))
        assert all(isinstance(each, nn.Parameter) for each in model.parameters())
        assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {device}
        assert {each.dtype for each in model.parameters()} == {torch.double}
        assert isinstance(copied.weight, UninitializedParameter)
        assert copied.weight.device.type == device
        if fake:
            assert {type(each) for each in (*model.parameters(), *model.buffers())} == {FakeTensor}
        DistributedDataParallel(model)(torch.ones(3, 5, 7, device=device, dtype=torch.double)).sum().backward()
        assert linear.weight.grad.shape == (2, 28)


def test_classes_are_as_before_when_the_world_is_closed() -> None:
    with dsexplore.simulate(2, fake=True):
        nn.LazyLinear(2)
    assert type(Tagged(torch.ones(2))) is Tagged
    assert type(nn.LazyLinear(2).weight) is UninitializedParameter
    assert "new_parameter" not in repr(nn.Parameter.__new__)

"""Gradients that hooks and backward functions get are on the device of their tensor, also after the backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least


@pytest.fixture(params=[False, True], ids=["real", "fake"])
def x(request: pytest.FixtureRequest) -> Iterator[Tensor]:
    with dsexplore.simulate(4, hardware="h100", fake=request.param):
        dist.init_process_group("nccl")
        yield torch.ones(2, 4, device="cuda", requires_grad=True)


def _check(kept: list[Tensor], count: int) -> None:
    assert len(kept) == count
    for gradient in kept:
        assert gradient.device == torch.device("cuda:0")
        (gradient * torch.ones(4, device="cuda")).sum()
        dist.all_reduce(gradient.contiguous())


def test_hooks_of_tensors(x: Tensor) -> None:
    kept: list[Tensor] = []
    layer = nn.Linear(4, 4).cuda()
    for parameter in layer.parameters():
        parameter.register_hook(kept.append)
    made = layer(x)
    made.register_hook(lambda gradient: kept.append(gradient))
    x.register_hook(hook=kept.append)
    made.sum().backward()
    _check(kept, 4)


def test_a_hook_still_changes_a_gradient_and_can_be_removed(x: Tensor) -> None:
    handle = x.register_hook(lambda gradient: gradient * 2)
    (x * 3).sum().backward()
    handle.remove()
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    if type(x) is Tensor:
        assert x.grad.unique().tolist() == [9.0]


def test_full_backward_hooks_of_modules(x: Tensor) -> None:
    kept: list[Tensor] = []
    layer = nn.Linear(4, 4).cuda()
    layer.register_full_backward_pre_hook(lambda _, outputs: kept.extend(outputs))
    layer.register_full_backward_hook(lambda _, inputs, outputs: kept.extend((*inputs, *outputs)))
    layer(x).sum().backward()
    _check(kept, 3)


@pytest.mark.parametrize("count", [1, 2])
def test_a_module_hooks_gradients_are_on_the_gpu_in_the_hook(x: Tensor, count: int) -> None:
    class Sum(nn.Module):
        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(tensor * 2 for tensor in tensors)

    layer, devices = Sum(), []
    layer.register_full_backward_pre_hook(lambda _, outputs: devices.extend(each.device for each in outputs))
    layer.register_full_backward_hook(lambda _, inputs, outputs: devices.extend(each.device for each in inputs))
    sum(made.sum() for made in layer(*[x] * count)).backward()  # type: ignore[union-attr]
    assert devices == [torch.device("cuda:0")] * 2 * count


def test_a_backward_function_may_get_no_gradient(x: Tensor) -> None:
    class Parted(Function):
        @staticmethod
        def forward(ctx: Any, tensor: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return tensor * 2, tensor + 1

        @staticmethod
        def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor:
            assert first is None
            assert second is not None
            assert second.device.type == "cuda"
            return second * 2

    Parted.apply(x)[1].sum().backward()
    assert x.grad is not None


class Doubled(Function):
    """Stores the gradients that its backward gets."""

    kept: list[Tensor]

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> tuple[Tensor, Tensor]:
        return tensor * 2, tensor + 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        Doubled.kept.extend(gradients)
        return gradients[0] * 2 + gradients[1]


class Boxed(Doubled):
    """Gets its gradients in one list."""

    boxed_grads_call = True

    @staticmethod
    def backward(ctx: Any, gradients: list[Tensor]) -> Any:  # type: ignore[override]
        return Doubled.backward(ctx, *gradients)


BOXED = pytest.param(
    Boxed, marks=pytest.mark.skipif(not torch_at_least("2.12"), reason="up to torch 2.11 gradients come one by one")
)


@pytest.mark.parametrize("function", [Doubled, BOXED])
def test_backward_functions(function: type[Doubled], x: Tensor) -> None:
    Doubled.kept = []
    first, second = function.apply(x)
    (first + second).sum().backward()
    _check(Doubled.kept, 2)


class ToCpu(Function):
    """Returns a copy on the CPU."""

    kept: list[Tensor]

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.cpu()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ToCpu.kept.append(gradient)
        return gradient.cuda()


def test_gradients_of_tensors_on_the_cpu_stay_there(x: Tensor) -> None:
    ToCpu.kept = []
    on_cpu = torch.ones(2, requires_grad=True)
    on_cpu.register_hook(ToCpu.kept.append)
    ToCpu.apply(x).sum().backward()
    on_cpu.sum().backward()
    assert [gradient.device.type for gradient in ToCpu.kept] == ["cpu", "cpu"]


@pytest.mark.parametrize("named", [False, True])
def test_gradients_are_where_their_inputs_are(named: bool, x: Tensor) -> None:
    on_cpu = torch.ones(2, 4, requires_grad=True)
    inputs: Any = {"here": on_cpu, "there": x} if named else (on_cpu, x)
    try:
        gradients = torch.autograd.grad((on_cpu.cuda() * x).sum(), inputs)
    except (TypeError, RuntimeError):
        if not named:
            raise
        pytest.skip("this torch takes no dict of inputs")
    devices = [gradient.device.type for gradient in (gradients.values() if named else gradients)]
    assert devices == ["cpu", "cuda"]


def test_gradients_of_dtensors(x: Tensor) -> None:
    kept: list[DTensor] = []
    mesh = dist.device_mesh.init_device_mesh("cuda", (4,))
    sharded = distribute_tensor(torch.ones(8, 4, device="cuda"), mesh, [Shard(0)]).requires_grad_()
    sharded.register_hook(kept.append)
    (sharded * 2).sum().backward()
    assert kept[0].device.type == "cuda"
    assert kept[0].to_local().device.type == "cuda"


def _patched() -> tuple[Any, ...]:
    return Function.apply, BackwardCFunction.apply, getattr(BackwardCFunction, "apply_boxed", None)


def test_torch_is_left_as_it_was() -> None:
    before = _patched()
    with dsexplore.simulate(2, hardware="h100"):
        assert _patched() != before
    assert _patched() == before

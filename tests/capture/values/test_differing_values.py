"""Values that differ between ranks that should hold the same, found on simulated ranks by where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import dsexplore
from dsexplore import Trace

WIDTH = 8


class PartOfSequence(nn.Module):
    """A norm with plain parameters over this rank's part of a sequence, whose output is joined."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.norm, self.mesh = nn.LayerNorm(WIDTH), mesh

    def forward(self, x: Tensor) -> Tensor:
        part = self.norm(distribute_tensor(x, self.mesh, [Shard(1)]).to_local())
        return DTensor.from_local(part, self.mesh, [Shard(1)]).full_tensor()


class WrongPlacement(nn.Module):
    """Says ``Replicate`` of a part of a sequence."""

    def __init__(self, mesh: DeviceMesh, *, right: bool) -> None:
        super().__init__()
        self.linear, self.mesh, self.right = nn.Linear(WIDTH, WIDTH), mesh, right

    def forward(self, x: Tensor) -> Tensor:
        part = distribute_tensor(x, self.mesh, [Shard(1)]).to_local().relu()
        placement = Shard(1) if self.right else Replicate()
        joined = DTensor.from_local(part, self.mesh, [placement], run_check=False) * 2
        return self.linear(joined.full_tensor())


class OwnColumns(nn.Module):
    """Multiplies a whole input with this rank's columns of a weight."""

    def __init__(self, mesh: DeviceMesh, *, right: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.randn(WIDTH, WIDTH), mesh, [Shard(1)]))
        self.scale = nn.Parameter(distribute_tensor(torch.ones(WIDTH), mesh, [Replicate()]))
        self.mesh, self.right = mesh, right

    def forward(self, x: Tensor) -> Tensor:
        whole = distribute_tensor(x, self.mesh, [Replicate()]) * self.scale
        local = whole.to_local(grad_placements=[Partial()]) if self.right else whole.to_local()
        out = local @ self.weight.to_local()
        return DTensor.from_local(out, self.mesh, [Shard(2)]).full_tensor()


def trained(
    build: Callable[[DeviceMesh], nn.Module], before: Callable[[nn.Module, DeviceMesh], Any] = lambda *_: None
) -> Trace:
    with dsexplore.commtrace(mesh="tp=2", costs=True) as trace:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        model = build(mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        model(torch.randn(2, 4, WIDTH)).sum().backward()
        before(model, mesh)
        optimizer.step()
    return trace


def errors(trace: Trace) -> list[tuple[str, str, str]]:
    rows = trace.tables.differing.select("kind", "module", "axis").rows()
    assert {one.is_wrong for one in trace.findings() if one.rule == "value_errors"} <= {True}
    assert len({row[:2] for row in rows}) == len([one for one in trace.findings() if one.is_wrong])
    return list(dict.fromkeys(rows))


def reduced(model: nn.Module, mesh: DeviceMesh) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group())


def test_a_gradient_that_is_not_reduced_is_found_and_an_all_reduce_silences_it() -> None:
    assert errors(trained(PartOfSequence)) == [("gradient", "PartOfSequence.norm", "tp")]
    assert errors(trained(PartOfSequence, reduced)) == []


@pytest.mark.parametrize("is_reduced", [False, True])
def test_on_fake_tensors_of_1024_ranks(is_reduced: bool) -> None:
    with dsexplore.commtrace(mesh="dp=128,tp=8", costs=True, fake=True) as trace:
        mesh = init_device_mesh("cuda", (128, 8), mesh_dim_names=("dp", "tp"))["tp"]
        norm = nn.LayerNorm(16_384, device="cuda")
        optimizer = torch.optim.AdamW(norm.parameters())
        sequence = distribute_tensor(torch.randn(2, 4096, 16_384, device="cuda"), mesh, [Shard(1)])
        norm(sequence.to_local()).sum().backward()
        if is_reduced:
            reduced(norm, mesh)
        optimizer.step()
    assert {axis for _, _, axis in errors(trace)} == (set() if is_reduced else {"tp"})


def test_a_flat_buffer_of_reduced_gradients_is_followed() -> None:
    def flat(model: nn.Module, mesh: DeviceMesh) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joined, group=mesh.get_group())
        for gradient, part in zip(gradients, joined.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    assert errors(trained(PartOfSequence, flat)) == []


def test_an_update_that_a_local_norm_scales_differs() -> None:
    def scaled(model: nn.Module, mesh: DeviceMesh) -> None:
        assert isinstance(model, OwnColumns)
        local = model.weight.grad.to_local()  # type: ignore[union-attr]
        clipped = model.scale.grad.to_local() / local.norm()  # type: ignore[union-attr]
        model.scale.grad = DTensor.from_local(clipped, mesh, [Replicate()])

    found = errors(trained(lambda mesh: OwnColumns(mesh, right=True), scaled))
    assert found == [("gradient", "OwnColumns", "tp")]


@pytest.mark.parametrize("kind", [WrongPlacement, OwnColumns])
def test_what_is_said_to_be_the_same_and_is_not_is_found(kind: Any) -> None:
    found = errors(trained(lambda mesh: kind(mesh, right=False)))
    assert ("activation", kind.__name__, "tp") in found
    assert errors(trained(lambda mesh: kind(mesh, right=True))) == []


def test_a_finding_says_what_to_try_and_comes_first() -> None:
    first = trained(PartOfSequence).findings()[0]
    assert first.rule == "value_errors"
    assert first.why.startswith("the optimizer reads the gradient of weight, bias before it is reduced over tp")
    assert first.change.startswith("all_reduce it over tp before optimizer.step()")

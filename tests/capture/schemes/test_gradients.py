"""Gradients in every way that torch offers: accumulated, to inputs, of gradients, without autograd, and in hooks.

Modules: ``capture/modules/autograd_nodes.py``, ``capture/stack/stack_reading.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from talking_models import SIZE, WIDTH, Pair, Reduce, Talker, forward_and_backward, x
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.dispatch import has_kernel_for

TWICE = pytest.mark.skipif(
    not has_kernel_for("_c10d_functional::all_reduce", "Autograd"),
    reason="functional collectives of torch 2.9 have no gradients of their own, as a second backward needs them",
)


@pytest.fixture(autouse=True)
def four(world: Callable[..., DeviceMesh]) -> DeviceMesh:
    return world("dp=4")


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_autograd(column: Any, mode: Callable[[], Any]) -> None:
    model = Talker()
    with record() as trace, mode():
        model(x())
    with mode(), record() as inside:
        model(x())
    for found in (trace, inside):
        assert column(found, "phase", "trigger", "message_bytes") == [("forward", "Talker", SIZE)]


def test_gradient_accumulation(column: Any) -> None:
    model = Talker()
    with record() as trace:
        losses = [model(x()).sum() for _ in range(3)]
        for loss in losses:
            loss.backward()
    assert column(trace, "phase", "trigger") == [("forward", "Talker")] * 3 + [("backward", "Talker")] * 3


def test_microbatches_whose_backwards_interleave(column: Any) -> None:
    """Forward of a, of b, backward of a, forward of c, …: backward goes by the graph, not by what ran last."""
    first, second = Pair(Talker(), nn.ReLU()), Pair(nn.ReLU(), Talker())
    with record() as trace:
        a = first(x()).sum()
        b = second(x()).sum()
        a.backward()
        c = first(x()).sum()
        b.backward()
        c.backward()
    assert column(trace.where(phase="backward"), "trigger") == ["Pair.first", "Pair#2.second", "Pair.first"]


def test_inplace_relu(column: Any) -> None:
    model = nn.Sequential(Talker(), nn.ReLU(inplace=True), Talker(), nn.ReLU(inplace=True))
    with record() as trace:
        model(x()).sum().backward()
    assert column(trace, "phase", "trigger") == forward_and_backward("Sequential.0", "Sequential.2")


def test_a_gradient_to_an_input(column: Any) -> None:
    model = Talker()
    start = x(requires_grad=True)
    with record() as trace:
        torch.autograd.grad(model(start).sum(), start)
    assert column(trace, "phase", "trigger") == forward_and_backward("Talker")


@TWICE
def test_a_gradient_penalty(column: Any) -> None:
    """grad with create_graph inside the loss, then backward: all of autograd's runs are backward. What the graph sends
    that the first of them made belongs to the module whose gradient that was, as what the loss's own graph sends."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Talker())
    start = x(requires_grad=True)
    with record() as trace:
        output = model(start).square().sum()
        (gradient,) = torch.autograd.grad(output, start, create_graph=True)
        (output + gradient.square().sum()).backward()
    own = "Sequential.2"
    assert column(trace, "phase", "trigger") == [
        ("forward", own),
        ("backward", own),
        ("backward", own),
        ("backward", own),
    ]


@TWICE
def test_a_gradient_penalty_of_two_modules(column: Any) -> None:
    """Forward 1 per module; the gradient 1 per module, in reverse; its backward again 1 per module for the gradient's
    graph, last one first, and 1 per module for the forward's."""
    model = nn.Sequential(Talker(), nn.Tanh(), Talker())
    start = x(requires_grad=True)
    with record() as trace:
        output = model(start).square().sum()
        (gradient,) = torch.autograd.grad(output, start, create_graph=True)
        gradient.square().sum().backward()
    first, second = "Sequential.0", "Sequential.2"
    assert column(trace, "trigger") == [first, second, second, first, first, second, second, first]
    assert column(trace, "phase") == ["forward"] * 2 + ["backward"] * 6


def test_a_gradient_inside_a_forward(column: Any) -> None:
    """A module that differentiates in its own forward: that part is backward, of the module that it goes through."""

    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = Talker()

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = value.requires_grad_()
            return torch.autograd.grad(self.energy(value).sum(), value)[0]

    with record() as trace:
        Score()(x())
    assert column(trace, "phase", "trigger") == forward_and_backward("Score.energy")


def test_a_collective_in_a_hook_of_the_module(column: Any) -> None:
    model = Pair(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def reduce(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return Reduce.apply(output)

    model.first.register_forward_hook(reduce)
    with record() as trace:
        model(x()).sum().backward()
    assert column(trace, "phase", "trigger") == forward_and_backward("Pair.first")


def test_a_collective_in_a_gradient_hook(column: Any) -> None:
    """Data parallelism by hand: a hook on each parameter, whose module is the trigger."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    with record() as trace:
        model(x()).sum().backward()
    assert column(trace, "phase", "trigger") == [("backward", "Sequential.2"), ("backward", "Sequential.0")]

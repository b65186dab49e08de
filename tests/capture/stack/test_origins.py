"""Whose gradients a backward sends: DDP inside another module, ``replicate``, and buckets of a program's own.

Modules: ``capture/stack/origins.py``, ``capture/modules/module_entry.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.nn.parallel import DistributedDataParallel

import dsexplore

WIDTH = 8
LAYER = 4 * WIDTH * WIDTH


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with dsexplore.simulate(world_size=2):
        yield


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))


class Task(nn.Module):
    """A model and a head beside it, as detectors have."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.head, self.inner = nn.Linear(WIDTH, 1), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class OwnBucket(nn.Module):
    """Reduces all gradients in one tensor: a hook of each parameter fills it, and the last one sends it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.nodes = module, []
        self.ready: list[nn.Parameter] = []
        self.flat = torch.zeros(sum(parameter.numel() for parameter in module.parameters()))
        for parameter in module.parameters():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(self.hook_of(parameter))
            self.nodes.append(node)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    def hook_of(self, parameter: nn.Parameter) -> Callable[..., None]:
        def ready(*_: object) -> None:
            self.ready.append(parameter)
            if len(self.ready) == len(self.nodes):
                self.ready = []
                self.send()

        return ready

    def send(self) -> None:
        dist.all_reduce(self.flat)


class AtTheEnd(OwnBucket):
    """Sends in a callback of the engine, when backward is done."""

    def send(self) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(super().send)


def with_hooks(module: nn.Module) -> nn.Module:
    """Hooks that belong to no module: one sends its parameter's gradient, the other one as many as both layers have."""
    first, second = module.parameters()
    second.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
    first.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(torch.cat([parameter.grad] * 2)))
    return module


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: DistributedDataParallel(layers()), [("DistributedDataParallel", 2 * LAYER)]),
        (lambda: Task(DistributedDataParallel(layers())), [("Task.inner", 2 * LAYER)]),
        (lambda: Task(replicate(layers())), [("Task.inner", 2 * LAYER)]),
        (lambda: Task(OwnBucket(layers())), [("Task.inner", 2 * LAYER)]),
        (lambda: AtTheEnd(layers()), [("AtTheEnd", 2 * LAYER)]),
        (lambda: with_hooks(layers()), [("Sequential.1", LAYER), ("Sequential", 2 * LAYER)]),
    ],
    ids=["ddp", "ddp inside", "replicate inside", "own bucket", "at the end", "hooks of functions"],
)
def test_a_bucket_is_owned_by_the_module_that_reduces_it(
    make: Callable[[], nn.Module], expected: list[tuple[str, int]]
) -> None:
    model = make()
    model(torch.ones(2, WIDTH)).sum().backward()  # what is sent once
    with dsexplore.commtrace() as trace:
        model(torch.ones(2, WIDTH)).sum().backward()
    sent = trace.events.filter(trace.events["phase"] == "backward")
    assert sent.select("owner", "message_bytes").rows() == expected

"""Nothing is left of a recording, also where the program fails in it, and results are those without it.

Modules: ``capture/record.py``, ``capture/recorder.py``.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from talking_models import Pair, Talker, forward_and_backward, x
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.modules import module as torch_module

from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder_in_use import is_recording
from dsexplore._internal.torch_internals.dtensor import release_cached_meshes


@pytest.fixture(autouse=True)
def four(world: Callable[..., DeviceMesh]) -> DeviceMesh:
    return world("dp=4")


def test_a_step_like_the_last_keeps_little() -> None:
    """Objects that refer to others take time whenever Python collects garbage."""
    model = Pair(Talker(), Talker())

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    with record() as trace:
        model(x()).sum().backward()
        sent, before = len(trace), objects()  # tables load modules when they are first asked for
        for _ in range(10):
            model(x()).sum().backward()
        kept, sent = objects() - before, len(trace) - sent
    assert sent == 40
    assert kept / sent < 5  # a collective, its line, and the calls of 5 modules per 4 collectives


class Fails(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("in the third module")


def test_an_exception_in_the_middle(column: Any) -> None:
    """Both are right: the trace until then, and the next one of the same model."""
    model = nn.Sequential(Talker(), Talker(), Fails())
    with pytest.raises(RuntimeError, match="third"), record() as trace:
        model(x())
    assert column(trace, "trigger") == ["Sequential.0", "Sequential.1"]
    assert any("RuntimeError" in note for note in trace.info.notes)
    assert not is_recording()
    model[2] = nn.Identity()
    with record() as again:
        model(x()).sum().backward()
    assert column(again, "phase", "trigger") == forward_and_backward("Sequential.0", "Sequential.1")


def test_an_exception_that_the_program_catches(column: Any) -> None:
    """Modules whose error was caught do not run any more."""
    failing, good = Pair(Talker(), Fails()), Talker()
    with record() as trace:
        with pytest.raises(RuntimeError):
            failing(x())
        all_reduce(x(), "sum", dist.group.WORLD)
        good(x())
    assert column(trace, "trigger") == ["Pair.first", "", "Talker"]


def test_an_exception_in_backward(column: Any) -> None:
    model = Talker()

    def fail(_gradient: torch.Tensor) -> None:
        raise RuntimeError("in backward")

    model.linear.weight.register_hook(fail)
    with record() as trace:
        with pytest.raises(RuntimeError, match="in backward"):
            model(x()).sum().backward()
        model(x())
    assert column(trace, "phase") == ["forward", "backward", "forward"]


def test_nothing_is_kept_alive(world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace) -> None:
    """After the recording the trace is there, and the model, its parameters, its output and the mesh are not."""
    mesh = world("tp=4")
    sub = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    model = parallelize_module(block(), sub["b"], {"attn.wq": ColwiseParallel(use_local_output=False)})
    with record() as trace:
        output = model.attn.wq(torch.ones(sizes.batch, sizes.seq, sizes.d)).full_tensor()
    watched = [weakref.ref(thing) for thing in (model, model.attn.wq.weight, output, sub)]
    del model, output, sub
    release_cached_meshes()
    gc.collect()
    alive = [reference() for reference in watched[:3]]
    assert alive == [None] * 3
    assert ops._cached_message.cache_info().currsize == 0
    assert len(trace) > 0
    assert mesh is not None


def test_the_model_is_as_it_was(column: Any) -> None:
    """Neither the model nor torch keeps a hook, an attribute or a changed class."""
    model = Pair(Talker(), nn.ReLU())
    before = [(dict(part.__dict__), type(part)) for part in model.modules()]
    hooks, call_module = dict(torch_module._global_forward_pre_hooks), nn.Module.__call__
    with record():
        model(x()).sum().backward()
    model.zero_grad()
    after = [(dict(part.__dict__), type(part)) for part in model.modules()]
    assert [kind for _, kind in before] == [kind for _, kind in after]
    for (old, _), (new, _) in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        assert not new["_forward_hooks"]
        assert not new["_forward_hooks_always_called"]
    assert dict(torch_module._global_forward_pre_hooks) == hooks
    assert nn.Module.__call__ is call_module


def test_results_are_those_of_an_untraced_run() -> None:
    model = Talker()
    start = x(requires_grad=True)
    model(start).sum().backward()
    expected = start.grad
    start.grad = None
    with record():
        model(start).sum().backward()
    torch.testing.assert_close(start.grad, expected, rtol=0, atol=0)

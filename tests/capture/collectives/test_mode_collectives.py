"""Collectives that the mode of fake tensors carries out are recorded by it as by the kernels in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.collectives import mode_collectives, observed_op
from dsexplore._internal.capture.collectives.mode_collectives import ModeCollectives
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.stack import frame_kinds
from dsexplore._internal.torch_internals.dispatch import has_kernel_for
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.simulate import simulate

Call = Callable[[], Any]


class Sending(nn.Module):
    """Sums its input over the ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x, "sum", dist.group.WORLD)


def of_a_module() -> None:
    Sending()(torch.ones(2)).add(1)


def in_backward() -> None:
    mesh = init_device_mesh("cpu", (4,))
    tensor = DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0)]).requires_grad_()
    tensor.redistribute(placements=[Replicate()]).sum().backward()


FUNCTIONAL = "autograd_impl" if has_kernel_for("_c10d_functional::all_reduce", "Autograd") else "__torch_dispatch__"
"""What calls the mode for a functional collective; in torch 2.9 these have no autograd of their own."""

CALLS: dict[str, Call] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(3, 5)),
    "all_reduce async": lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(),
    "all_gather": lambda: dist.all_gather_into_tensor(torch.ones(32), torch.ones(8)),
    "all_gather of lists": lambda: dist.all_gather([torch.ones(2) for _ in range(4)], torch.ones(2)),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(8)),
    "all_to_all": lambda: dist.all_to_all_single(torch.ones(8), torch.ones(8)),
    "broadcast": lambda: dist.broadcast(torch.ones(2, dtype=torch.float64), 0),
    "barrier": dist.barrier,
    "functional": lambda: functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).add(1),
    "of a module": of_a_module,
    "in backward": in_backward,
}


@pytest.fixture
def world() -> Iterator[None]:
    """Four simulated ranks on fake tensors."""
    with simulate(world_size=4, fake=True):
        yield


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the code of the frames from which the stacks of what the mode reports were read."""
    seen: list[str] = []
    original = frame_kinds.caller_of_op

    def noted(frames: int) -> Any:
        frame = original(frames + 1)
        seen.append(frame.f_code.co_name)
        return frame

    monkeypatch.setattr(mode_collectives.frame_kinds, "caller_of_op", noted)
    return seen


def recorded(call: Call) -> Trace:
    call()  # torch's own mode carries out what is called for the first time
    with record() as trace:
        call()
    return trace


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", CALLS)
def test_the_event_is_that_of_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = CALLS[name]
    first = recorded(call)
    monkeypatch.setattr(ModeCollectives, "install", lambda *_: None)
    second = recorded(call)
    assert len(first) > 0
    assert first.events.equals(second.events)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("name", "caller"),
    [("all_reduce", "__torch_dispatch__"), ("functional", FUNCTIONAL), ("in backward", FUNCTIONAL)],
)
def test_stacks_are_read_from_outside_the_mode(name: str, caller: str, called: list[str]) -> None:
    recorded(CALLS[name])
    assert set(called) == {caller}


@pytest.mark.usefixtures("world")
def test_no_kernel_in_front_is_called(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_raw: int) -> Any:
        raise AssertionError("a kernel in front was called")

    monkeypatch.setattr(observed_op, "_read_keys", fail)
    assert len(recorded(CALLS["functional"])) == 1
    assert len(called) == 1


@pytest.mark.usefixtures("world")
def test_what_is_observed_already_is_no_event_of_its_own() -> None:
    with record() as trace:
        observed_op.nesting.results = results = []
        try:
            dist.all_reduce(torch.ones(2))
        finally:
            observed_op.nesting.results = None
    assert len(trace) == 0
    assert len(results) == 1


@pytest.mark.usefixtures("world")
def test_a_wrong_call_raises_as_without_a_recording() -> None:
    def wrong() -> None:
        torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(4), "four", dist.group.WORLD.group_name)

    with pytest.raises(RuntimeError) as alone:
        wrong()
    with record() as trace, pytest.raises(RuntimeError) as seen:
        wrong()
    assert str(seen.value) == str(alone.value)
    assert len(trace) == 0


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_collective_that_raises_is_no_event(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle:
        def redispatch_boxed(self, *_: Any) -> Any:
            raise error

    op = torch.ops._c10d_functional.all_reduce.default
    monkeypatch.setattr(op, "_handle", Handle())
    with record() as trace, pytest.raises(error):
        mode_collectives.call(op, (torch.ones(2), "sum", dist.group.WORLD.group_name), 0)
    assert len(trace) == 0
    assert recorder_in_use.in_use().inside() == []


@pytest.mark.usefixtures("world")
def test_nothing_is_reported_once_the_recording_is_over(called: list[str]) -> None:
    recorded(CALLS["all_reduce"])
    del called[:]
    CALLS["all_reduce"]()
    assert called == []

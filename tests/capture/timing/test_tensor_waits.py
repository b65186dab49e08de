"""How long a program waits for a functional collective, seen in front of ``wait_tensor``."""

from __future__ import annotations

from itertools import count

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.capture.timing.tensor_waits import TensorWaits
from dsexplore._internal.worlds.simulate import simulate


def has_kernel() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("_c10d_functional::wait_tensor", "BackendSelect")


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a recorder whose waits take as many ns as they read the clock: one."""
    ticking = Recorder()
    readings = count(0)
    ticking._tensor_waits = TensorWaits(lambda: next(readings))
    monkeypatch.setattr(recorder_in_use, "_recorder", ticking)


@pytest.mark.usefixtures("gloo", "ticking")
def test_each_collective_has_the_wait_for_its_own_tensor() -> None:
    first, second = torch.ones(4), torch.ones(8)
    with record() as trace:
        one = functional.all_reduce(first, "sum", dist.group.WORLD)
        two = functional.all_reduce(second, "sum", dist.group.WORLD)
        functional.wait_tensor(two)
        assert has_kernel()
        functional.wait_tensor(torch.ones(2))  # of no collective
        one + 1  # an AsyncCollectiveTensor waits when it is used
        functional.wait_tensor(one)  # nothing is left to wait for
    assert trace.events["waited"].to_list() == [1, 1]
    assert not has_kernel()


@pytest.mark.usefixtures("gloo", "ticking")
def test_a_coalesced_call_has_the_waits_for_all_its_tensors() -> None:
    with record() as trace:
        tensors = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", dist.group.WORLD)
        for tensor in tensors:
            functional.wait_tensor(tensor)
    assert set(trace.events["waited"]) == {2}


@pytest.mark.usefixtures("gloo")
def test_the_kernel_goes_with_the_recording_that_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), record():
        functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))
        1 / 0  # noqa: B018
    assert not has_kernel()


def test_a_simulation_pays_nothing() -> None:
    with simulate(world_size=4), record() as trace:
        functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))
        assert not has_kernel()
    assert trace.events["waited"].to_list() == [None]

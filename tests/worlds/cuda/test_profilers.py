"""torch's profilers run under the CUDA stand-in, and print no errors of CUDA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA


def step() -> None:
    weight = torch.ones(4, 4, device="cuda", requires_grad=True)
    with torch.profiler.record_function("forward"):
        loss = (torch.ones(2, 4, device="cuda") @ weight).sum()
    loss.backward()


@pytest.mark.parametrize(
    "profiler",
    [
        lambda: profile(activities=[CPU, CUDA], record_shapes=True, profile_memory=True),
        lambda: profile(activities=[CUDA]),
        lambda: torch.autograd.profiler.profile(use_device="cuda"),
        lambda: torch.autograd.profiler.profile(use_device="cuda", use_kineto=True, use_cpu=False),
    ],
)
def test_a_profile_with_cuda(
    profiler: Callable[[], AbstractContextManager[Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    with simulate(2), profiler() as profiled:
        step()
        step()
    assert "aten::mm" in {event.key for event in profiled.key_averages()}
    assert "aten::mm" in profiled.key_averages().table(sort_by="cuda_time_total")
    assert "CUDA event" not in "".join(capfd.readouterr())


def test_a_schedule_that_writes_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = schedule(wait=1, warmup=1, active=1)
    with (
        simulate(2),
        profile(activities=[CPU, CUDA], schedule=plan, on_trace_ready=tensorboard_trace_handler(str(tmp_path))) as p,
    ):
        for _ in range(4):
            step()
            p.step()
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert "CUDA event" not in "".join(capfd.readouterr())


def test_ranges_of_nvtx() -> None:
    with simulate(2), torch.autograd.profiler.emit_nvtx() as ranges:
        step()
    assert isinstance(ranges, torch.autograd.profiler.emit_nvtx)


def test_a_profile_without_cuda_is_as_ever() -> None:
    with simulate(2, hardware="cpu"), profile(activities=[CPU]) as profiled:
        torch.ones(2).sum()
    assert "aten::sum" in {event.key for event in profiled.key_averages()}

"""``torch.cuda`` returns load, temperature, clocks, power and memory in use."""

from __future__ import annotations

import pytest
import torch

from dsexplore._internal.worlds.cuda.gpu_sensors import ZERO
from dsexplore._internal.worlds.simulate import simulate


@pytest.mark.parametrize("hardware", ["h100", "mi300x"])
@pytest.mark.filterwarnings("ignore:torch.cuda's memory figures")
def test_sensors(hardware: str) -> None:
    cuda = torch.cuda
    with simulate(2, hardware=hardware) as _:
        asked = (cuda.utilization(), cuda.memory_usage(0), cuda.temperature(), cuda.power_draw(), cuda.clock_rate())
        assert asked == (0, 0, 0, 0, 0)
        before = cuda.device_memory_used()
        held = torch.zeros(1 << 20, device="cuda")
        assert cuda.device_memory_used() - before == held.nbytes


def test_a_note_says_so() -> None:
    import dsexplore

    with dsexplore.commtrace(world_size=2) as trace:
        torch.cuda.utilization()
    assert ZERO in trace.info.notes

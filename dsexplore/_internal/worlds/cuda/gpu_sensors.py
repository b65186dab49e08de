"""What ``torch.cuda`` asks NVML and ROCm's library of a GPU: its load, temperature, clock and power, and its memory."""

from __future__ import annotations

from typing import Any

import torch

from dsexplore._internal.torch_internals.cuda import MEMORY_USED, SENSORS
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks

ZERO = "utilization, power, temperature and clocks of GPUs are answered with 0, as no GPU is there"


def _zero(original: Any, parts: Parts) -> Any:
    remarks = parts[Remarks]

    def zero(device: Any = None) -> int:
        remarks.note(ZERO)
        return 0

    return zero


def _used(original: Any, parts: Parts) -> Any:
    def used(device: Any = None) -> int:
        free, total = torch.cuda.mem_get_info(device)
        return total - free

    return used


PATCHES: tuple[Entry, ...] = (
    *(Patch(name, "it asks a driver that is not there", _zero, when="cuda device") for name in SENSORS),
    Patch(MEMORY_USED, "it asks a driver that is not there", _used, when="cuda device"),
)

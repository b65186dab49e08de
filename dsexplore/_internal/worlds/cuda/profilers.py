"""torch's profilers on GPUs that are not there: the CPU is profiled, and no event is asked of a driver."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from dsexplore._internal.torch_internals.cuda import EMIT_NVTX, PROFILE
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks

_CPU_ALONE = "the profiler has events of the CPU alone, as no GPU is there: their times are those of this machine"


def _profile_cpu(original: Any, parts: Parts) -> Any:
    remarks = parts[Remarks]

    @wraps(original)
    def set_up(self: Any, enabled: bool = True, **options: Any) -> None:
        asks = enabled and (options.get("use_cuda") or options.get("use_device") == "cuda")
        if asks:
            remarks.say(_CPU_ALONE, quiet=True)
            options.pop("use_cuda", None)  # torch 2.15 has it no more
            options |= {"use_device": None, "use_cpu": True}
        original(self, enabled, **options)
        if asks:
            self.use_device = "cuda"  # as its tables ask for

    return set_up


def _skip_nvtx(original: Any, parts: Parts) -> Any:
    def enter(self: torch.autograd.profiler.emit_nvtx) -> torch.autograd.profiler.emit_nvtx:
        return self

    return enter


PATCHES: tuple[Entry, ...] = (
    Patch(PROFILE, "it asks CUDA for an event at each op, and prints a stack trace", _profile_cpu, when="cuda device"),
    Patch(EMIT_NVTX[0], "it refuses where torch is built without CUDA", _skip_nvtx, when="cuda device"),
    Patch(
        EMIT_NVTX[1],
        "it ends what was not begun",
        lambda original, parts: lambda self, *error: False,
        when="cuda device",
    ),
)

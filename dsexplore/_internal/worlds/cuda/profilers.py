"""Patches of torch's profilers for the CUDA stand-in: they profile the CPU, and ask no driver for events."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from dsexplore._internal.torch_internals.cuda import EMIT_NVTX, PROFILE
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks

_CPU_ONLY = "the profiler has events of the CPU only, as this machine has no GPU: their times are this machine's"


def _profile_cpu(original: Any, parts: Parts) -> Any:
    """Wrap the initializer of ``torch.autograd.profiler.profile`` to profile the CPU where CUDA is asked for."""
    remarks = parts[Remarks]

    @wraps(original)
    def set_up(self: Any, enabled: bool = True, **options: Any) -> None:
        profiles_cuda = enabled and (options.get("use_cuda") or options.get("use_device") == "cuda")
        if profiles_cuda:
            remarks.say(_CPU_ONLY, quiet=True)
            options.pop("use_cuda", None)  # torch 2.15 no longer has it
            options |= {"use_device": None, "use_cpu": True}
        original(self, enabled, **options)
        if profiles_cuda:
            self.use_device = "cuda"  # the tables of the profiler read it

    return set_up


def _skip_nvtx(original: Any, parts: Parts) -> Any:
    """Replace ``emit_nvtx.__enter__`` by a method that does nothing."""

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

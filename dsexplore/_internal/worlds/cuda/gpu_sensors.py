"""What GPUs that are not there tell of themselves: ``nvidia-smi``, and what ``torch.cuda`` asks NVML and ROCm's SMI.

``nvidia-smi`` is on the path, unless the machine has the program itself. Load, temperature, clocks and power are 0.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from dsexplore._internal.torch_internals.cuda import MEMORY_USED, SENSORS
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.worlds.cuda import smi_answers
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.cuda.gpu import Gpu
from dsexplore._internal.worlds.remarks import Remarks

_PROGRAM = "nvidia-smi"


def _put_on_path(patches: Patches, parts: Parts) -> None:
    gpu = parts[Gpu]
    if gpu.vendor != "nvidia" or shutil.which(_PROGRAM) is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="dsexplore-smi-"))
    patches.callback(shutil.rmtree, folder, True)
    of_gpu = (gpu.name, gpu.total_memory_mib, f"{gpu.major}.{gpu.minor}", parts[Driver].count)
    command = shlex.join([sys.executable, "-I", str(smi_answers.__file__), *map(str, of_gpu)])
    program = folder / _PROGRAM
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{before}{os.pathsep}{folder}"
    patches.callback(_take_off_path, str(folder))


def _take_off_path(folder: str) -> None:
    """Take a folder off the path, which the program may have changed meanwhile."""
    kept = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry != folder]
    os.environ["PATH"] = os.pathsep.join(kept)


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
    Change("the program nvidia-smi", "no driver has brought it", _put_on_path, "cuda device"),
    *(Patch(name, "it asks a driver that is not there", _zero, when="cuda device") for name in SENSORS),
    Patch(MEMORY_USED, "it asks a driver that is not there", _used, when="cuda device"),
)

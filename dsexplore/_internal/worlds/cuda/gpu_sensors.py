"""Monitoring of the GPUs that a CPU stands in for: ``nvidia-smi``, and the sensors that ``torch.cuda`` reads by NVML.

A program ``nvidia-smi`` is added to the path unless the machine has one. Load, temperature, clocks and power are 0.
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


def _add_nvidia_smi(patches: Patches, parts: Parts) -> None:
    """Write a program ``nvidia-smi`` that runs `smi_answers`, and add its folder to the end of ``PATH``."""
    gpu = parts[Gpu]
    if gpu.vendor != "nvidia" or shutil.which(_PROGRAM) is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="dsexplore-smi-"))
    patches.callback(shutil.rmtree, folder, True)
    node = (gpu.name, gpu.total_memory_mib, f"{gpu.major}.{gpu.minor}", parts[Driver].count)
    command = shlex.join([sys.executable, "-I", str(smi_answers.__file__), *map(str, node)])
    program = folder / _PROGRAM
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{before}{os.pathsep}{folder}"
    patches.callback(_remove_from_path, str(folder))


def _remove_from_path(folder: str) -> None:
    """Remove a folder from ``PATH``, which the program may have changed meanwhile."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(entry for entry in folders if entry != folder)


ZERO = "utilization, power, temperature and clocks of GPUs are 0, as this machine has no GPU"


def _zero(original: Any, parts: Parts) -> Any:
    """Replace a function that reads a sensor of a GPU by one that returns 0, and makes a remark."""
    remarks = parts[Remarks]

    def zero(device: Any = None) -> int:
        remarks.note(ZERO)
        return 0

    return zero


def _used(original: Any, parts: Parts) -> Any:
    """Replace ``torch.cuda.device_memory_used`` by the difference of total and free memory of ``mem_get_info``."""

    def used(device: Any = None) -> int:
        free, total = torch.cuda.mem_get_info(device)
        return total - free

    return used


PATCHES: tuple[Entry, ...] = (
    Change("the program nvidia-smi", "without a driver there is none", _add_nvidia_smi, when="cuda device"),
    *(Patch(name, "it asks a driver, and there is none", _zero, when="cuda device") for name in SENSORS),
    Patch(MEMORY_USED, "it asks a driver, and there is none", _used, when="cuda device"),
)

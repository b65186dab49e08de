"""``nvidia-smi``, on the path while a CPU stands in for GPUs, unless the machine has the program itself."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patches
from dsexplore._internal.worlds.cuda import smi_answers
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.cuda.gpu import Gpu

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


PATCHES: tuple[Entry, ...] = (
    Change("the program nvidia-smi", "no driver has brought it", _put_on_path, "cuda device"),
)

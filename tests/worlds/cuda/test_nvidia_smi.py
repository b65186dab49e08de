"""`nvidia-smi` and pynvml report the GPUs that a CPU stands in for, and none after the block.

Modules: ``worlds/cuda/gpu_sensors.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has the program")


def smi(*arguments: str) -> str:
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True).stdout


def test_answers_as_the_hardware() -> None:
    path = os.environ["PATH"]
    with simulate(4, hardware="h100", ranks_per_node=2):
        query = smi("--query-gpu=index,name,memory.total,power.draw", "--format=csv,noheader,nounits")
        assert query.splitlines() == [f"{index}, NVIDIA H100 80GB HBM3, 81089, [N/A]" for index in (0, 1)]
        assert smi("--query-gpu=memory.used", "--format=csv", "-i", "1") == "memory.used [MiB]\n0 MiB\n"
        assert smi("-L").count("GPU ") == 2
        assert "NVIDIA H100" in smi()
        assert subprocess.run("nvidia-smi -i 2", shell=True, capture_output=True, check=False).returncode == 6
    assert os.environ["PATH"] == path
    assert shutil.which("nvidia-smi") is None


@pytest.mark.parametrize("hardware", ["mi300x", "cpu"])
def test_other_hardware_has_none(hardware: str) -> None:
    with simulate(2, hardware=hardware):
        assert shutil.which("nvidia-smi") is None


def test_pynvml_answers_likewise() -> None:
    with simulate(4, hardware="a100", ranks_per_node=2):
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(nvml.nvmlDeviceGetCount() - 1)
        assert "A100" in nvml.nvmlDeviceGetName(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        assert memory.total == memory.free + memory.used > 70 << 30
        assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
        with pytest.raises(nvml.NVMLError):
            nvml.nvmlDeviceGetHandleByIndex(2)
        assert nvml.nvmlDeviceGetPciInfo(handle).busId.endswith(":01:00.0")
        with pytest.raises(nvml.NVMLError_NotSupported, match="not known"):
            nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)


def test_pynvml_that_is_installed_does_not_answer_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit():\n    raise OSError('no driver')\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed = import_module("pynvml")
    finders = list(sys.meta_path)
    with simulate(2, hardware="h100"):
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        assert "H100" in nvml.nvmlDeviceGetName(0)
    assert import_module("pynvml") is installed
    assert sys.meta_path == finders
    monkeypatch.delitem(sys.modules, "pynvml")

"""Data files of GPUs are complete and name their sources; a wrong file of a user raises an error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.cuda.gpu import GPUS, known_gpus, read_gpu
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in


@pytest.mark.parametrize("name", known_gpus())
def test_every_file_says_all_and_names_a_source_and_a_day(name: str) -> None:
    gpu = read_gpu(name)
    assert gpu.total_memory > 40 << 30
    assert all("(20" in source for source in gpu.sources.values())
    with cuda_stand_in(gpu=name.upper()):
        properties = torch.cuda.get_device_properties()
        assert torch.cuda.get_device_name() == properties.name == gpu.name
        assert torch.cuda.get_device_capability() == (gpu.major, gpu.minor)
        assert (torch.version.hip is None) == (gpu.vendor == "nvidia")


def changed_file(folder: Path, old: str, new: str) -> str:
    """Write a copy of the H100's data file with one text replaced, and return its path."""
    path = folder / "mine.toml"
    path.write_text(GPUS.path("h100").read_text().replace(old, new))
    return str(path)


def test_a_file_of_a_user(tmp_path: Path) -> None:
    with cuda_stand_in(gpu=changed_file(tmp_path, "NVIDIA H100 80GB HBM3", "Mine")):
        assert torch.cuda.get_device_name() == "Mine"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("minor = 0", "", "lacks minor"),
        ("minor = 0", "minor = 0\nminer = 0", "has unknown miner"),
        ("minor = 0", 'minor = "0"', "has minor = '0': give a whole number"),
        ("minor = 0", "minor = -1", "has minor = -1"),
        ('vendor = "nvidia"', 'vendor = "acme"', "has vendor = 'acme'"),
        ("minor = 0", "minor =", "cannot be read"),
        ("2.29.7", "2.29", "has nccl = '2.29': give three numbers"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = changed_file(tmp_path, old, new)
    with pytest.raises(UsageError, match=named):
        read_gpu(path)

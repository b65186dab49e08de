"""A script finds the variables that ``accelerate launch`` sets, whether or not accelerate is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.scripts.launch_lines import Launched, read_launch_line

CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
{kind_lower}_config:
  {field}
mixed_precision: 'bf16'
num_machines: 2
num_processes: 16
"""
needs_accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")


def launched(config: Path, *options: str) -> Launched:
    return read_launch_line(["accelerate", "launch", "--config_file", str(config), *options, "train.py", "--lr", "1"])


@pytest.fixture
def fsdp(tmp_path: Path) -> Path:
    file = tmp_path / "fsdp.yaml"
    file.write_text(CONFIG.format(kind="FSDP", kind_lower="fsdp", field="fsdp_version: 2"))
    return file


def test_the_numbers_of_a_configuration(fsdp: Path) -> None:
    read = launched(fsdp)
    assert (read.script, read.arguments) == ("train.py", ("--lr", "1"))
    assert (read.nodes, read.processes) == (2, 16)
    assert dict(read.variables)["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_options_count_before_a_configuration(fsdp: Path) -> None:
    read = launched(fsdp, "--num_processes=4", "--mixed_precision", "no")
    assert (read.nodes, read.processes) == (2, 4)
    assert dict(read.variables)["ACCELERATE_MIXED_PRECISION"] == "no"


def test_the_configuration_of_the_user(fsdp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fsdp.parent / "accelerate").mkdir()
    fsdp.rename(fsdp.parent / "accelerate" / "default_config.yaml")
    monkeypatch.setenv("HF_HOME", str(fsdp.parent))
    assert read_launch_line(["accelerate", "launch", "train.py"]).processes == 16


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: No such file"):
        launched(tmp_path / "none.yaml")


@needs_accelerate
def test_what_accelerate_sets(fsdp: Path) -> None:
    before = dict(os.environ)
    variables = dict(launched(fsdp).variables)
    assert (variables["ACCELERATE_USE_FSDP"], variables["FSDP_VERSION"]) == ("true", "2")
    assert os.environ == before
    fsdp.write_text(CONFIG.format(kind="DEEPSPEED", kind_lower="deepspeed", field="zero_stage: 3"))
    assert dict(launched(fsdp).variables)["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"


@needs_accelerate
def test_what_accelerate_refuses(fsdp: Path) -> None:
    with pytest.raises(UsageError, match="one of"):
        launched(fsdp, "--use_fsdp", "--use_deepspeed")

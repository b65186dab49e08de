"""The script's own code finds the variables and options of schedulers and older launchers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.worlds.scripts.cluster_launch import cluster_variables

OF_SLURM = """\
import os, torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
size = int(os.environ.get("SLURM_NTASKS", "1"))
on_node = int(os.getenv("SLURM_LOCALID"))
assert "SLURM_JOB_NODELIST" in os.environ and "SLURM_ARRAY_TASK_ID" not in os.environ
dist.init_process_group("gloo", rank=rank, world_size=size)
dist.all_reduce(torch.ones(4 + on_node))
"""
OF_ARGUMENT = """\
import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("{name}", type=int, default=-1)
parser.add_argument("rest", nargs="*")
arguments = parser.parse_args()
assert parser.parse_args([]).local_rank == -1
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4 + arguments.local_rank + 10 * len(arguments.rest)))
"""


def elements(folder: Path, script: str, *arguments: str) -> int:
    (folder / "train.py").write_text(script)
    trace = dsexplore.run(folder / "train.py", *arguments, world_size=16, rank=11, hardware="cpu")
    return int(trace.events["message_bytes"].item()) // 4


def test_variables_of_a_scheduler(tmp_path: Path) -> None:
    before = os.environ.get("SLURM_PROCID")
    assert elements(tmp_path, OF_SLURM) == 4 + 3
    assert os.environ.get("SLURM_PROCID") == before


def test_variables_that_a_real_scheduler_has_set_are_those_of_the_simulated_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert elements(tmp_path, OF_SLURM) == 4 + 3
    assert os.environ["SLURM_PROCID"] == "5"


def test_variables_of_mpi() -> None:
    variables = cluster_variables(11, 16, 8)
    assert (variables["OMPI_COMM_WORLD_RANK"], variables["OMPI_COMM_WORLD_LOCAL_RANK"]) == ("11", "3")
    assert cluster_variables(9, 10, 8)["OMPI_COMM_WORLD_LOCAL_SIZE"] == "2"
    assert variables["SLURM_TASKS_PER_NODE"] == "8(x2)"


@pytest.mark.parametrize("name", ["--local_rank", "--local-rank"])
def test_the_argument_of_older_launchers(tmp_path: Path, name: str) -> None:
    parse = argparse.ArgumentParser.parse_known_args
    assert elements(tmp_path, OF_ARGUMENT.format(name=name)) == 4 + 3
    assert argparse.ArgumentParser.parse_known_args is parse


def test_an_argument_that_is_given_counts(tmp_path: Path) -> None:
    script = OF_ARGUMENT.format(name="--local_rank")
    assert elements(tmp_path, script, "--local_rank=2", "x") == 4 + 2 + 10


def test_the_argument_where_the_script_hands_on_its_arguments(tmp_path: Path) -> None:
    script = OF_ARGUMENT.format(name="--local_rank").replace("parse_args()", "parse_args(sys.argv[1:])")
    assert elements(tmp_path, "import sys\n" + script, "x") == 4 + 3 + 10

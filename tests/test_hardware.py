"""A name of hardware stands for a GPU and its cluster; errors suggest a name for a misspelled one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dsexplore
from dsexplore._internal import hardware
from dsexplore._internal.cli import main
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.cuda.gpu import known_gpus
from dsexplore._internal.worlds.scripts.run_options import add_arguments
from dsexplore._internal.worlds.world_settings import WorldSettings
from dsexplore.cost import Cluster, known_clusters


def test_each_known_gpu_has_a_cluster_and_each_cluster_a_gpu() -> None:
    assert {Cluster.load(gpu).name for gpu in known_gpus()} <= set(known_clusters())
    assert {hardware.gpu_named(cluster) for cluster in known_clusters()} <= {*known_gpus(), hardware.CPU}
    assert all(hardware.gpu_named(Cluster.load(gpu).name) == gpu for gpu in known_gpus())
    assert Cluster.load("h100") is Cluster.load("DGX-H100")
    assert Cluster.load("cpu").library == "gloo"


@pytest.mark.parametrize(
    ("named", "gpu", "target"),
    [
        (None, "h100", "cuda"),
        ("a100", "a100", "cuda"),
        ("hgx-h200", "h200", "cuda"),
        ("mi300x", "mi300x", "cuda"),
        ("cpu", "cpu", "cpu"),
        ("gloo-local", "cpu", "cpu"),
    ],
)
def test_what_a_simulated_world_takes_it_for(named: str | None, gpu: str, target: str) -> None:
    settings = WorldSettings(world_size=2, hardware=named).resolved()
    assert (settings.gpu, settings.target) == (gpu, target)


def test_a_cluster_of_the_user_s_means_the_gpu_of_its_generation(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('generation = "ampere"\n')
    assert WorldSettings(world_size=2, hardware=str(file)).gpu == "a100"


@pytest.mark.parametrize(("text", "gpu"), [('gpu = "l40s"', "l40s"), ("", "h200")])
def test_or_the_one_that_it_or_its_base_names(text: str, gpu: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'title = "Mine"\nbase = "gcp-a3-ultra"\n{text}\n')
    assert WorldSettings(world_size=2, hardware=str(file)).gpu == gpu
    assert Cluster.load(str(file)).title == "Mine"


def test_a_cluster_names_the_gpu_that_a_program_finds() -> None:
    with dsexplore.simulate(2, hardware="dgx-a100"):
        assert "A100" in torch.cuda.get_device_name()


def _compare(**options: object) -> object:
    return dsexplore.compare_meshes(lambda mesh: lambda: None, 2, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (lambda **o: dsexplore.simulate(2, **o), "device"),
        (lambda **o: dsexplore.commtrace(world_size=2, **o), "target"),
        (lambda **o: dsexplore.run("train.py", world_size=2, **o), "gpu"),
        (lambda **o: dsexplore.Trace().predict(**o), "cluster"),
        (lambda **o: dsexplore.Trace().timeline(**o), "cluster"),
        (lambda **o: dsexplore.Trace().to_html("trace.html", **o), "cluster"),
        (lambda **o: dsexplore.cost.collective_time("all_reduce", 1, 2, **o), "cluster"),
        (_compare, "cluster"),
    ],
)
def test_an_old_spelling_is_told_the_new_one(call: Callable[..., object], given: str) -> None:
    with pytest.raises(UsageError, match=rf"{given}'.*did you mean 'hardware'\?"):
        call(**{given: "cuda"})


@pytest.mark.parametrize("option", ["--gpu", "--cluster", "--device", "--target"])
def test_so_is_an_old_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--world-size", "2", option, "cpu", "train.py"])
    assert "did you mean --hardware?" in capsys.readouterr().err


def test_run_takes_hardware() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--hardware", "a100", "train.py"]).hardware == "a100"


def test_unknown_hardware_is_told_a_near_name() -> None:
    with pytest.raises(UsageError, match=r"no hardware named 'h10' is known \(did you mean 'h100'\?\)"):
        WorldSettings(world_size=2, hardware="h10").resolved()
    with pytest.raises(UsageError, match=r"no hardware named 'h10' is known \(did you mean 'h100'\?\)"):
        Cluster.load("h10")

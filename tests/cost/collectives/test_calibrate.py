"""A sweep turned into a cluster file, and what the command does with one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import dsexplore
from dsexplore import UsageError
from dsexplore._internal.cli import main
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from dsexplore._internal.cost.collectives.calibrate import calibrated, usual_base
from dsexplore._internal.views import view_of
from dsexplore.cost import Cluster, collective_time

SIZES = tuple(1 << power for power in range(9, 25))


def gloo(nodes: int = 1, per_node: int = 4) -> CommSweep:
    """Return a made-up sweep of gloo: 50 µs and 1 GB/s, all_gather half of that."""
    conditions = SweepConditions("gloo", "cpu", nodes, per_node, "float32", 'torch "x"', "2026-11-23T10:00:00")
    points = [
        SweepPoint(op, size, in_place, ((50e-6 + size / 1e9) * factor,), 9, 0)
        for op, factor in (("all_reduce", 1.0), ("all_gather", 0.5))
        for size in SIZES
        for in_place in (False, True)
    ]
    return CommSweep(conditions, points)


def test_measured_points_are_predicted(tmp_path: Path) -> None:
    calibration = calibrated(gloo(), Cluster.load("gloo-local"))
    path = calibration.save(tmp_path / "here.toml")
    saved = Cluster.load(path)
    for cluster in (calibration.cluster, saved):
        for size in SIZES:
            for op, factor in (("all_reduce", 1.0), ("all_gather", 0.5)):
                found = collective_time(op, size, 4, hardware=cluster)
                assert found.expected == pytest.approx((50e-6 + size / 1e9) * factor, rel=0.01)
    assert saved.measured[0].source == 'measured: gloo on cpu, torch "x"'
    assert saved.measured[0].date == "2026-11-23"
    assert saved.compute == Cluster.load("gloo-local").compute


def test_an_op_that_was_not_measured_follows_its_relatives() -> None:
    plain, cluster = Cluster.load("gloo-local"), calibrated(gloo(), Cluster.load("gloo-local")).cluster
    related = collective_time("reduce_scatter", 1 << 20, 4, hardware=cluster)
    measured = collective_time("all_reduce", 1 << 20, 4, hardware=cluster)
    assert 1 < related.expected / measured.expected < 1.8  # torch does an all_reduce, and copies
    guessed = collective_time("reduce_scatter", 1 << 20, 4, hardware=plain)
    assert related.high / related.low < guessed.high / guessed.low


def test_tables_of_the_base_stay_but_for_the_same_group() -> None:
    base = Cluster.load("dgx-h100")
    cluster = calibrated(gloo(per_node=8), base).cluster
    kept = {(t.op, t.ranks_per_node) for t in cluster.measured}
    assert kept == {(t.op, t.ranks_per_node) for t in base.measured}
    eight = [t for t in cluster.measured if (t.op, t.ranks_per_node) == ("all_reduce", 8)]
    assert [t.source for t in eight] == ['measured: gloo on cpu, torch "x"']


@pytest.mark.parametrize(("op", "in_place"), [("all_reduce", True), ("all_gather", False)])
def test_the_buffers_that_torch_uses_are_those_that_count(op: str, in_place: bool) -> None:
    conditions = gloo().conditions
    points = [
        SweepPoint(op, size, place, (1e-3 if place == in_place else 5e-3,), 9, 0)
        for size in SIZES
        for place in (False, True)
    ]
    cluster = calibrated(CommSweep(conditions, points), Cluster.load("gloo-local")).cluster
    assert set(cluster.measured[0].seconds) == {1e-3}
    only = [point for point in points if point.in_place != in_place]
    cluster = calibrated(CommSweep(conditions, only), Cluster.load("gloo-local")).cluster
    assert set(cluster.measured[0].seconds) == {5e-3}


def test_the_usual_base_is_that_of_the_backend() -> None:
    local = gloo()
    assert usual_base(local) == "gloo-local"
    assert usual_base(CommSweep(replace(local.conditions, backend="nccl"), local.points)) == "dgx-h100"


def test_a_saved_calibration_keeps_the_other_tables_of_its_base(tmp_path: Path) -> None:
    calibration = calibrated(gloo(per_node=8), Cluster.load("dgx-h100"))
    saved = Cluster.load(calibration.save(tmp_path / "lab.toml"))
    assert {(t.op, t.ranks_per_node, t.source) for t in saved.measured} == {
        (t.op, t.ranks_per_node, t.source) for t in calibration.cluster.measured
    }


def test_its_figure_is_drawn_where_no_plotly_runs() -> None:
    calibration = calibrated(gloo(), Cluster.load("gloo-local"))
    twin = view_of(calibration).still(calibration.figure(op="all_gather"))
    assert twin.count('<svg class="still"') == 1
    assert [
        f"{word}</span>" in twin for word in ("predicted by gloo-local", "range by gloo-local", "all_gather, measured")
    ] == [True] * 3
    assert twin.count(" GB/s, busbw ") == len(SIZES)  # the title of each mark


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dgx-h100 has 8 ranks per node and the sweep 9"):
        calibrated(gloo(per_node=9), Cluster.load("dgx-h100"))
    with pytest.raises(UsageError, match=r"ends in \.toml"):
        calibrated(gloo(), Cluster.load("gloo-local")).save(tmp_path / "lab.txt")
    with pytest.raises(UsageError, match="no hardware named 'nowhere'"):
        dsexplore.calibrate(base="nowhere")


def test_the_command_reads_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = gloo().save(tmp_path / "sweep.json")
    target, page = tmp_path / "lab.toml", tmp_path / "page.html"
    assert main(["comm", "--read", str(saved), "--calibrate", str(target), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# all_reduce\n#  ")
    assert "all_gather: mean 25.3 µs at least" in out
    assert Cluster.load(target).measured[0].op == "all_reduce"
    assert "<h1" in page.read_text(encoding="utf-8") or "all_reduce" in page.read_text(encoding="utf-8")


@pytest.mark.processes
def test_the_command_measures_local_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "lab.toml"
    arguments = ["-b", "1KiB", "-e", "4KiB", "-f", "4", "--rounds", "1", "--seconds", "0", "--ops", "all_reduce"]
    assert main(["comm", "--real", "2", *arguments, "--calibrate", str(target)]) == 0
    assert "gloo on cpu, 2 ranks, float32" in capsys.readouterr().out
    assert Cluster.load(target).measured[-1].message_bytes == (1024, 4096)
    assert Cluster.load(target).processors == len(os.sched_getaffinity(0))


def test_a_wrong_result_is_the_exit_status(tmp_path: Path) -> None:
    result = gloo()
    result.points[0] = SweepPoint("all_reduce", 512, False, (1e-4,), 9, 7)
    assert main(["comm", "--read", str(result.save(tmp_path / "sweep.json"))]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no ranks to measure: give --real 4"),
        (["--real", "1"], "--real 1: a collective needs 2 ranks"),
        (["--real", "2", "--calibrate", "lab.txt"], r"give a file that ends in .toml"),
        (["--real", "2", "--save", "/nowhere/x.json"], "there is no folder /nowhere"),
        (["--real", "2", "--base", "nowhere"], "--base is about a cluster file: give --calibrate FILE.toml too"),
        (["--real", "2", "--calibrate", "lab.toml", "--base", "nowhere"], "no hardware named 'nowhere'"),
    ],
)
def test_what_the_command_cannot_do_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["comm", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_processors_that_ranks_share_are_kept_in_the_file(tmp_path: Path) -> None:
    measured = gloo()
    measured.conditions = replace(measured.conditions, processors=2)
    again = CommSweep.from_json(measured.to_json())
    assert again.conditions.processors == 2
    calibration = calibrated(again, Cluster.load("gloo-local"))
    assert (calibration.cluster.processors, Cluster.load(calibration.save(tmp_path / "here.toml")).processors) == (2, 2)
    assert calibrated(again, Cluster.load("dgx-h100")).cluster.processors is None  # each GPU has its own
    assert calibrated(gloo(), Cluster.load("gloo-local")).cluster.processors is None

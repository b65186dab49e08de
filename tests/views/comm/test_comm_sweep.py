"""Views of a sweep of collectives and of a calibration: text, page, figures, explorer.

Modules: ``views/comm/``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore import UsageError
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from dsexplore._internal.cost.collectives.calibrate import calibrated
from dsexplore._internal.views.comm.comm_sweep_figures import point_text
from dsexplore.cost import Cluster


@pytest.fixture
def sweep() -> CommSweep:
    conditions = SweepConditions("gloo", "cpu", 1, 4, "float32", "torch <b>", "2026-11-23T10:00:00", ("left <i>out",))
    points = [
        SweepPoint(op, 1 << power, in_place, ((1 << power) * 1e-9 + 1e-4,) * 3, 30, 0)
        for op in ("all_reduce", "broadcast")
        for power in (10, 20)
        for in_place in (False, True)
    ]
    return CommSweep(conditions, points)


def test_text_and_page(sweep: CommSweep, tmp_path: Path) -> None:
    bundle = sweep._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[0] == "gloo on cpu, 4 ranks, float32; torch <b>"
    page = sweep.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<pre class="rows"') == 2
    assert "torch &lt;b&gt;" in page
    assert "left <i>" not in page


def test_figures(sweep: CommSweep) -> None:
    figure = sweep.figure(kind="time", ops=["broadcast"])
    assert [line.name for line in figure.data] == ["broadcast", "broadcast, in place"]
    assert figure.data[0].y[0] == pytest.approx(101.024)
    assert len(sweep.figure().data) == 4
    with pytest.raises(UsageError, match="kind 'speed' is unknown"):
        sweep.figure(kind="speed")
    with pytest.raises(UsageError, match="no argument 'size'"):
        sweep.figure(size=1)
    with pytest.raises(UsageError, match="op 'send' was not measured"):
        sweep.figure(ops=["send"])


def test_the_explorer_shows_the_point_that_was_clicked(sweep: CommSweep) -> None:
    explorer = sweep.explore()
    assert explorer.selection is None
    clicked = {"type": "click", "customdata": point_text(sweep, sweep.points[2]), "index": [0]}
    explorer.children[1]._handle_custom_msg(clicked, [])
    assert explorer.selection == sweep.points[2]
    assert "all_reduce of 1 MiB, out of place" in explorer.children[-1].value
    kind, ops = explorer.children[0].children
    ops.value = ("broadcast",)
    assert {line["name"] for line in explorer.children[1].spec["data"]} == {"broadcast", "broadcast, in place"}
    kind.value = "time"
    assert explorer.children[1].spoken == "time of broadcast"


def test_a_calibration_shows_points_over_what_was_predicted(sweep: CommSweep, tmp_path: Path) -> None:
    calibration = calibrated(sweep, Cluster.load("gloo-local"))
    assert "times what gloo-local predicts." in str(calibration._repr_mimebundle_()["text/plain"])
    with pytest.raises(UsageError, match="send"):
        calibration.figure(op="send")
    figure = calibration.figure(op="broadcast")
    assert [line.name for line in figure.data] == [
        "range by gloo-local",
        "predicted by gloo-local",
        "broadcast, measured",
    ]
    assert list(figure.data[2].x) == [1024, 1 << 20]
    assert figure.data[1].y[1] != figure.data[2].y[1]
    assert ">factor</th>" in calibration.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert calibration.explore().selection is None

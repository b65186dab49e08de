"""The explorer without a browser: filters, selection, folding, what a click picks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from ipywidgets import Widget

from dsexplore.errors import UsageError
from dsexplore.trace.model import Tables, Trace
from dsexplore.views.codes import EventCodes


@pytest.fixture(autouse=True)
def widgets_are_closed() -> Iterator[None]:
    yield
    Widget.close_all()


@pytest.fixture
def trace(traces: ModuleType) -> Trace:
    made: Trace = traces.layered(8, odd=3)
    return made


def column(explorer: Any, title: str) -> list[float]:
    values = np.frombuffer(explorer.tree.values, np.float32).reshape(len(explorer.tree.titles), -1)
    return values[[t for t, _ in explorer.tree.titles].index(title)].tolist()


def test_everything_is_selected_at_first(trace: Trace) -> None:
    explorer = trace.explore()
    assert explorer.selection.events.equals(trace.events)
    assert explorer.selection.modules.equals(trace.modules)


def test_a_folded_row_stands_for_all_its_layers(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.tree.selected = explorer._codes.tree.names.index("Net.layers.0.up")
    owners = {f"Net.layers.{i}.up" for i in range(8) if i != 3}
    assert set(explorer.selection.events["owner"]) == owners
    assert column(explorer, "count")[explorer.tree.selected] == 7


def test_selecting_one_of_them_unfolds(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.select("Net.layers.5.up")
    assert set(explorer.selection.events["owner"]) == {"Net.layers.5.up"}
    assert explorer.tree.folding is False
    explorer.select(None)
    assert len(explorer.selection) == 25


@pytest.mark.parametrize(
    "filters",
    [
        {"phase": "backward"},
        {"op": ["all_gather", "reduce_scatter"]},
        {"axis": "tp", "phase": "forward"},
        {"step": 0},
        {"rank": 1},
        {"group": "g_dp"},
    ],
)
def test_filters_are_those_of_where(trace: Trace, filters: dict[str, Any]) -> None:
    explorer = trace.explore()
    explorer.filter(**filters)
    assert explorer.selection.events.equals(trace.where(**filters).events)
    assert column(explorer, "count")[0] == len(trace.where(**filters))


def test_implicit_and_pattern(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.filter(implicit=True)
    assert explorer.selection.events.equals(trace.where(implicit=True).events)
    explorer.filter(module="layers.*.up", phase="backward")
    assert explorer.selection.events.equals(trace.where(module="layers.*.up", phase="backward").events)


def test_controls_do_what_filter_does(trace: Trace) -> None:
    explorer = trace.explore()
    phase = explorer._controls["phase"]
    assert [text for text, _ in phase.options] == ["phase: all", "phase: forward", "phase: backward"]
    phase.value = 2
    assert explorer.selection.events.equals(trace.where(phase="backward").events)
    explorer._reset()
    assert phase.value == 0
    assert len(explorer.selection) == 25


@pytest.mark.parametrize(
    ("click", "module", "count"),
    [
        ({"kind": "module_axis", "customdata": ["Net.layers.*", "dp"], "index": [0, 0]}, "Net.layers.0", 8),
        ({"kind": "op_phase", "customdata": ["reduce_scatter", "backward"], "index": [0]}, "Net.layers.0.up", 8),
        ({"kind": "size", "customdata": ["all_gather", 8192], "index": [0]}, "Net.layers.0", 8),
        ({"kind": "sequence", "index": [0, 0]}, "Net.layers.0", 1),
    ],
)
def test_a_click_selects_the_module_and_shows_the_line(
    trace: Trace, click: dict[str, Any], module: str, count: int
) -> None:
    explorer = trace.explore()
    explorer._on_plot({"type": "click", **click})
    assert explorer._codes.tree.names[explorer.tree.selected] == module
    assert int(explorer._picked.sum()) == count
    assert "train.py:10" in explorer._details.value


def test_zoom_bins_anew(traces: ModuleType) -> None:
    explorer = traces.layered(200).explore(figure="sequence")
    assert len(explorer.plot.spec["data"][0]["z"]) == 3
    explorer._on_plot({"type": "zoom", "range": [10, 20]})
    assert explorer.plot.spec["layout"]["xaxis"]["title"]["text"].startswith("program order")
    assert explorer._window == (10.0, 20.0)
    explorer._on_plot({"type": "zoom", "range": None})
    assert explorer._window is None


def test_unknown_things_are_named(trace: Trace) -> None:
    with pytest.raises(UsageError, match=r"explore\(figure='pie'\).*kinds are modules, ops"):
        trace.explore(figure="pie")
    explorer = trace.explore()
    with pytest.raises(UsageError, match=r"'Net\.nothing'"):
        explorer.select("Net.nothing")
    with pytest.raises(UsageError, match=r"filter\(colour=…\).*phase, op"):
        explorer.filter(colour="red")
    with pytest.raises(UsageError, match=r"figure\(kind='pie'\)"):
        trace.figure(kind="pie")


def test_an_empty_trace_and_one_without_modules(trace: Trace) -> None:
    assert len(Trace(Tables()).explore().selection) == 0
    assert len(Trace(Tables(events=trace.events)).explore().selection) == 25


def test_folded_sums_are_those_of_the_members(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    plain = codes.columns(codes.mask({"op": "all_gather"}))
    folded = codes.fold(plain)
    for row in range(len(codes.tree)):
        hidden = any(other <= row < codes.tree.ends[other] for rows in codes.folds for other in rows[1:])
        if not hidden:
            assert np.array_equal(folded[:, row], plain[:, codes.members(row)].sum(axis=1))


def test_the_static_view_stands_beside_the_widget(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    explorer = trace.explore()
    explorer._ipython_display_()
    assert explorer.tree.twin.startswith("dsx-")
    assert "Trace: 25 collectives" in capsys.readouterr().out


def test_static_views_import_neither_plotly_nor_ipywidgets(traces: ModuleType) -> None:
    code = (
        "import sys; from dsexplore.trace.model import Trace; Trace()._repr_mimebundle_();"
        "print([m for m in ('plotly', 'ipywidgets', 'anywidget', 'pandas') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    assert ran.stdout.strip() == "[]"

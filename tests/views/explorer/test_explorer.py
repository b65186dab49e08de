"""The explorer without a browser: filters, selection, folding, clicks."""

from __future__ import annotations

import base64
import gzip
import json
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.module_rows import FoldedRows
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.event_codes import EventCodes
from tests.analysis import planted
from tests.programs import printed
from tests.views.explorer.messages import send


def column(explorer: Any, title: str) -> list[float]:
    rows = len(explorer.widget.labels)
    values = np.frombuffer(explorer.widget.values, np.float32).reshape(-1, rows)
    place = explorer.widget.columns[[each[0] for each in explorer.widget.titles].index(title)]
    return values[place].tolist() if place >= 0 else [0.0] * rows


def selected_module(explorer: Any) -> str:
    """Return the fully qualified name of the selected row, put together from what the browser has."""
    structure = np.frombuffer(explorer.widget.structure, np.int32).reshape(-1, 4)
    parts, row = [], explorer.widget.selected
    while row >= 0:
        parts.append(explorer.widget.labels[row])
        row = structure[row, 0]
    return ".".join(reversed(parts))


def test_everything_is_selected_at_first(trace: Trace) -> None:
    explorer = trace.explore()
    assert explorer.selection.events.equals(trace.events)
    assert explorer.selection.modules.equals(trace.modules)


def test_a_folded_row_stands_for_all_its_layers(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.select("Net.layers.0.up")
    owners = {f"Net.layers.{i}.up" for i in range(8) if i != 3}
    assert set(explorer.selection.events["owner"]) == owners
    assert column(explorer, "count")[explorer.widget.selected] == 7


def test_a_folded_row_is_called_by_all_its_layers(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.select("Net.layers.0.up")
    title = "Net.layers.[0–2, 4–7].up ×7"
    assert f"7 of 25 collectives, 21 KiB on the wire in <bdi>{title}</bdi>" in explorer.widget.status
    assert f"<b><bdi>{title}</bdi></b>" in explorer.widget.details
    assert "These are the parameters of <bdi>Net.layers.0.up</bdi>, one of 7 equal modules." in explorer.widget.details
    explorer.widget.folding = False
    assert "1 of 25 collectives, 3 KiB on the wire in <bdi>Net.layers.0.up</bdi>" in explorer.widget.status
    assert set(explorer.selection.events["owner"]) == {"Net.layers.0.up"}
    assert explorer.widget.spec["data"][0]["customdata"] == [[["Net.layers.*.up", "tp"]]]


def test_selecting_one_of_them_unfolds(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.select("Net.layers.5.up")
    assert set(explorer.selection.events["owner"]) == {"Net.layers.5.up"}
    assert explorer.widget.folding is False
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


def test_what_a_choice_changes_is_one_message(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = trace.explore()
    sent: list[set[str]] = []
    monkeypatch.setattr(explorer.widget, "_send", lambda message, buffers=None: sent.append(set(message["state"])))
    for state, changed in (
        (
            {"chosen": {"phase": 2}},
            {"spec", "spoken", "columns", "values", "status", "line", "visits", "details", "timeline"},
        ),
        ({"selected": 2}, {"spec", "spoken", "status", "line", "visits", "details", "timeline"}),
        (
            {"folding": False},
            {"columns", "values", "status", "line", "visits", "details", "spec", "spoken", "timeline"},
        ),
        ({"kind": "ops"}, {"spec", "spoken"}),
    ):
        data = {"method": "update", "state": state, "buffer_paths": []}
        explorer.widget._handle_msg({"content": {"data": data}, "buffers": []})
        assert len(sent) == 1
        assert sent.pop() <= changed


def test_implicit_and_pattern(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.filter(implicit=True)
    assert explorer.selection.events.equals(trace.where(implicit=True).events)
    explorer.filter(module="layers.*.up", phase="backward")
    assert explorer.selection.events.equals(trace.where(module="layers.*.up", phase="backward").events)


def test_controls_do_what_filter_does(trace: Trace) -> None:
    explorer = trace.explore()
    assert dict(explorer.widget.lists)["phase"] == ["all", "forward", "backward"]
    explorer.widget.chosen = {"phase": 2}
    assert explorer.selection.events.equals(trace.where(phase="backward").events)
    explorer.widget.pattern, explorer.widget.implicit = " layers.*.up ", True
    assert explorer.selection.events.equals(trace.where(phase="backward", module="layers.*.up", implicit=True).events)
    send(explorer, {"type": "clear"})
    assert (explorer.widget.chosen, explorer.widget.pattern, explorer.widget.implicit) == ({}, "", False)
    assert len(explorer.selection) == 25


@pytest.mark.parametrize(
    ("click", "module", "count"),
    [
        ({"kind": "module_axis", "customdata": ["Net.layers.*", "dp"], "index": [0, 0]}, "Net.layers.0", 8),
        ({"kind": "op_phase", "customdata": ["reduce_scatter", "backward"], "index": [0]}, "Net.layers.0.up", 8),
        ({"kind": "size", "customdata": ["all_gather", 8192], "index": [0]}, "Net.layers.0", 8),
        ({"kind": "cause", "index": [0]}, "Net.layers.3.down", 1),
    ],
)
def test_a_click_selects_the_module_and_shows_the_line(
    trace: Trace, click: dict[str, Any], module: str, count: int
) -> None:
    explorer = trace.explore()
    send(explorer, {"type": "click", **click})
    assert selected_module(explorer) == module
    assert len(explorer.selection) == count
    assert "train.py:10" in explorer.widget.details


def test_filters_that_leave_nothing_say_so_and_a_name_that_no_module_has_is_told(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.filter(phase="backward", op="all_gather")
    assert explorer.widget.status.startswith("<span>0 of 25 collectives, 0 B on the wire</span>")
    assert explorer.widget.spec["layout"]["annotations"][0]["text"] == "nothing of this kind in what is chosen"
    for pattern in ("up", "[", "<b>"):
        explorer.widget.pattern = pattern
        assert f"no module is called <bdi>{escape(pattern)}</bdi>; * matches any text" in explorer.widget.status
    explorer.widget.pattern = "*up"
    assert "no module" not in explorer.widget.status


def test_filters_by_several_values_are_told_because_no_list_shows_them(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.filter(op=["all_gather", "reduce_scatter"], phase=["forward"])
    assert explorer.widget.chosen == {"phase": 1}
    assert "– only op <bdi>all_gather</bdi> or <bdi>reduce_scatter</bdi></span>" in explorer.widget.status
    explorer.widget.chosen = {}
    assert "only" not in explorer.widget.status
    explorer.filter(rank=[7])
    assert explorer.widget.status.startswith("<span>0 of 25 collectives, 0 B on the wire</span>")
    assert "– only rank <bdi>7</bdi></span>" in explorer.widget.status


def test_an_explorer_tells_what_is_chosen_as_text(trace: Trace) -> None:
    explorer = trace.explore()
    assert repr(explorer) == "<Explorer: 25 of 25 collectives, 110 KiB on the wire>"
    explorer.select("Net.layers.3.up")
    assert repr(explorer) == "<Explorer: 2 of 25 collectives, 9 KiB on the wire in Net.layers.3.up>"


def test_groups_are_told_by_axis_and_ranks(trace: Trace) -> None:
    assert dict(trace.explore().widget.lists)["group"] == [
        "all", "dp ranks 0, 4 (g_dp)", "tp ranks 0–3 (g_tp)",
    ]  # fmt: skip


def test_clicking_the_selected_row_after_a_mark_selects_the_module(trace: Trace) -> None:
    explorer = trace.explore(figure="ops")
    send(explorer, {"type": "click", "kind": "op_phase", "customdata": ["all_gather", "forward"], "index": [0]})
    assert len(explorer.selection) == 9
    send(explorer, {"type": "again"})
    assert set(explorer.selection.events["owner"]) == {"Net.layers.3.up"}
    assert len(explorer.selection) == 2


def test_redistributes_that_nobody_asked_for_come_first(trace: Trace) -> None:
    explorer = trace.explore()
    assert "did not ask for: 2" in explorer.widget.details
    assert "P→R" in explorer.widget.details
    explorer.filter(op="reduce_scatter")
    assert explorer.widget.details == ""


def test_equal_columns_and_zeros_are_not_sent(trace: Trace) -> None:
    explorer = trace.explore()
    explorer.filter(phase="backward", axis="tp")
    titles = [title for title, *_ in explorer.widget.titles]
    place = dict(zip(titles, explorer.widget.columns, strict=True))
    assert place["forward"] == place["on dp"] == -1
    assert place["backward"] == place["on tp"] == place["bytes"]
    assert len(explorer.widget.values) == 4 * len(explorer.widget.labels) * (max(place.values()) + 1)


def test_unknown_things_are_named(trace: Trace) -> None:
    with pytest.raises(UsageError, match=r"explore\(figure='pie'\).*kinds are modules, ops"):
        trace.explore(figure="pie")
    explorer = trace.explore()
    with pytest.raises(UsageError, match=r"'Net\.nothing'"):
        explorer.select("Net.nothing")
    with pytest.raises(UsageError, match=r"filter\(color=…\).*phase, op"):
        explorer.filter(color="red")
    with pytest.raises(
        UsageError,
        match=r"filter\(phase='forwards'\): no such phase; they are start-up, forward, no-grad forward, between",
    ):
        explorer.filter(phase="forwards")
    with pytest.raises(UsageError, match=r"filter\(module=3\)"):
        explorer.filter(module=3)
    for wanted, message in [
        ({"axis": "pt"}, r"filter\(axis='pt'\): no such axis; they are dp, tp \(did you mean 'tp'\?\)"),
        ({"axis": ["tp", "pd"]}, r"filter\(axis='pd'\).*did you mean 'dp'"),
        ({"op": "allgather"}, r"filter\(op='allgather'\): no such op.*did you mean 'all_gather'"),
        ({"group": "g_dq"}, r"filter\(group='g_dq'\).*did you mean 'g_dp'"),
        ({"module": "layer.1"}, r"filter\(module='layer.1'\): no such module.*did you mean 'layers.1'"),
        ({"axes": "tp"}, r"filter\(axes=…\): no such filter.*did you mean 'axis'"),
    ]:
        with pytest.raises(UsageError, match=message):
            explorer.filter(**wanted)
    assert len(explorer.selection) == 25  # as before all that
    with pytest.raises(UsageError, match=r"explore\(height='tall'\).*in pixels"):
        trace.explore(height="tall")
    with pytest.raises(UsageError, match=r"figure\(kind='pie'\)"):
        trace.figure(kind="pie")


def test_an_empty_trace_and_one_without_modules(trace: Trace) -> None:
    assert len(Trace(Tables()).explore().selection) == 0
    assert len(Trace(Tables(events=trace.events)).explore().selection) == 25


def test_folded_sums_are_those_of_the_members(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    rows = FoldedRows(codes.tree, codes.folds)
    plain = codes.columns(codes.sums(codes.mask({"op": "all_gather"}))).axes
    folded = rows.sums(plain)
    for row in range(len(codes.tree)):
        assert row in codes.folds.members(rows.shown(row))
        if rows.shown(row) == row:
            assert np.array_equal(folded[:, row], plain[:, codes.folds.members(row)].sum(axis=1))


def test_the_static_view_stands_beside_the_widget(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    explorer = trace.explore()
    explorer._ipython_display_()
    assert "Trace: 25 collectives" in capsys.readouterr().out
    twin, _ = explorer.static_twin()
    assert 'class="tree"' in twin
    assert explorer._display_() is explorer.widget


def test_static_views_import_neither_plotly_nor_ipywidgets(traces: ModuleType) -> None:
    code = (
        "import sys; from dsexplore._internal.trace.trace import Trace; Trace()._repr_mimebundle_();"
        "print([m for m in ('plotly', 'ipywidgets', 'anywidget', 'pandas') if m in sys.modules])"
    )
    assert printed(code).strip() == "[]"


def test_one_switch_changes_all_sizes(trace: Trace) -> None:
    explorer = trace.explore()
    wire = column(explorer, "bytes")
    assert wire[0] == trace.events["wire_bytes"].sum()
    for kind in ("modules", "ops", "sequence", "ranks", "sankey"):
        explorer.widget.kind, explorer.widget.sizes = kind, "wire"
        drawn = json.dumps(explorer.widget.spec)
        explorer.widget.sizes = "message"
        assert json.dumps(explorer.widget.spec) != drawn, kind
    assert column(explorer, "bytes")[0] == trace.events["message_bytes"].sum()
    assert explorer.widget.status.startswith("<span>25 of 25 collectives, 132 KiB in messages</span>")
    with pytest.raises(UsageError, match="sizes='bits'"):
        trace.explore(sizes="bits")


def test_a_sentence_chooses_its_events(trace: Trace) -> None:
    explorer = trace.explore()
    sentences = trace.headline().sentences
    assert explorer.widget.headline.count("data-sentence") == len(sentences) == 3
    explorer.filter(phase="backward")
    for i, sentence in enumerate(sentences):
        send(explorer, {"type": "sentence", "index": i})
        assert explorer.selection.events.equals(trace.headline().trace(i).events)
        assert escape(sentence.text) in explorer.widget.status
    assert explorer.widget.chosen == {}
    assert selected_module(explorer) == "Net.layers.3.down"
    send(explorer, {"type": "sentence", "index": 99})
    assert len(explorer.selection) == len(trace.headline().trace(2))


def test_the_timeline_and_the_map_show_what_a_sentence_speaks_of(traces: ModuleType) -> None:
    trace = traces.timed()
    explorer = trace.explore()
    sentences = trace.headline().sentences
    number = next(i for i, one in enumerate(sentences) if one.module)
    send(explorer, {"type": "sentence", "index": number})
    wanted = trace.headline().trace(number).events
    assert 0 < len(wanted) < len(trace)
    drawn = len(explorer.widget.timeline["boxes"]["begin"])
    assert drawn == len(wanted) * 4
    explorer.widget.tab = "map"
    assert explorer.widget.panel == explorer._drawing.map.html(explorer._selected.mask, None)
    explorer.widget.tab = "timeline"
    send(explorer, {"type": "window", "begin": -1.0, "end": 2.0})
    assert len(explorer.widget.timeline["boxes"]["begin"]) == drawn, "whatever row the sentence selects"
    assert f"sentence {number + 1} of the headline" in explorer.widget.status
    send(explorer, {"type": "drop", "part": "sentence"})
    explorer.select(None)
    assert explorer.selection.events.equals(trace.events)


def test_an_explorer_of_nothing_says_so() -> None:
    sentence = "Nothing is sent: the program called no collective."
    assert f'<p class="verdict">{sentence}</p>' in Trace().explore().widget.headline
    assert sentence in Trace().headline()._repr_mimebundle_()["text/html"]


def test_all_findings_have_a_tab_and_stand_below_the_headline_of_a_file_of_its_own(tmp_path: Path) -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        planted.implicit_redistributes(True)
        planted.repeated_collectives(True)
    found = trace.findings()
    assert len(found) > 1
    live = trace.explore(tab="findings").widget
    assert f"<b>{len(found)} findings, largest saving first</b>" in live.panel
    page = trace.to_html(tmp_path / "page.html", interactive=True).read_text("utf-8")
    packed = page.partition('id="dsx-events">')[2].partition("<")[0]
    alone = json.loads(gzip.decompress(base64.b64decode(packed)))["state"]["headline"]
    assert f"Findings: {len(found)}; wire bytes per rank and step" in alone
    for one in found:
        assert html.prose(one.change, longest=320) in live.panel
        assert html.prose(one.change, longest=320) in alone


def test_a_tab_without_findings_says_so() -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        planted.repeated_collectives(False)
    assert len(trace.findings()) == 0
    assert "No rule found anything" in trace.explore(tab="findings").widget.panel

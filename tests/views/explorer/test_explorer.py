"""The explorer without a browser: filters, selection, folding, what a click picks."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.module_rows import FoldedRows
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.theme import PHASES
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figures import FIGURES
from tests.analysis import planted
from tests.programs import printed


def column(explorer: Any, title: str) -> list[float]:
    rows = len(explorer.widget.labels)
    values = np.frombuffer(explorer.widget.values, np.float32).reshape(-1, rows)
    place = explorer.widget.columns[[each[0] for each in explorer.widget.titles].index(title)]
    return values[place].tolist() if place >= 0 else [0.0] * rows


def send(explorer: Any, message: dict[str, Any]) -> None:
    """Send what the browser sends when something is clicked or zoomed."""
    explorer.widget._handle_custom_msg(message, [])


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


def test_a_sankey_shows_all_that_a_rank_sends_and_joins_the_least_of_many_targets(traces: ModuleType) -> None:
    flows = traces.layered(2).explore(figure="sankey").widget.spec["data"][0]
    assert flows["node"]["label"] == ["rank 0", "to ranks 1–3", "to rank 4"]
    wire = traces.layered(2).events.group_by("axis").agg(pl.col("wire_bytes").sum())
    assert dict(zip(["tp", "dp"], flows["link"]["value"], strict=True)) == dict(wire.iter_rows())
    assert flows["link"]["label"] == ["6 KiB to each of 3, 18 KiB in total", "8 KiB"]

    pairs = [{"group": f"g{i}", "axis": "", "mesh": "", "ranks": [0, i], "size": 2, "backend": "", "timing": "none"}
             for i in range(1, 40)]  # fmt: skip
    events = [traces.event("Net", i, group=f"g{i}", wire_bytes=10**6 * i) for i in range(1, 40)]
    frames = {"events": traces.frame("events", events), "groups": traces.frame("groups", pairs)}
    spec = Trace(Tables(**frames, info=TraceInfo(world_size=40))).explore(figure="sankey").widget.spec
    assert spec["data"][0]["node"]["label"] == ["rank 0", "to all others", *(f"to rank {i}" for i in range(31, 40))]
    assert spec["data"][0]["link"]["value"] == [sum(range(31)) * 10**6, *(i * 10**6 for i in range(31, 40))]
    assert "annotations" not in spec["layout"]
    recorded = [traces.event("Net", i, rank=i, group="g0", wire_bytes=100) for i in range(20)]
    whole = [{**pairs[0], "group": "g0", "ranks": list(range(20)), "size": 20}]
    frames = {"events": traces.frame("events", recorded), "groups": traces.frame("groups", whole)}
    trace = Trace(Tables(**frames, info=TraceInfo(world_size=20)))
    spec = trace.explore(figure="sankey").widget.spec
    assert spec["layout"]["annotations"][0]["text"] == "12 more recorded ranks are not drawn"
    assert "4 more rows and columns are not drawn" in trace._repr_mimebundle_()["text/html"]


def test_a_click_is_counted_in_the_figure_that_was_clicked(trace: Trace) -> None:
    explorer = trace.explore(figure="ops")
    explorer.filter(axis="tp")
    click = {"type": "click", "kind": "op_phase", "index": [0]}
    send(explorer, {**click, "customdata": ["all_gather", "forward"]})
    assert explorer.selection.events["owner"].to_list() == ["Net.layers.3.up"]
    assert "1 of 25 collectives, 6 KiB on the wire in <bdi>all_gather, forward</bdi>" in explorer.widget.status
    send(explorer, {**click, "customdata": ["all_reduce", "forward"]})
    assert len(explorer.selection) == 8
    send(explorer, {**click, "customdata": ["broadcast", "forward"]})
    assert len(explorer.selection) == 8


def test_clicking_the_selected_row_after_a_mark_selects_the_module(trace: Trace) -> None:
    explorer = trace.explore(figure="ops")
    send(explorer, {"type": "click", "kind": "op_phase", "customdata": ["all_gather", "forward"], "index": [0]})
    assert len(explorer.selection) == 9
    send(explorer, {"type": "again"})
    assert set(explorer.selection.events["owner"]) == {"Net.layers.3.up"}
    assert len(explorer.selection) == 2


def test_what_the_figure_joined_is_picked_together(traces: ModuleType) -> None:
    trace = traces.of_names([chr(97 + i) for i in range(26)])
    explorer = trace.explore()
    cells = explorer.widget.spec["data"][0]["customdata"]
    assert cells[-1][-1] == ["(all others)", "(all others)"]
    send(explorer, {"type": "click", "kind": "module_axis", "customdata": cells[-1][-1], "index": [15, 9]})
    named = {row for row, _ in (cell for row in cells for cell in row)}
    assert set(explorer.selection.events["owner"]) == set(trace.events["owner"]) - named


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


@pytest.mark.parametrize("kind", FIGURES)
@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "x" * 10_000, "اسم\u202e", "a\x00b", "日本語" * 40])
def test_names_are_text_in_every_figure_and_table(traces: ModuleType, kind: str, name: str) -> None:
    trace = traces.of_names([name, "other"])
    explorer = trace.explore(figure=kind)
    explorer.select(name)
    told = json.dumps(explorer.widget.spec["data"], ensure_ascii=False, allow_nan=False) + explorer.widget.details
    labels = [told.replace(json.dumps(name, ensure_ascii=False)[1:-1], "") if kind in ("modules",) else told]
    assert "<img" not in labels[0]
    assert "\u202e" not in explorer.widget.status
    assert max(map(len, explorer.widget.status.split("<bdi>"))) < 500
    for text in _texts(explorer.widget.spec):
        assert "<img" not in text
        assert len(text) < 400
    assert trace.figure(kind=kind).to_json()


def _texts(part: Any, key: str = "") -> Iterator[str]:
    """Yield every text of a figure that plotly shows; customdata is only handed back."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name != "customdata":
                yield from _texts(value, name)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value, key)
    elif isinstance(part, str):
        yield part


@pytest.mark.parametrize("kind", FIGURES)
def test_what_a_trace_lacks_is_said(traces: ModuleType, kind: str) -> None:
    whole = traces.layered(3, odd=1).tables
    for missing in ("modules", "parameters", "groups", "events"):
        tables = {name: getattr(whole, name) for name in ("events", "parameters", "modules", "groups")}
        tables[missing] = tables[missing].clear()
        explorer = Trace(Tables(**tables, info=whole.info)).explore(figure=kind)
        spec = explorer.widget.spec
        empty = missing == "events" or kind == "bandwidth" or (missing == "groups" and kind in ("ranks", "sankey"))
        why = "no durations were measured" if kind == "bandwidth" else "nothing of this kind in the trace"
        assert ([a["text"] for a in spec["layout"].get("annotations", ())] == [why]) is empty


@pytest.mark.parametrize("kind", FIGURES)
def test_sixteen_thousand_ranks_and_five_hundred_groups(traces: ModuleType, kind: str) -> None:
    world = 16_384
    groups = [
        {"group": f"g{i}", "axis": "", "mesh": "", "ranks": list(range(i % 8, world, 8)), "size": world // 8,
         "backend": "nccl", "timing": "none"}
        for i in range(500)
    ]  # fmt: skip
    events = [traces.event("Net", i, axis="", group=f"g{i}", group_size=world // 8) for i in range(500)]
    info = TraceInfo(world_size=world, ranks=(0,))
    tables = {"events": events, "groups": groups, "modules": [traces.module("Net")]}
    explorer = Trace(Tables(**{n: traces.frame(n, rows) for n, rows in tables.items()}, info=info)).explore(figure=kind)
    assert len(json.dumps(explorer.widget.spec)) < 400_000
    assert len(dict(explorer.widget.lists)["group"]) == 501
    explorer.filter(group="g499")
    assert len(explorer.selection) == 1


def test_bars_have_the_letters_and_flat_colors_of_their_phases(traces: ModuleType) -> None:
    explorer = traces.timed().explore(figure="ops")
    bars = {bar["name"]: bar["marker"] for bar in explorer.widget.spec["data"]}
    assert bars == {
        f"{PHASES[phase].letter} {phase}": {"color": PHASES[phase].color}
        for phase in ("forward", "backward", "recompute", "optimizer")
    }


def test_each_bar_of_the_sequence_selects_the_collective_that_it_is(traces: ModuleType) -> None:
    trace = traces.timed()
    explorer = trace.explore(figure="sequence")
    bars = explorer.widget.spec["data"]
    assert {bar["name"] for bar in bars} == {"F forward", "B backward", "R recompute", "O optimizer"}
    assert sum(len(bar["x"]) for bar in bars) == len(trace)
    for bar in bars:
        for point in (0, -1):
            send(explorer, {"type": "click", "kind": "sequence", "customdata": bar["customdata"][point]})
            (event,) = explorer.selection.events.iter_rows(named=True)
            assert bar["y"][point] == f"rank {event['rank']} · {event['axis'] or event['group']} · {event['op']}"
            assert bar["name"].endswith(event["phase"])
            assert bar["x"][point] == pytest.approx((event["end"] - event["start"]) / 1e6, rel=1e-3)
            assert event["op"] in explorer.widget.status


def test_a_zoom_of_the_sequence_shows_a_part_of_it(traces: ModuleType) -> None:
    explorer = traces.layered(200).explore(figure="sequence")
    drawn = explorer.widget.spec
    assert len(drawn["layout"]["yaxis"]["categoryarray"]) == 3
    send(explorer, {"type": "zoom", "range": [10, 20]})
    assert explorer.widget.spec["layout"]["xaxis"]["title"]["text"].startswith("program order")
    begins = sorted(begin for bar in explorer.widget.spec["data"] for begin in bar["base"])
    assert begins == pytest.approx(range(10, 20), abs=1e-4)
    send(explorer, {"type": "zoom", "range": None})
    assert explorer.widget.spec == drawn


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


def test_colors_do_not_change_with_the_selection(traces: ModuleType) -> None:
    trace = traces.timed()
    for kind in ("modules", "ranks"):
        explorer = trace.explore(figure=kind)
        scale = explorer.widget.spec["data"][-1]["zmax"]
        assert explorer.widget.spec["data"][-1]["zmin"] == 0
        assert explorer.widget.spec["data"][-1]["colorbar"]["ticktext"][0] == "0 B"
        explorer.filter(axis="dp")
        assert explorer.widget.spec["data"][-1]["zmax"] == scale
        explorer.select("Transformer.decoder.layers.0")
        assert explorer.widget.spec["data"][-1]["zmax"] == scale


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

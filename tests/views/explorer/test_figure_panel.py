"""The explorer's figure: its marks, what a click on them selects, its colors, and names as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page.theme import PHASES
from dsexplore._internal.views.trace.figures import FIGURES
from tests.views.explorer.messages import send


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


def test_what_the_figure_joined_is_picked_together(traces: ModuleType) -> None:
    trace = traces.of_names([chr(97 + i) for i in range(26)])
    explorer = trace.explore()
    cells = explorer.widget.spec["data"][0]["customdata"]
    assert cells[-1][-1] == ["(all others)", "(all others)"]
    send(explorer, {"type": "click", "kind": "module_axis", "customdata": cells[-1][-1], "index": [15, 9]})
    named = {row for row, _ in (cell for row in cells for cell in row)}
    assert set(explorer.selection.events["owner"]) == set(trace.events["owner"]) - named


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

"""Selection is data: what is picked in any part of a view is its `selection`, a `Trace` of just those events.

Modules: ``views/explorer/explorer.py``, ``views/explorer/selected_events.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.trace.rank_flows import Flows, between_ranks

STEP = (
    ("forward", "FSDP pre_forward", "all_gather"),
    ("backward", "FSDP pre_backward", "all_gather"),
    ("backward", "FSDP post_backward", "reduce_scatter"),
)


def send(explorer: Any, **message: Any) -> None:
    """Send what the browser sends."""
    explorer.widget._handle_custom_msg(message, [])


def fsdp(traces: ModuleType, layers: int = 2) -> Trace:
    """Layers that FSDP gathers twice and reduces on dp, each with an implicit all_reduce on tp."""
    events = []
    for phase, cause, op in STEP:
        for layer in range(layers):
            columns = {"op": op, "phase": phase, "cause": cause, "axis": "dp", "group": "g_dp", "group_size": 2}
            events.append(traces.event(f"Net.{layer}", len(events), **columns))
    events.append(traces.event("Net.1", len(events), cause="P→R", implicit=True))
    groups = [
        {"group": f"g_{axis}", "axis": axis, "mesh": "dp=2,tp=4", "ranks": ranks, "size": len(ranks),
         "backend": "fake", "timing": "none"}
        for axis, ranks in (("dp", [0, 4]), ("tp", [0, 1, 2, 3]))
    ]  # fmt: skip
    frames = {
        "events": events,
        "groups": groups,
        "modules": [traces.module("Net"), *(traces.module(f"Net.{i}", "Net") for i in range(layers))],
        "parameters": [traces.parameter(f"Net.{i}") for i in range(layers)],
    }
    info = TraceInfo(world_size=8, ranks=(0,), mesh="dp=2,tp=4")
    return Trace(Tables(**{name: traces.frame(name, rows) for name, rows in frames.items()}, info=info))


def at(**columns: Any) -> Callable[[Trace], pl.DataFrame]:
    return lambda trace: trace.events.filter(*(pl.col(name) == value for name, value in columns.items()))


PICKS: dict[str, tuple[str, Callable[[Any], object], Callable[[Trace], pl.DataFrame]]] = {
    # part: (the figure that is shown, what is done, the events that are then chosen)
    "tree": ("modules", lambda e: e.select("Net.1"), at(owner="Net.1")),
    "table of redistributes": (
        "modules", lambda e: send(e, type="click", kind="cause", index=[0]), at(cause="P→R"),
    ),
    "headline": (
        "modules", lambda e: send(e, type="sentence", index=1), lambda trace: trace.headline().trace(1).events,
    ),
    "timeline, a range": (
        "modules", lambda e: send(e, type="brush", begin=0.0, end=3 / 7), lambda trace: trace.events[:3],
    ),
    "timeline, a box": ("modules", lambda e: send(e, type="pick", box=4), lambda trace: trace.events[4:5]),
    "map, a rank": ("modules", lambda e: send(e, type="cell", place="0.4"), at(axis="dp")),
    "map, a link": ("modules", lambda e: send(e, type="link", index=0), at(axis="dp")),
    "heatmap": (
        "modules",
        lambda e: send(e, type="click", kind="module_axis", customdata=["Net.*", "tp"], index=[0, 1]),
        at(axis="tp"),
    ),
    "matrix": (
        "ranks", lambda e: send(e, type="click", kind="rank_peer", customdata=["rank 0", "4"], index=[0, 1]),
        at(axis="dp"),
    ),
    "Sankey, a link": ("sankey", lambda e: send(e, type="click", kind="flow", index=[0]), at(axis="tp")),
    "Sankey, a rank": ("sankey", lambda e: send(e, type="click", kind="flow", index=[2]), lambda trace: trace.events),
    "Sankey, a target": ("sankey", lambda e: send(e, type="click", kind="flow", index=[4]), at(axis="dp")),
    "parameter's history": (
        "modules",
        lambda e: send(e, type="parameter", name="Net.1.weight"),
        lambda trace: trace.parameter_history("Net.1.weight").trace.events,
    ),
    "a rank of the parameter's shards": (
        "modules",
        lambda e: (e.parameter("Net.1.weight"), send(e, type="rank", rank=4)),
        at(owner="Net.1", axis="dp"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", PICKS)
def test_what_is_picked_in_a_part_is_a_trace_of_those_events(traces: ModuleType, part: str) -> None:
    trace = fsdp(traces)
    figure, pick, expected = PICKS[part]
    explorer = trace.explore(figure=figure, tab="map" if part.startswith("map") else "timeline")
    before = explorer.widget.status
    pick(explorer)
    wanted = expected(trace)
    assert len(wanted) > 0
    assert isinstance(explorer.selection, Trace)
    assert explorer.selection.events.equals(wanted)
    assert explorer.widget.status != before, "the line above the tree names it"
    assert explorer.selection.modules.equals(trace.modules), "with all that a trace has, to be explored in turn"
    assert len(explorer.selection.explore().selection) == len(wanted)
    send(explorer, type="clear")
    assert len(explorer.selection) == len(trace)


def test_what_is_picked_of_two_plans_is_two_traces_and_their_sum(traces: ModuleType) -> None:
    first, second = fsdp(traces, 2), fsdp(traces, 3)
    explorer = first.diff(second).explore()
    begin, end = explorer.window
    send(explorer, type="brush", begin=0.0, end=2.0 / (end - begin))
    assert explorer.before.events.equals(first.events[:2])
    assert explorer.after.events.equals(second.events[:2])
    assert isinstance(explorer.selection, Trace)
    assert len(explorer.selection) == 4


@pytest.mark.parametrize("figure", ["ranks", "sankey"])
def test_a_mark_between_ranks_selects_the_events_whose_bytes_it_draws(traces: ModuleType, figure: str) -> None:
    trace = traces.timed(4, 2)
    explorer = trace.explore(figure=figure)
    found = between_ranks(trace.tables, 8)
    drawn = explorer.widget.spec["data"][0]
    if figure == "ranks":
        marks = {(row, column): value for (row, column), value in _cells(found).items() if value}
        kind = "rank_peer"
    else:
        marks = {(number,): value for number, value in enumerate(drawn["link"]["value"])}
        kind = "flow"
    assert len(marks) > 3
    for index, value in marks.items():
        send(explorer, type="click", kind=kind, index=list(index))
        chosen = between_ranks(explorer.selection.tables, 8)
        shared = _shared(chosen, *_ends(explorer))
        assert shared == pytest.approx(value)
    whole = explorer.widget.status
    send(explorer, type="click", kind=kind, index=[99, 99])
    assert explorer.widget.status == whole, "what is no mark picks nothing"


def _cells(found: Flows) -> dict[tuple[int, int], float]:
    many = [len(ranks) for ranks in found.receivers]
    return {(i, j): value * many[j] for i, row in enumerate(found.bytes.tolist()) for j, value in enumerate(row)}


def _ends(explorer: Any) -> tuple[list[int], list[int]]:
    """Return the ranks that the chosen mark's name says."""
    names = explorer.widget.status.partition("<bdi>")[2].partition("</bdi>")[0]
    return tuple(_numbers(part) for part in names.split(" to "))  # type: ignore[return-value]  # of two


def _numbers(text: str) -> list[int]:
    spans = (part.strip().split("–") for part in text.partition(" ")[2].split(","))
    return [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]


def _shared(found: Flows, senders: list[int], receivers: list[int]) -> float:
    return sum(
        float(found.bytes[found.senders.index(sender), j]) * len(set(ranks) & set(receivers))
        for sender in senders
        for j, ranks in enumerate(found.receivers)
    )


def test_an_axis_has_one_color_in_the_tree_and_in_the_picture_of_a_parameter(traces: ModuleType) -> None:
    explorer = traces.layered(4).explore()
    assert re.findall(r'class="key (a\d)">(\w+)</span>', explorer.widget.headline) == [
        ("a2", "tp"),
        ("a0", "dp"),
    ]
    explorer.parameter("Net.layers.0.up.weight")  # of a mesh whose first axis is dp
    drawn = re.findall(r'class="axis (x\d)"><bdi>(\w+)', explorer.widget.panel)
    assert drawn == [("x0", "dp"), ("x2", "tp")]

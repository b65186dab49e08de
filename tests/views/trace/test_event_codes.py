"""Sums from codes equal those that polars computes from the events."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.filters import FilteredEvents
from dsexplore._internal.views.explorer.selection import Filters
from dsexplore._internal.views.trace.event_codes import CAUSE, SAME_COLLECTIVE, EventCodes

OWNERS = ["Net", "Net.layers", "Net.layers.0", "Net.layers.0.up", "Net.layers.1", "Net.layers.1.up", ""]


@pytest.fixture(params=[False, True], ids=["owners trigger", "others trigger"])
def trace(request: pytest.FixtureRequest, traces: ModuleType) -> Trace:
    """Events of all kinds at random; some triggered by a module that is in no other table."""
    rng = np.random.default_rng(3)
    pick = lambda *words: words[rng.integers(len(words))]  # noqa: E731
    events = []
    for seq in range(400):
        owner = pick(*OWNERS)
        events.append(
            traces.event(
                owner,
                seq,
                op=pick("all_gather", "all_reduce"),
                axis=pick("", "dp", "tp"),
                phase=pick("forward", "backward"),
                message_bytes=int(2 ** rng.integers(4, 9)),
                wire_bytes=int(2 ** rng.integers(4, 9)),
                implicit=bool(rng.random() < 0.3),
                cause=pick("P→R", "S(0)→R"),
                trigger=pick(owner, "Net.layers.0", "Other.layers.1") if request.param else owner,
            )
        )
    modules = [traces.module(name, name.rpartition(".")[0]) for name in OWNERS if name]
    return Trace(Tables(events=traces.frame("events", events), modules=traces.frame("modules", modules)))


@pytest.mark.parametrize("module", ["", "layers.0", "*.up", "Other", "nowhere"])
@pytest.mark.parametrize(
    "facets",
    [{}, {"phase": "backward"}, {"axis": ["dp", ""]}, {"phase": "forward", "axis": "tp"}, {"op": "all_reduce"}],
)
@pytest.mark.parametrize("implicit", [False, True])
def test_filters_let_through_what_where_does(trace: Trace, facets: Any, module: str, implicit: bool) -> None:
    size = "message_bytes" if implicit else "wire_bytes"
    codes = EventCodes(trace.tables, sizes=size.removesuffix("_bytes"))
    passed = FilteredEvents(codes, Filters(facets, module, implicit))
    wanted = {**facets, **({"module": module} if module else {}), **({"implicit": True} if implicit else {})}
    try:
        events = trace.where(**wanted).events if wanted else trace.events
    except UsageError:  # where() names the module that is not there; the box of a view shows no row
        assert module in ("nowhere", "Other")
        events = trace.events.clear()
    assert trace.events.filter(pl.Series(passed.mask)).equals(events)
    counted = codes.sums(passed.mask)
    assert np.array_equal(passed.sums.counts, counted.counts)
    assert np.array_equal(passed.sums.bytes, counted.bytes)
    assert counted.counts.sum() == len(events)
    assert counted.bytes.sum() == events[size].sum()


def test_sums_of_a_filter_by_module_axis_and_phase_are_read_off_the_total(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    assert codes.sums_of({"phase": "forward", "axis": "dp"}, None) is not None
    assert codes.sums_of({"op": "all_gather"}, None) is None
    elsewhere = not trace.events["trigger"].equals(trace.events["owner"])
    assert (codes.sums_of({}, codes.matched("layers.0")) is None) is elsewhere


def test_events_inside_of_modules_are_those_that_they_own(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    for many in (0, 1, 2, 3, len(codes.tree)):
        for rows in itertools.combinations(range(len(codes.tree)), many):
            held = {inner for row in rows for inner in range(row, int(codes.tree.ends[row]))}
            assert np.array_equal(codes.inside(rows), np.isin(codes.owner, list(held)))


def test_of_a_small_module_its_events_alone_are_looked_at(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    row = codes.tree.row_of["Net.layers.0.up"]
    own = codes.owner == row
    codes.prepare()
    codes.owner = np.full(len(codes), -1)  # whoever looks at all events finds none of any module
    assert np.array_equal(codes.inside([row]), own)


def test_columns_are_sums_over_each_subtree(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    sent = codes.columns(codes.total)
    assert codes.facets["phase"].labels == ["forward", "backward"]
    for row, name in enumerate(codes.tree.names):
        own = trace.events.filter(owner=name)
        below = trace.events.filter(pl.col("owner").is_in(codes.tree.names[row : codes.tree.ends[row]]))
        assert sent.count[row] == below.height
        assert sent.bytes[row] == below["wire_bytes"].sum()
        assert sent.alone[row] == own["wire_bytes"].sum()
        for axis, label in (("dp", "dp"), ("tp", "tp"), ("", "no mesh")):
            held = below.filter(axis=axis)["wire_bytes"].sum()
            assert sent.axes[codes.tree.axes.index(label), row] == held
        for phase, sizes in zip(("forward", "backward"), sent.phases, strict=True):
            assert sizes[row] == below.filter(phase=phase)["wire_bytes"].sum()


def place(column: str) -> pl.Expr:
    """Return the place in the model, as polars finds it."""
    named = pl.when(pl.col(column) == "").then(pl.lit("(outside any module)")).otherwise(pl.col(column))
    return named.str.replace_all(r"\.\d+(\.|$)", ".*${1}")


@pytest.mark.parametrize("facets", [{}, {"phase": "forward", "op": "all_gather"}])
def test_tables_list_what_polars_groups(trace: Trace, facets: dict[str, str]) -> None:
    codes = EventCodes(trace.tables)
    mask = codes.mask(facets)
    events = trace.events.filter(pl.Series(mask))
    kinds = events.group_by(SAME_COLLECTIVE).agg(pl.col("seq").min(), pl.len().alias("count")).sort("seq").drop("seq")
    shown, every = codes.collectives(mask, 12)
    assert every == kinds.height > 12
    assert [tuple(line.values()) for line in shown] == kinds.head(12).rows()
    placed = events.filter("implicit").with_columns(place("trigger").alias("module"))
    lines = placed.group_by(CAUSE).agg(pl.len().alias("count"), pl.col("wire_bytes").sum())
    lines = lines.sort("wire_bytes", "count", *CAUSE, descending=[True, True, *(False for _ in CAUSE)])
    causes = codes.causes(mask, 5)
    assert (causes.lines, causes.events) == (lines.height, placed.height)
    assert [tuple(line.values())[:-1] for line in causes.shown] == lines.head(5).rows()
    for line in causes.shown:
        assert int((codes.cause(line["line"])[0] & mask).sum()) == line["count"]


@pytest.mark.parametrize("facets", [{}, {"phase": "forward", "op": "all_gather"}])
@pytest.mark.parametrize("module", ["", "Net.layers"])
def test_places_are_what_polars_groups(trace: Trace, facets: dict[str, str], module: str) -> None:
    codes = EventCodes(trace.tables)
    rows = [codes.tree.names.index(module)] if module else None
    events = trace.events.filter(pl.Series(codes.mask(facets)), pl.col("owner").str.starts_with(module))
    sums = events.with_columns(place("owner").alias("place")).group_by("place", "axis").agg(pl.col("wire_bytes").sum())
    grid = codes.places(codes.sums(codes.mask(facets)), rows)
    cells = [(row, column) for row in grid.rows for column in grid.columns]
    found = {cell: value for cell, value in zip(cells, grid.values.ravel().tolist(), strict=True) if value}
    assert found == {(row, axis or "no mesh"): size for row, axis, size in sums.iter_rows()}
    for totals in (grid.values.sum(axis=1).tolist(), grid.values.sum(axis=0).tolist()):
        assert totals == sorted(totals, reverse=True)


def test_the_switch_changes_every_sum(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    for sizes, column in (("message", "message_bytes"), ("wire", "wire_bytes")):
        codes.use(sizes)
        assert codes.columns(codes.total).alone.sum() == trace.events[column].sum()
        assert codes.places(codes.total).values.sum() == trace.events[column].sum()
        assert codes.largest_place == codes.places(codes.total).values.max()
        assert (
            sum(line["bytes"] for line in codes.causes(codes.every, 1000).shown)
            == trace.where(implicit=True).events[column].sum()
        )
    with pytest.raises(UsageError, match="sizes='bits': no such sizes; they are 'wire', 'message'"):
        EventCodes(trace.tables, sizes="bits")


def test_start_up_is_apart(traces: ModuleType) -> None:
    rows = [
        traces.event("Net", 0, phase="start-up", axis="tp", op="broadcast", wire_bytes=1000),
        traces.event("Net", 1, axis="tp", wire_bytes=10),
        traces.event("Net", 2, axis="dp", wire_bytes=3),
    ]
    tables = Tables(events=traces.frame("events", rows), modules=traces.frame("modules", [traces.module("Net")]))
    codes = EventCodes(tables)
    sent = codes.columns(codes.total)
    assert (sent.count[0], sent.bytes[0], sent.alone[0]) == (2, 13, 13)
    assert dict(zip(codes.tree.axes, sent.axes[:, 0].tolist(), strict=True)) == {"tp": 10, "dp": 3}
    assert dict(zip(codes.facets["phase"].labels, sent.phases[:, 0].tolist(), strict=True)) == {
        "start-up": 1000,
        "forward": 13,
    }
    grid = codes.places(codes.total)
    assert dict(zip(grid.columns, grid.values[0].tolist(), strict=True)) == {"start-up": 1000, "tp": 10, "dp": 3}
    assert codes.at_place("Net", "start-up", (set(), set())).tolist() == [True, False, False]
    assert codes.at_place("Net", "tp", (set(), set())).tolist() == [False, True, False]
    assert codes.at_place(None, None, ({"Net"}, set())).tolist() == [False, False, False]
    assert codes.at_place("Net", None, (set(), {"tp", "start-up"})).tolist() == [False, False, True]

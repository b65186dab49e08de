"""What the explorer counts from codes, against the same counted by polars from the events."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from dsexplore.trace.trace import Tables, Trace
from dsexplore.views.explorer.filters import Filters, Passed
from dsexplore.views.trace import tally
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.tree_html import SAME_COLLECTIVE

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
    codes = EventCodes(trace.tables)
    passed = Passed(codes, Filters(facets, module, implicit))
    wanted = {**facets, **({"module": module} if module else {}), **({"implicit": True} if implicit else {})}
    events = trace.where(**wanted).events if wanted else trace.events
    assert trace.events.filter(pl.Series(passed.mask)).equals(events)
    counted = codes.sums(passed.mask)
    assert np.array_equal(passed.sums.counts, counted.counts)
    assert np.array_equal(passed.sums.bytes, counted.bytes)


def test_cells_tell_module_axis_and_phase_where_each_owner_triggers(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    matched = codes.matched("layers.0")
    assert codes.in_cells({"phase": "forward", "axis": "dp"}, None) is not None
    assert codes.in_cells({"op": "all_gather"}, None) is None
    apart = not trace.events["trigger"].equals(trace.events["owner"])
    assert (codes.in_cells({}, matched) is None) is apart


def test_columns_are_sums_over_each_subtree(trace: Trace) -> None:
    codes = EventCodes(trace.tables)
    columns = dict(zip([title for title, _ in codes.titles], codes.columns(codes.total), strict=True))
    for row, name in enumerate(codes.tree.names):
        own = trace.events.filter(owner=name)
        below = trace.events.filter(pl.col("owner").is_in(codes.tree.names[row : codes.tree.ends[row]]))
        assert columns["count"][row] == below.height
        assert columns["bytes"][row] == below["message_bytes"].sum()
        assert columns["own"][row] == own["message_bytes"].sum()
        for axis, title in (("dp", "on dp"), ("tp", "on tp"), ("", "no axis")):
            assert columns[title][row] == below.filter(axis=axis)["message_bytes"].sum()
        for phase in ("forward", "backward"):
            assert columns[phase][row] == below.filter(phase=phase)["message_bytes"].sum()


@pytest.mark.parametrize("facets", [{}, {"phase": "forward", "op": "all_gather"}])
def test_tables_list_what_polars_groups(trace: Trace, facets: dict[str, str]) -> None:
    codes = EventCodes(trace.tables)
    mask = codes.mask(facets)
    events = trace.events.filter(pl.Series(mask))
    kinds = events.group_by(SAME_COLLECTIVE).agg(pl.col("seq").min(), pl.len().alias("count")).sort("seq").drop("seq")
    shown, every = codes.collectives(mask, 12)
    assert every == kinds.height > 12
    assert shown.rows() == kinds.head(12).rows()
    implicit = tally.implicit(events)
    causes = codes.causes(mask, 5)
    assert (causes.lines, causes.events) == (implicit.height, int(implicit["count"].sum()))
    assert causes.shown.drop("line").rows() == implicit.head(5).rows()
    for line, count in causes.shown.select("line", "count").iter_rows():
        assert int((codes.cause(line)[0] & mask).sum()) == count

"""Differences: what one trace has more or less than another, and nothing where they are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.diff import COLUMNS, KEYS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace

Make = Callable[..., Tables]
SIZES = ("count", "message_bytes", "wire_bytes")


@settings(max_examples=40)
@given(data=st.data())
def test_before_and_change_make_after(traces: Any, data: st.DataObject) -> None:
    before, after = Trace(data.draw(traces())), Trace(data.draw(traces()))
    rows = before.diff(after).to_frame(unchanged=True)
    assert dict(rows.schema) == COLUMNS
    assert not rows.select(KEYS).is_duplicated().any()
    for when, trace in (("before", before), ("after", after)):
        assert rows[f"count_{when}"].sum() == len(trace)
        for size in SIZES[1:]:
            assert rows[f"{size}_{when}"].sum() == trace.events[size].sum()
    for size in SIZES:
        assert (rows[f"{size}_after"] - rows[f"{size}_before"] == rows[f"{size}_change"]).all()


@settings(max_examples=40)
@given(data=st.data())
def test_the_way_back_is_the_opposite(traces: Any, data: st.DataObject) -> None:
    before, after = Trace(data.draw(traces())), Trace(data.draw(traces()))
    there, back = before.diff(after).to_frame(), after.diff(before).to_frame()
    opposite = back.with_columns(
        pl.col("change").replace({"+": "-", "-": "+"}),
        *(-pl.col(f"{size}_change") for size in SIZES),
        *(pl.col(f"{size}_after").alias(f"{size}_before") for size in SIZES),
        *(pl.col(f"{size}_before").alias(f"{size}_after") for size in SIZES),
    )
    assert_frame_equal(there, opposite, check_row_order=False)


@settings(max_examples=20)
@given(data=st.data())
def test_a_trace_does_not_differ_from_itself(traces: Any, data: st.DataObject) -> None:
    tables = data.draw(traces())
    difference = Trace(tables).diff(Trace(tables))
    assert len(difference) == 0
    assert set(difference.to_frame(unchanged=True)["change"]) <= {"="}


def test_each_change_has_its_sign_and_its_place_in_the_tree(make: Make) -> None:
    gone = {"owner": "Llama.layers.10", "op": "all_gather"}
    grown = {"owner": "Llama.layers.0", "message_bytes": 1024}
    same = {"owner": "Llama.layers.0.attn"}
    new = {"owner": "Llama.layers.1", "axis": "tp", "phase": "backward"}
    difference = Trace(make([gone, grown, same])).diff(Trace(make([new, {**grown, "message_bytes": 4096}, same])))
    rows = difference.to_frame()
    assert list(rows.select("module", "change", "message_bytes_change").iter_rows()) == [
        ("Llama.layers.0", "±", 3072),
        ("Llama.layers.1", "+", 1024),
        ("Llama.layers.10", "-", -1024),
    ]
    assert len(difference) == 3


def test_a_difference_holds_what_was_there_when_it_was_made(make: Make) -> None:
    content = [make([{}]), make([{}, {}])]
    running = Trace(lambda: content[0])
    difference = Trace(make([{}])).diff(running)
    content.pop(0)
    assert len(running) == 2
    assert len(difference) == 0


def test_what_is_no_trace_is_named() -> None:
    with pytest.raises(UsageError, match=r"not with 'plan_b': for a saved one, give load\(path\)"):
        Trace().diff("plan_b")  # type: ignore[arg-type]

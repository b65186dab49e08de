"""Folding: which siblings are one row, and how their numbers are written.

Modules: ``views/trace/folding.py``, ``views/trace/event_codes.py``, ``units.py``.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_ranges
from dsexplore._internal.views.trace.event_codes import EventCodes


def labels(trace: Trace) -> list[str]:
    codes = EventCodes(trace.tables)
    return [fold.label for fold in codes.folds.children(codes.tree.names.index("Net.layers"))]


@settings(deadline=None)
@given(st.sets(st.integers(0, 200), min_size=1, max_size=60))
def test_ranges_hold_exactly_the_numbers(numbers: set[int]) -> None:
    written = format_ranges(sorted(numbers), most=1000)
    found: set[int] = set()
    for piece in written.split(", "):
        first, _, last = piece.partition("–")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == numbers


def test_ranges_are_joined_and_of_many_the_middle_is_left_out() -> None:
    assert format_ranges([5, 0, 1, 2, 7, 8]) == "0–2, 5, 7–8"
    assert format_ranges(list(range(0, 12, 2))) == "0, 2, 4, 6, 8, 10"
    assert format_ranges(list(range(0, 14, 2))) == "0, 2, 4, 6, 8, …, 12"


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("events", "op", pl.lit("broadcast")),
        ("events", "axis", pl.lit("pp")),
        ("events", "group_size", pl.lit(16)),
        ("events", "phase", pl.lit("backward")),
        ("events", "message_bytes", pl.lit(1)),
        ("events", "dtype", pl.lit("int8")),
        ("events", "implicit", pl.lit(value=True)),
        ("parameters", "placements", pl.lit("R, R")),
        ("parameters", "dtype", pl.lit("int8")),
        ("parameters", "rank", pl.lit(1)),
        ("modules", "type", pl.lit("Other")),
        ("modules", "calls", pl.lit(2)),
    ],
)
def test_a_layer_that_differs_in_one_thing_is_a_row_of_its_own(
    traces: ModuleType, table: str, column: str, value: pl.Expr
) -> None:
    whole = traces.layered(4)
    assert labels(whole) == ["[0–3]"]
    frame = getattr(whole.tables, table)
    key = {"events": "owner", "parameters": "module", "modules": "module"}[table]
    changed = pl.when(pl.col(key) == "Net.layers.2.down").then(value).otherwise(pl.col(column))
    frame = frame.with_columns(changed.cast(frame.schema[column]).alias(column))
    assert labels(Trace(replace(whole.tables, **{table: frame}))) == ["[0–1, 3]", "2"]


def test_what_caused_a_collective_and_its_order_part_no_layers(traces: ModuleType) -> None:
    whole = traces.layered(4)
    events = whole.events.with_columns(pl.col("owner").alias("cause"), pl.col("owner").alias("source")).reverse()
    assert labels(Trace(replace(whole.tables, events=events))) == ["[0–3]"]


@pytest.mark.parametrize(("layers", "label"), [(1, "0"), (2, "[0–1]"), (3, "[0–2]")])
def test_equal_layers_are_labeled_by_the_range_of_their_numbers(traces: ModuleType, layers: int, label: str) -> None:
    assert labels(traces.layered(layers)) == [label]

"""Files of ours whose digest is right and whose values are none of a recording: an error when they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsexplore
from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.files import load, save
from dsexplore._internal.trace.tables import Tables

HUGE = 2_000_000_000
EVENTS = [
    {"op": "all_reduce", "trigger": "Llama.layers.0", "start": 10, "end": 90, "state": "completed", "group_seq": 0},
    {"op": "send", "peer": 1, "start": 100, "end": 190, "state": "completed"},
    {"op": "broadcast", "root": 0, "step": 1, "start": 200, "end": 290, "state": "completed", "group_seq": 1},
]


def changed(tables: Tables, table: str, column: str, value: Any) -> Tables:
    """Return the tables with a value in the first row of one column."""
    frame: pl.DataFrame = getattr(tables, table)
    values = pl.Series(column, [value, *frame[column].to_list()[1:]], dtype=frame.schema[column])
    return replace(tables, **{table: frame.with_columns(values)})


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("events", "op", None, "1 values of op are missing"),
        ("events", "rank", None, "1 values of rank are missing"),
        ("events", "rank", 4, "rank is 4, and may be 0 to 3"),
        ("events", "peer", HUGE, f"peer is {HUGE}"),
        ("events", "root", -1, "root is -1"),
        ("events", "message_bytes", -8, "message_bytes is -8"),
        ("events", "wire_bytes", 1 << 62 | 1, "wire_bytes is"),
        ("events", "group_size", 0, "group_size is 0, and may be 1 to"),
        ("events", "shape", [2, None], "shape has lists with missing values"),
        ("events", "shape", [-2], "shape is -2"),
        ("events", "send_splits", [1 << 61], f"send_splits is {1 << 61}"),
        ("groups", "ranks", [0, HUGE], f"ranks is {HUGE}"),
        ("modules", "parent", "Llama", "the parent of 'Llama' is 'Llama', which is not above it"),
        ("modules", "depth", HUGE, f"depth is {HUGE}"),
    ],
)
def test_a_value_that_no_recording_has_is_an_error(
    tmp_path: Path, make: Any, table: str, column: str, value: Any, said: str
) -> None:
    save(changed(make(EVENTS), table, column, value), tmp_path / "t.parquet")
    with pytest.raises(TraceFileError, match=f"is damaged .*{said}"):
        load(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"world_size": 0}, "its world_size is 0"),
        ({"world_size": 1 << 40}, "its world_size is"),
        ({"ranks": (7,)}, "it is of rank 7"),
        ({"ranks": (0,), "stands_for": (f"0-{HUGE}",)}, f"it is of rank {HUGE}"),
        ({"mesh": "dp"}, "mesh"),
        ({"mesh": f"dp={HUGE}"}, "its mesh is"),
        ({"schedule": "x"}, "its schedule is not JSON: Expecting value"),
    ],
)
def test_an_info_that_no_recording_has_is_an_error(tmp_path: Path, make: Any, info: dict[str, Any], said: str) -> None:
    tables = make(EVENTS)
    save(replace(tables, info=replace(tables.info, **info)), tmp_path / "t.parquet")
    with pytest.raises(TraceFileError, match=f"is damaged .*{said}"):
        load(tmp_path / "t.parquet")


def test_a_damaged_rank_is_named_and_the_others_are_read(tmp_path: Path, make: Any) -> None:
    for rank, value in ((0, 1), (1, HUGE), (2, 1)):
        tables = make([{"rank": rank, "op": "send", "peer": 1}], ranks=(rank,), world_size=4)
        save(changed(tables, "events", "peer", value), tmp_path / f"rank-0000{rank}.parquet")
    with pytest.warns(RuntimeWarning, match=r"rank-00001\.parquet is damaged"):
        trace = dsexplore.load(tmp_path)
    assert trace.info.ranks == (0, 2)
    assert any("rank-00001.parquet is damaged" in note for note in trace.info.notes)


COLUMNS = [(table, column) for table in ("events", "modules", "groups") for column in schema.TABLES[table]]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.sampled_from(COLUMNS),
    numbers=st.none() | st.sampled_from([-1, 3, HUGE, 1 << 62]),
    text=st.none() | st.text(),
)
def test_what_is_read_can_be_shown(
    tmp_path: Path, make: Any, where: tuple[str, str], numbers: int | None, text: str | None
) -> None:
    table, column = where
    kind = schema.TABLES[table][column]
    value: Any = text if kind == pl.String else numbers is not None if kind == pl.Boolean else numbers
    if isinstance(kind, pl.List):
        value = [numbers]
    try:
        save(changed(make(EVENTS), table, column, value), tmp_path / "t.parquet")
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        return  # the column has no such values
    try:
        trace = dsexplore.load(tmp_path / "t.parquet")
    except TraceFileError:
        return
    assert trace._repr_mimebundle_()
    trace.findings()
    trace.skew()

"""Makes the tables of a `Trace` from the content of a recording.

A rank that runs a notebook's cells sends its content to the launcher, which makes the tables. So the ranks need no
memory for polars' code and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.matching import is_numbered
from dsexplore._internal.trace.tables import Tables, TraceInfo

Columns = dict[str, list[Any]]
"""{name of a column: its values}."""


@dataclass(frozen=True)
class EventColumns:
    """The events of a recording; many share most of their columns."""

    of_kinds: Columns
    """{column of `schema.EVENTS` that the events of a kind share: one value per message of each kind}."""
    messages: npt.NDArray[np.int64]
    """The index of each event in `of_kinds`."""
    of_origins: Columns
    """{column of `schema.EVENTS` that the collectives of an origin share: one value per origin}."""
    origins: npt.NDArray[np.int64]
    """The index of each collective in `of_origins`."""
    of_collectives: Columns
    """{column of `schema.EVENTS` that differs from one collective to the next: one value per collective}."""
    collectives: npt.NDArray[np.int64]
    """The index of each event in `of_collectives`; a collective has one event per message."""

    def table(self) -> pl.DataFrame:
        """Return one row per message; columns: `schema.EVENTS`."""
        count = len(self.messages)
        columns = [pl.Series(name, values, schema.EVENTS[name]) for name, values in self.of_collectives.items()]
        events = _build_table(self.of_origins, schema.EVENTS)[self.origins].hstack(columns)
        if events.height != count or (self.collectives != np.arange(count)).any():
            events = events[self.collectives]
        numbers = pl.Series("seq", np.arange(count), dtype=schema.EVENTS["seq"])
        common = _build_table(self.of_kinds, schema.EVENTS)[self.messages]
        # By indexing and stacking, as polars' queries have a higher fixed cost.
        return common.hstack([*events, numbers, self._group_numbers()])[list(schema.EVENTS)]

    def _group_numbers(self) -> pl.Series:
        """Return the number of each collective in its group, from 0; null for sends, recvs and what was not issued."""
        codes: dict[str, int] = {}
        of_kinds = [
            codes.setdefault(group, len(codes)) if group and is_numbered(op) else -1
            for op, group in zip(self.of_kinds["op"], self.of_kinds["group"], strict=True)
        ]
        of_events = np.array(of_kinds, np.int64)[self.messages]
        order = np.argsort(of_events, kind="stable")
        counts = np.bincount(of_events + 1, minlength=1)
        firsts = np.cumsum(counts) - counts
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order)) - np.repeat(firsts, counts)
        column = pl.Series("group_seq", numbers, schema.EVENTS["group_seq"])
        unnumbered = order[: counts[0]]
        return column.scatter(unnumbered, None) if len(unnumbered) else column


@dataclass(eq=False)
class Recorded:
    """The content of a recording in plain numbers and texts. A call returns the tables, which are made once."""

    events: EventColumns
    parameters: Columns
    """{column of `schema.PARAMETERS`: one value per parameter}."""
    modules: Columns
    """{column of `schema.MODULES`: one value per module}."""
    groups: list[tuple[Any, ...]]
    """Rows of `schema.GROUPS`."""
    info: TraceInfo
    costs: dict[str, pl.DataFrame]
    """The tables ``kernels``, ``memory`` and ``differing``; empty if costs were not recorded."""
    numerics: Columns
    """{column of `schema.NUMERICS`: one value per summary}; empty if none were recorded."""
    io: Columns
    """{column of `schema.IO`: one value per read, write or wait}; empty if there were none."""
    steps: int | None
    """The number of steps that the tables are limited to; None for all of them."""
    trains: bool
    """True if an outermost module was called with gradients enabled."""
    _made: Tables | None = field(default=None, init=False)

    def __call__(self) -> Tables:
        """Return all tables with the info; they are made at the first call."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Tables:
        tables = Tables(
            events=self.events.table(),
            parameters=_build_table(self.parameters, schema.PARAMETERS),
            modules=_build_table(self.modules, schema.MODULES),
            groups=pl.DataFrame(self.groups, schema=schema.GROUPS, orient="row"),
            info=self.info,
            numerics=_build_table(self.numerics, schema.NUMERICS) if self.numerics else schema.empty("numerics"),
            io=_build_table(self.io, schema.IO) if self.io else schema.empty("io"),
            **self.costs,
        )
        if self.steps is not None:
            tables = _first_steps(tables, self.steps)
        return tables if self.trains else _rename_inference_phase(tables)


def _build_table(columns: Columns, types: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return a table of these columns, with their types in a schema."""
    series = {name: _shapes(values) if name.endswith("shape") else values for name, values in columns.items()}
    return pl.DataFrame(series, schema={name: types[name] for name in columns})


def _shapes(shapes: Sequence[tuple[int, ...]]) -> pl.Series:
    """Return a column of shapes, made of one list per distinct shape, as polars makes a series of each list."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = [numbers.setdefault(shape, len(numbers)) for shape in shapes]
    return pl.Series(list(map(list, numbers)), dtype=schema.EVENTS["shape"])[rows]


def _first_steps(tables: Tables, count: int) -> Tables:
    """Return the tables with the rows of the first `count` steps only."""
    parts = ("events", "kernels", "memory", "numerics", "differing", "io")
    return replace(tables, **{name: getattr(tables, name).filter(pl.col("step") < count) for name in parts})


def _rename_inference_phase(tables: Tables) -> Tables:
    """Rename the phase of forwards without gradients to "forward", for programs in which no call had gradients."""
    renamed = {}
    for name in ("events", "kernels", "memory", "numerics", "io"):
        table = getattr(tables, name)
        if table.height:
            module = pl.col("trigger" if name == "events" else "module")
            phase = pl.when(module == "").then(pl.lit("other")).otherwise(pl.lit("forward"))
            is_no_grad = pl.col("phase") == "no-grad forward"
            renamed[name] = table.with_columns(phase=pl.when(is_no_grad).then(phase).otherwise("phase"))
    return replace(tables, **renamed)

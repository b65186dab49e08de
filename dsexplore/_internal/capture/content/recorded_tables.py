"""The tables of a `Trace`, made of the content of a recording.

A rank that runs a notebook's cells sends its content as it is, and its launcher makes the tables: in each rank they
would take the memory of polars' code and threads.
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
"""By name of a column, its values."""


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
    """By column of `schema.EVENTS`, a value per collective."""
    collectives: npt.NDArray[np.int64]
    """The index of each event in `of_collectives`: a collective of several messages has one event for each."""

    def table(self) -> pl.DataFrame:
        """Return one row per message; columns: `schema.EVENTS`."""
        count = len(self.messages)
        columns = [pl.Series(name, values, schema.EVENTS[name]) for name, values in self.of_collectives.items()]
        events = _build_table(self.of_origins, schema.EVENTS)[self.origins].hstack(columns)
        if events.height != count or (self.collectives != np.arange(count)).any():
            events = events[self.collectives]
        numbers = pl.Series("seq", np.arange(count), dtype=schema.EVENTS["seq"])
        common = _build_table(self.of_kinds, schema.EVENTS)[self.messages]
        # By indexing and stacking: a query of its own for each of these few steps takes longer than they do.
        return common.hstack([*events, numbers, self._group_numbers()])[list(schema.EVENTS)]

    def _group_numbers(self) -> pl.Series:
        """Return the number of each collective in its group, from 0; null for messages and what was not sent."""
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
    """The content of a recording in plain numbers and texts; when called it returns the tables, made the first time."""

    events: EventColumns
    parameters: Columns
    """By column of `schema.PARAMETERS`, a value per parameter."""
    modules: Columns
    """By column of `schema.MODULES`, a value per module."""
    groups: list[tuple[Any, ...]]
    """Rows of `schema.GROUPS`."""
    info: TraceInfo
    costs: dict[str, pl.DataFrame]
    """The tables ``kernels``, ``memory`` and ``differing``; empty where costs were not recorded."""
    numerics: Columns
    """By column of `schema.NUMERICS`, a value per summary; empty where none were recorded."""
    io: Columns
    """By column of `schema.IO`, a value per read, write or wait; empty where there were none."""
    steps: int | None
    """The number of steps that the tables hold; None for all that was recorded."""
    trains: bool
    """True if a module outside any other was called with gradients on."""
    _made: Tables | None = field(default=None, init=False)

    def __call__(self) -> Tables:
        """Return all tables with the info; they are built once."""
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
    """Build a table of these columns, with their types in a schema."""
    made = {name: _shapes(values) if name.endswith("shape") else values for name, values in columns.items()}
    return pl.DataFrame(made, schema={name: types[name] for name in columns})


def _shapes(shapes: Sequence[tuple[int, ...]]) -> pl.Series:
    """Build a column of shapes, one list per distinct shape, since polars makes a series of each list."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = [numbers.setdefault(shape, len(numbers)) for shape in shapes]
    return pl.Series(list(map(list, numbers)), dtype=schema.EVENTS["shape"])[rows]


def _first_steps(tables: Tables, count: int) -> Tables:
    """Return the tables with the rows of the first `count` steps only."""
    parts = ("events", "kernels", "memory", "numerics", "differing", "io")
    return replace(tables, **{name: getattr(tables, name).filter(pl.col("step") < count) for name in parts})


def _rename_inference_phase(tables: Tables) -> Tables:
    """Rename the phase of forwards without gradients, for programs in which no call ran with gradients."""
    names = {"events": "trigger", "kernels": "module", "memory": "module", "numerics": "module", "io": "module"}
    is_apart = pl.col("phase") == "no-grad forward"
    return replace(
        tables,
        **{
            name: getattr(tables, name).with_columns(
                phase=pl.when(~is_apart)
                .then("phase")
                .when(pl.col(module) == "")
                .then(pl.lit("other"))
                .otherwise(pl.lit("forward"))
            )
            for name, module in names.items()
            if getattr(tables, name).height
        },
    )

"""`Trace`: what was communicated, as four plain tables. It knows nothing of hooks below or screens above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dsexplore.display import Displayable
from dsexplore.errors import UsageError
from dsexplore.trace import schema


@dataclass(frozen=True)
class TraceInfo:
    """Where and how a trace was recorded."""

    world_size: int = 1
    ranks: tuple[int, ...] = ()
    """The ranks whose events are in the trace."""
    mesh: str = ""
    """The world's mesh as written by the user, ``"dp=2,tp=4"``; empty where none was named."""
    simulated: bool = False
    """True on a fake process group: counts and bytes are real, values and times are not."""
    torch_version: str = ""
    notes: tuple[str, ...] = ()
    """What a reader must know: an exception that ended the recording, an op that was not known, …"""


@dataclass(frozen=True)
class Tables:
    """The content of a trace at one moment; columns are those of `dsexplore.trace.schema`."""

    events: pl.DataFrame = field(default_factory=lambda: schema.empty("events"))
    parameters: pl.DataFrame = field(default_factory=lambda: schema.empty("parameters"))
    modules: pl.DataFrame = field(default_factory=lambda: schema.empty("modules"))
    groups: pl.DataFrame = field(default_factory=lambda: schema.empty("groups"))
    info: TraceInfo = field(default_factory=TraceInfo)


class Trace(Displayable):
    """Collectives, parameters, modules and groups of a recorded program.

    Args:
        tables: the content; or, while a recording runs, a function that returns the content so far.
        on_step: called by `step`; only a running recording has one.
    """

    def __init__(
        self, tables: Tables | Callable[[], Tables] | None = None, on_step: Callable[[], None] | None = None
    ) -> None:
        self._tables = Tables() if tables is None else tables
        self._on_step = on_step

    @property
    def tables(self) -> Tables:
        """All four tables and the info, as of now."""
        return self._tables() if callable(self._tables) else self._tables

    @property
    def events(self) -> pl.DataFrame:
        """One row per collective and rank, in program order; columns: `schema.EVENTS`."""
        return self.tables.events

    @property
    def parameters(self) -> pl.DataFrame:
        """One row per parameter and rank; columns: `schema.PARAMETERS`."""
        return self.tables.parameters

    @property
    def modules(self) -> pl.DataFrame:
        """One row per module, parents before children, in the order of ``named_modules``; columns: `schema.MODULES`."""
        return self.tables.modules

    @property
    def groups(self) -> pl.DataFrame:
        """One row per process group; columns: `schema.GROUPS`."""
        return self.tables.groups

    @property
    def info(self) -> TraceInfo:
        """Where and how it was recorded."""
        return self.tables.info

    def step(self) -> None:
        """Mark the end of a training step: later events have the next ``step`` number.

        Raises:
            UsageError: the recording has ended.
        """
        if self._on_step is None:
            raise UsageError("trace.step() was called after the recording ended: call it inside the block that records")
        self._on_step()

    def finish(self, tables: Tables) -> None:
        """Hold the final content; called by the recorder when the block ends."""
        self._tables = tables
        self._on_step = None

    def __len__(self) -> int:
        """The number of events."""
        return self.events.height

    def to_frame(self) -> pl.DataFrame:
        """The events as a polars frame; ``.to_pandas()`` on it gives a pandas one."""
        return self.events

    def where(self, **conditions: Any) -> Trace:
        """The events that meet all conditions, as a `Trace` with the same modules, parameters and groups.

        Each condition names a column of the events and a value or a list of values. ``module="a.b*"`` matches
        trigger or owner by shell pattern (the module itself and those inside it).

        Raises:
            UsageError: no such column.
        """
        from dsexplore.trace.select import select

        return Trace(select(self.tables, conditions))

    def by_module(self) -> pl.DataFrame:
        """Count and bytes per owner module and axis."""
        return self._totals("owner", "axis")

    def by_op(self) -> pl.DataFrame:
        """Count and bytes per op."""
        return self._totals("op")

    def by_axis(self) -> pl.DataFrame:
        """Count and bytes per mesh axis."""
        return self._totals("axis")

    def by_phase(self) -> pl.DataFrame:
        """Count and bytes per phase, in the order a step runs them."""
        totals = self._totals("phase")
        return totals.sort(pl.col("phase").replace_strict({p: i for i, p in enumerate(schema.PHASES)}, default=99))

    def _totals(self, *keys: str) -> pl.DataFrame:
        return (
            self.events.group_by(*keys, maintain_order=True)
            .agg(pl.len().alias("count"), pl.col("message_bytes").sum(), pl.col("wire_bytes").sum())
            .sort("message_bytes", "count", *keys, descending=[True, True, *(False for _ in keys)])
        )


def empty_trace(info: Mapping[str, Any] | None = None) -> Trace:
    """A trace without events."""
    return Trace(Tables(info=TraceInfo(**(info or {}))))

"""The content of a trace as plain tables, and the info on where and how it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.represented_ranks import weights

_CODED = (
    *("rank", "step", "seq", "op", "phase", "trigger", "owner", "axis", "group", "group_size", "message_bytes"),
    *("wire_bytes", "dtype", "implicit", "cause", "source", "is_object"),
)
"""Columns of `Tables.coded_in_steps`."""
_SLICE = 1 << 18
"""Number of rows whose texts are filtered at once."""
OF_EACH_RANK = ("stands_for", "clocks", "clock_offsets", "clock_residuals", "ends", "began")
"""Fields of `TraceInfo` that have one value per rank, or are empty."""


@dataclass(frozen=True)
class TraceInfo:
    """Where and how a trace was recorded."""

    world_size: int = 1
    ranks: tuple[int, ...] = ()
    """Ranks whose events are in the trace."""
    stands_for: tuple[str, ...] = ()
    """For each of `ranks` the ranks that it represents, itself included, as ``"0-1015"``; empty if each represents only
    itself. See `trace.represented_ranks`."""
    mesh: str = ""
    """The world's mesh as written by the user, ``"dp=2,tp=4"``; empty if none was named."""
    simulated: bool = False
    """True on a fake process group: counts and bytes are real, values and times are not."""
    target: str = ""
    """The target whose traffic a simulation shows: ``cuda``, GPUs with NCCL, or ``cpu``, CPUs with gloo; empty if the
    ranks are real, or if the program itself simulates its process group."""
    clocks: tuple[str, ...] = ()
    """For each of `ranks` the name of the clock of its times, equal for ranks that share one, such as the processes of
    one host; ``""`` if unknown. Empty if all are unknown."""
    clock_offsets: tuple[int, ...] = ()
    """For each of `ranks` the nanoseconds that were subtracted from its times; see `trace.merge`. Empty if
    the offsets are unknown."""
    clock_residuals: tuple[int, ...] = ()
    """For each of `ranks` the uncertainty of its offset in nanoseconds, from random errors only: it does not include a
    rank that always notices ends late. The trace's notes give the largest possible error of an offset."""
    ends: tuple[str, ...] = ()
    """For each of `ranks` how its recording ended, see `trace.ends`; ``""`` if unknown."""
    began: tuple[int, ...] = ()
    """For each of `ranks` when its recording began, in nanoseconds since the Unix epoch; 0 if unknown."""
    attempt: str = ""
    """A name shared by the files that one attempt of a job saved; empty if nothing was saved, and in a simulation."""
    whole_steps: int = 0
    """Number of steps that had ended when the recording did; events of later steps belong to an incomplete step. 0 if
    no step was seen to end."""
    torch_version: str = ""
    schedule: str = ""
    """The pipeline schedule that called the stages, as JSON; see `capture.stack.pipelines.describe`."""
    notes: tuple[str, ...] = ()
    """Sentences for the reader: an exception that ended the recording, an unknown op, …"""

    def of_rank(self, rank: int) -> TraceInfo:
        """Return the info of a trace with `rank` alone."""
        values: dict[str, Any] = {"ranks": (rank,)}
        for name in OF_EACH_RANK:
            by_rank = dict(zip(self.ranks, getattr(self, name), strict=False))
            values[name] = (by_rank[rank],) if rank in by_rank else ()
        return replace(self, **values)

    @property
    def weights(self) -> Mapping[int, int]:
        """Number of ranks that each of `ranks` represents: 1 unless `stands_for` says more."""
        return weights(self.ranks, self.stands_for)

    @property
    def ranks_stood_for(self) -> int:
        """Number of ranks that the trace describes: those in it, and those that they represent."""
        return sum(self.weights.values())


@dataclass(frozen=True)
class Tables:
    """The content of a trace at one moment; columns are those of `trace.schema`."""

    events: pl.DataFrame = field(default_factory=lambda: schema.empty("events"))
    parameters: pl.DataFrame = field(default_factory=lambda: schema.empty("parameters"))
    modules: pl.DataFrame = field(default_factory=lambda: schema.empty("modules"))
    groups: pl.DataFrame = field(default_factory=lambda: schema.empty("groups"))
    info: TraceInfo = field(default_factory=TraceInfo)
    kernels: pl.DataFrame = field(default_factory=lambda: schema.empty("kernels"))
    memory: pl.DataFrame = field(default_factory=lambda: schema.empty("memory"))
    numerics: pl.DataFrame = field(default_factory=lambda: schema.empty("numerics"))
    differing: pl.DataFrame = field(default_factory=lambda: schema.empty("differing"))
    io: pl.DataFrame = field(default_factory=lambda: schema.empty("io"))

    @cached_property
    def _coded(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """`coded_in_steps` and `coded_start_up`."""
        is_in_steps = self.events.select(schema.IN_STEPS).to_series()
        is_start_up = self.events.select(pl.col("phase") == "start-up").to_series()
        mask = is_in_steps | is_start_up
        rows = pl.select(row=pl.int_range(self.events.height, dtype=pl.UInt32))
        in_steps, start_up = [rows.filter(is_in_steps)], [rows.filter(is_start_up)]
        is_in_steps, is_start_up = is_in_steps.filter(mask), is_start_up.filter(mask)
        for name in _CODED:  # one by one, because a column is in memory twice while it is divided
            column = _coded_column(self.events, name, mask)
            in_steps.append(column if is_in_steps.all() else column.filter(is_in_steps))
            start_up.append(column.filter(is_start_up))
            del column
        return pl.concat(in_steps, how="horizontal"), pl.concat(start_up, how="horizontal")

    @property
    def coded_in_steps(self) -> pl.DataFrame:
        """Events in steps as narrow rows, for passes over millions: the columns `_CODED`, and the event's ``row``.

        Texts are categorical, because few of them differ: an event takes a fifth of the memory. Passes share it.
        """
        return self._coded[0]

    @property
    def coded_start_up(self) -> pl.DataFrame:
        """Events before the first step as narrow rows; columns are those of `coded_in_steps`."""
        return self._coded[1]

    def with_columns(self, coded: pl.DataFrame, *names: str) -> pl.DataFrame:
        """Return coded rows with the columns `names` of `events` added."""
        return coded.hstack(self.events.select(names)[coded["row"]])


def _coded_column(events: pl.DataFrame, name: str, mask: pl.Series) -> pl.DataFrame:
    """Return a column of the events in `mask`, with categorical texts.

    It stays a frame, because a frame holds a value that all rows have only once. Texts are filtered slice by slice,
    because the texts of millions of rows are large and their codes are small.
    """
    column = events.select(name)
    if schema.EVENTS[name] != pl.String:
        return column if mask.all() else column.filter(mask)
    code = pl.col(name).cast(pl.Categorical)
    if mask.all():
        return column.select(code)
    starts = range(0, max(column.height, 1), _SLICE)
    slices = [column[at : at + _SLICE].filter(mask[at : at + _SLICE]).select(code) for at in starts]
    return pl.concat(slices, rechunk=True)

"""Computes when each collective of a trace ran, without waiting, and for how many seconds a set of collectives ran.

A collective has one duration, the minimum over its recorded ranks: the other ranks began earlier and waited. So every
event of a collective gets the start and the end of the rank with the shortest duration. The same holds for a message
that both ends recorded, as a receive waits for its sender.

Worked example: ranks 0 and 1 measured an all_reduce from 0 to 9 and from 6 to 10 ms. The collective ran from 6 to
10 ms. Rank 0 waited for rank 1 for 5 of its 9 ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace import measured_time
from dsexplore._internal.trace.matching import POINT_TO_POINT, numbered
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables

Seconds = npt.NDArray[np.float64]
Source = Literal["measured", "predicted"]
_TIMES = ("begin", "until")


@dataclass(frozen=True, eq=False)
class RunningTimes:
    """When the collective of each event of a trace ran."""

    begin: Seconds
    """Seconds of shape (events,); NaN for an event without times."""
    end: Seconds
    """Seconds of shape (events,); NaN for an event without times."""
    source: Source
    steps: int
    """Number of steps with times, by which seconds are divided."""
    words: str
    """Description of the source for views: ``"measured, the mean of 3 steps"``."""


def measured_times(tables: Tables) -> RunningTimes | None:
    """Return the measured times of a trace's collectives; None if they were not measured."""
    events = tables.events
    if not measured_time.is_timed(events):
        return None
    first = pl.col("start").min()
    timed = events.select(pl.all(), begin=(pl.col("start") - first) / 1e9, until=(pl.col("end") - first) / 1e9)
    counted = in_steps(events).filter(pl.col("end").is_not_null())
    steps = max(1, counted["step"].n_unique())
    of = f"the mean of {steps:,} steps" if steps > 1 else "of 1 step"
    return _times(timed, tables.groups, "measured", steps, f"measured, {of}")


def predicted_times(tables: Tables, spans: pl.DataFrame, words: str) -> RunningTimes:
    """Return the times of one predicted step.

    Args:
        tables: the trace.
        spans: predicted times of its collectives; columns ``rank``, ``seq``, and ``begin`` and ``until`` in seconds.
        words: description of the source of the seconds, see `RunningTimes.words`.
    """
    timed = tables.events.join(spans, on=["rank", "seq"], how="left", maintain_order="left")
    return _times(timed, tables.groups, "predicted", 1, words)


def _times(events: pl.DataFrame, groups: pl.DataFrame, source: Source, steps: int, words: str) -> RunningTimes:
    """Build the times of events with the columns ``begin`` and ``until``."""
    rows = events.with_row_index("row")
    timed = rows.filter(pl.col("until").is_not_null() & ~pl.col("op").str.starts_with("switched_off"))
    collectives = numbered(rows, groups).filter(pl.col("until").is_not_null())
    shortest = [
        _shortest_events(collectives, ("same_group", "number", "op")),
        _shortest_events(_messages(timed), ("name", "source_rank", "target_rank", "number")),
    ]
    own_times = timed.select("row", *_TIMES)
    shared = pl.concat([times.join(own_times.select("row"), on="row", how="semi") for times in shortest])
    unshared = own_times.join(shared, on="row", how="anti")
    begin, end = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for times in (unshared, shared):
        row = times["row"].to_numpy()
        begin[row], end[row] = times["begin"].to_numpy(), times["until"].to_numpy()
    return RunningTimes(begin=begin, end=end, source=source, steps=steps, words=words)


def _shortest_events(events: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return for each event the begin and end of the shortest event that agrees with it in `keys`."""
    took = pl.col("until") - pl.col("begin")
    return events.select("row", *(pl.col(name).sort_by(took).first().over(*keys) for name in _TIMES))


def _messages(events: pl.DataFrame) -> pl.DataFrame:
    """Return the messages with a known peer, with columns that are equal for a send and its receive."""
    sends = pl.col("op") == "send"
    messages = events.filter(pl.col("op").is_in(POINT_TO_POINT) & pl.col("peer").is_not_null()).with_columns(
        name=pl.col("group").str.replace(r"@\d+$", ""),
        source_rank=pl.when(sends).then("rank").otherwise("peer"),
        target_rank=pl.when(sends).then("peer").otherwise("rank"),
    )
    place = pl.int_range(pl.len()).over("rank", "op", "name", "source_rank", "target_rank")
    return messages.with_columns(number=place)


class FlowSeconds:
    """Seconds per step in which the collectives ran that use a rank or a link; concurrent ones count once.

    Args:
        tables: the trace.
        times: the times at which the collective of each event of the trace ran.
        flows: groups of events over the same links; columns `link_flows.FLOW`.
        rows: indices of n events of the trace, shape (n,).
        line: the index of the flow of each of these events, shape (n,).
    """

    def __init__(
        self,
        tables: Tables,
        times: RunningTimes,
        flows: pl.DataFrame,
        rows: npt.NDArray[Any],
        line: npt.NDArray[Any],
    ) -> None:
        begin, end = times.begin[rows], times.end[rows]
        timed = np.flatnonzero(~np.isnan(begin))
        timed = timed[np.argsort(begin[timed], kind="stable")]
        self.times, self.flows = times, flows
        self._line, self._begin, self._end = line[timed], begin[timed], end[timed]
        members = {name: list(held) for name, held in tables.groups.select("group", "ranks").iter_rows()}
        self._users = [
            {rank, *(members.get(group, ()) if peer is None else (peer,))}
            for rank, group, peer in flows.select("rank", "group", "peer").iter_rows()
        ]

    @cached_property
    def _flows_of(self) -> dict[int, list[int]]:
        """{rank: the flows that use it}."""
        flows: dict[int, list[int]] = defaultdict(list)
        used = set(self._line.tolist())
        for flow, users in enumerate(self._users):
            for rank in users if flow in used else ():
                flows[rank].append(flow)
        return flows

    def during(self, flows: Iterable[int]) -> float:
        """Return the seconds per step in which any collective of these flows ran."""
        wanted = np.zeros(self.flows.height, bool)
        wanted[list(flows)] = True
        mask = wanted[self._line]
        return covered(self._begin[mask], self._end[mask]) / self.times.steps

    def of_ranks(self, chosen: pl.Series) -> dict[int, float]:
        """Return {recorded rank: seconds per step in which any collective of its chosen flows ran}.

        Args:
            chosen: mask of shape (flows,).
        """
        by_rank = self.flows.with_row_index("flow").filter(chosen).group_by("rank").agg("flow").sort("rank")
        return {rank: self.during(flows) for rank, flows in by_rank.iter_rows()}

    def to_each(self, world: int, axis: str | None = None) -> Seconds:
        """Return seconds per step of shape (world,) in which collectives with each rank ran, over one axis or all."""
        axes = self.flows["axis"].to_list()
        cached: dict[tuple[int, ...], float] = {}
        seconds = np.zeros(world)
        for rank, flows in self._flows_of.items():
            key = tuple(flow for flow in flows if axis is None or axes[flow] == axis)
            if key not in cached:
                cached[key] = self.during(key)
            seconds[rank] = cached[key]
        return seconds


def covered(begin: Seconds, end: Seconds) -> float:
    """Return the total length of the union of ranges: 4 for 0 to 3, 1 to 2 and 5 to 6.

    Args:
        begin: the begin of each range in ascending order, shape (n,).
        end: the end of each range, shape (n,).
    """
    reach = np.maximum.accumulate(end)
    before = np.concatenate(([-np.inf], reach[:-1]))
    return float(np.maximum(0.0, reach - np.maximum(begin, before)).sum())

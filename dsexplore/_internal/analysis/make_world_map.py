"""Makes a `WorldMap` of a trace, or of some of its events."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.link_flows import BETWEEN, FLOW, INSIDE, LinkUse, axis_name, level_of
from dsexplore._internal.analysis.running_times import FlowSeconds, RunningTimes, measured_times
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.analysis.world_map import Box, Shade, WorldMap
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables

NO_TIMES = "no collective of this trace has a measured duration"
"""Part of the error's text for a map of seconds without times."""


def world_map(
    tables: Tables,
    ranks_per_node: int = 8,
    sizes: Sizes = "wire",
    axis: str | None = None,
    shade: Shade = "bytes",
    times: RunningTimes | None = None,
    box: Box = "node",
) -> WorldMap:
    """Build the map of a trace's world.

    Args:
        tables: the trace.
        ranks_per_node: the number of ranks on each node; consecutive ranks share a node.
        sizes: the kind of bytes, ``"wire"`` or ``"message"``.
        axis: the axis whose groups are outlined; None for none.
        shade: the quantity that shades the ranks, ``"bytes"`` or ``"seconds"``.
        times: the source of the seconds; None for measured times.
        box: the name of `ranks_per_node` ranks: a node, or a domain of several nodes.

    Raises:
        UsageError: fewer than one rank per node, unknown sizes, axis or shade, or no times for seconds.
    """
    if not isinstance(ranks_per_node, int) or ranks_per_node < 1:
        raise UsageError(f"world_map(ranks_per_node={ranks_per_node!r}): give the ranks on each node, such as 8")
    if sizes not in get_args(Sizes):
        raise UsageError(f"world_map(sizes={sizes!r}): no such sizes; they are {', '.join(get_args(Sizes))}")
    if shade not in get_args(Shade):
        raise UsageError(f"world_map(shade={shade!r}): no such shade; they are {', '.join(get_args(Shade))}")
    rows = in_steps(tables.events.with_row_index("row"))
    events = rows.with_columns(axis_name().alias("axis"))
    axes = sorted(set(events["axis"]))
    if axis is not None and axis not in axes:
        raise UsageError(f"world_map(axis={axis!r}): nothing is sent over that axis; axes are {', '.join(axes)}")
    totals = events.group_by(FLOW).agg(pl.col(f"{sizes}_bytes").sum(), pl.len()).sort(FLOW).rows()
    steps = max(1, events["step"].n_unique())
    senders = tuple(sorted(tables.events["rank"].unique().to_list()))
    drawn = replace(map_of(tables, totals, ranks_per_node, steps, senders), sizes=sizes, axis=axis, box=box)
    return drawn if shade == "bytes" else replace(drawn, running=_running(tables, events, times))


def _running(tables: Tables, events: pl.DataFrame, times: RunningTimes | None) -> FlowSeconds:
    """Return the seconds that shade the map.

    Args:
        tables: the trace.
        events: its events in steps, with the column ``row`` and their axis by `axis_name`.
        times: the source of the seconds; None for measured times.

    Raises:
        UsageError: there are no times.
    """
    times = times or measured_times(tables)
    if times is None:
        raise UsageError(
            f"world_map(shade='seconds'): {NO_TIMES}; give hardware=… for predicted ones, of a trace with costs=True"
        )
    flows = events.select(FLOW).unique(maintain_order=True).with_row_index("line")
    line = events.join(flows, on=FLOW, how="left", nulls_equal=True, maintain_order="left")["line"]
    return FlowSeconds(tables, times, flows.drop("line"), events["row"].to_numpy(), line.to_numpy())


def map_of(
    tables: Tables, totals: Iterable[tuple[Any, ...]], ranks_per_node: int, steps: int, senders: tuple[int, ...]
) -> WorldMap:
    """Build the map of some events of a trace.

    Args:
        tables: the trace.
        totals: one tuple per flow: the columns `FLOW`, bytes, and number of events.
        ranks_per_node: the number of ranks on each node.
        steps: the number of steps that the totals are sums over.
        senders: the ranks whose events are recorded.
    """
    members = dict(zip(tables.groups["group"].to_list(), tables.groups["ranks"].to_list(), strict=True))
    world = max(tables.info.world_size, 1 + max((max(ranks, default=0) for ranks in members.values()), default=0))
    received: dict[str, npt.NDArray[np.float64]] = {}
    groups: dict[str, dict[tuple[int, ...], None]] = defaultdict(dict)
    links: dict[tuple[int, str, str], _LinkTotals] = defaultdict(_LinkTotals)
    for rank, axis, group, peer, size, count in totals:
        peers = [peer] if peer is not None else [other for other in members.get(group, ()) if other != rank]
        if group in members:
            groups[axis][tuple(members[group])] = None
        if not peers or not size:
            continue
        received.setdefault(axis, np.zeros(world))[peers] += size / len(peers) / steps
        for level in (INSIDE, BETWEEN):
            at_level = [other for other in peers if level_of(rank, other, ranks_per_node) == level]
            if at_level:
                sums = links[rank, axis, level]
                sums.peers.update(at_level)
                sums.bytes += size * len(at_level) / len(peers)
                sums.events += count
    return WorldMap(
        tables=tables,
        ranks_per_node=ranks_per_node,
        world_size=world,
        steps=steps,
        received=received,
        groups={axis: tuple(of_axis) for axis, of_axis in groups.items()},
        over=tuple(
            LinkUse(*key, len(sums.peers), round(sums.bytes / steps), math.ceil(sums.events / steps))
            for key, sums in sorted(links.items(), key=lambda item: item[0])
        ),
        senders=senders,
    )


@dataclass
class _LinkTotals:
    """What a recorded rank sends over links of one axis and level, in all steps."""

    peers: set[int] = field(default_factory=set)
    bytes: float = 0.0
    events: int = 0

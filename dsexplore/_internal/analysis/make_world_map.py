"""Functions that make a `WorldMap`: of a trace, and of some of its events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.link_flows import BETWEEN, FLOW, INSIDE, axis_name, level_of
from dsexplore._internal.analysis.running_times import FlowSeconds, RunningTimes, measured_times
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.analysis.world_map import Box, Shade, WorldMap
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables

NO_TIMES = "no collective of this trace has a measured duration"


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
        ranks_per_node: ranks on each node; consecutive ranks share a node.
        sizes: which bytes it shows, wire or message.
        axis: the axis whose groups are outlined; None for none.
        shade: what shades the ranks, bytes or seconds.
        times: source of the seconds; None for measured ones.
        box: what those ranks are, a node or a domain of several nodes.

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
    """Return the seconds of these events, which have the column ``row`` and a name where there is no axis."""
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
        totals: rows of `FLOW`, bytes and number of events.
        ranks_per_node: ranks on each node.
        steps: number of steps in which that was sent.
        senders: the ranks whose events are recorded.
    """
    members = dict(zip(tables.groups["group"].to_list(), tables.groups["ranks"].to_list(), strict=True))
    world = max(tables.info.world_size, 1 + max((max(held, default=0) for held in members.values()), default=0))
    received: dict[str, npt.NDArray[np.float64]] = {}
    groups: dict[str, dict[tuple[int, ...], None]] = defaultdict(dict)
    links: dict[tuple[int, str, str], list[Any]] = {}
    for rank, axis, group, peer, size, count in totals:
        peers = [peer] if peer is not None else [other for other in members.get(group, ()) if other != rank]
        if group in members:
            groups[axis][tuple(members[group])] = None
        if not peers or not size:
            continue
        received.setdefault(axis, np.zeros(world))[peers] += size / len(peers) / steps
        for level in (INSIDE, BETWEEN):
            there = [other for other in peers if level_of(rank, other, ranks_per_node) == level]
            if there:
                link = links.setdefault((rank, axis, level), [set(), 0.0, 0])
                link[0] |= set(there)
                link[1] += size * len(there) / len(peers)
                link[2] += count
    over = tuple(
        (rank, axis, level, len(peers), round(size / steps), -(-count // steps))
        for (rank, axis, level), (peers, size, count) in sorted(links.items())
    )
    return WorldMap(
        tables,
        ranks_per_node,
        world,
        steps,
        received,
        {axis: tuple(held) for axis, held in groups.items()},
        over,
        senders,
    )

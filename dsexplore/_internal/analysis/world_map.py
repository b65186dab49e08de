"""`WorldMap`: which ranks the recorded ranks talk to, node by node, over which mesh axis, and how much.

What a collective sends is shared equally among the other ranks of its group, as if every pair of them were linked: the
trace knows the least that a rank must send, and not the ring or tree that a library chooses. A message from point to
point goes to its peer. What is sent at start-up is omitted, and the rest is per step.

Where times are known the map may be shaded by seconds: those of a step in which collectives ran that a rank takes part
in, or that go over a link; see `analysis.running_times`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis import world_map_text
from dsexplore._internal.analysis.link_flows import (
    BETWEEN,
    FLOW,
    INSIDE,
    axis_name,
    flows_over,
    flows_with,
    level_of,
)
from dsexplore._internal.analysis.running_times import FlowSeconds, RunningTimes, measured_times
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_count

Shade = Literal["bytes", "seconds"]
Box = Literal["node", "domain"]
NO_TIMES = "no collective of this trace has a measured duration"
LINKS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),  # a recorded rank
    "axis": pl.String(),
    "level": pl.String(),  # INSIDE or BETWEEN
    "peers": pl.Int32(),  # ranks that it sends to
    "bytes": pl.Int64(),  # to all of them, per step
    "events": pl.Int64(),  # collectives and messages, per step
}


class Level(NamedTuple):
    """The bytes that go over the links of one axis at one level, in a step."""

    axis: str
    level: str
    """`INSIDE` a node or `BETWEEN` nodes."""
    bytes: int
    """Bytes of the recorded rank that sends most there."""
    peers: int
    """Ranks that a recorded rank sends to, at most."""
    seconds: float = 0.0
    """In which collectives over these links ran, of the recorded rank with most; 0 where no times are known."""


@dataclass(frozen=True, eq=False)
class WorldMap(Result):
    """The ranks of a world by node, and what the recorded ones send to each. Shows itself as a drawing."""

    _INTERNAL = frozenset(
        {
            "box",
            "extent",
            "group_of_each",
            "is_even",
            "most",
            "most_seconds",
            "named",
            "running",
            "senders",
            "sent_over",
            "over",
            "shade",
            "tables",
            "to_each",
            "to_shades",
        }
    )

    tables: Tables
    ranks_per_node: int
    world_size: int
    steps: int
    """Steps recorded: all bytes here are per step."""
    received: dict[str, npt.NDArray[np.float64]]
    """{axis: bytes that the recorded ranks together send to each rank per step, shape (world,)}."""
    groups: dict[str, tuple[tuple[int, ...], ...]]
    """{axis: the groups of the recorded ranks}."""
    over: tuple[tuple[int, str, str, int, int, int], ...]
    """The rows of `links`: numbers of a few, which polars' threads would take longer to hand over than to compute."""
    senders: tuple[int, ...]
    """Ranks with recorded events."""
    sizes: Sizes = "wire"
    """The kind of these bytes."""
    axis: str | None = None
    """The axis whose groups are outlined; None for none."""
    running: FlowSeconds | None = None
    """The seconds that shade it; None where bytes do."""
    box: Box = "node"
    """Name of `ranks_per_node` consecutive ranks: a node, or an NVLink domain of several nodes."""

    def __repr__(self) -> str:
        return f"<WorldMap: {self.extent}>"

    def verdict(self) -> str:
        """Return what goes over links inside a node and between nodes, per rank and step."""
        return world_map_text.verdict(self)

    def lines(self) -> list[str]:
        """Return the verdict, a line per axis and level of link, and what is unknown or how seconds are counted."""
        return world_map_text.lines(self)

    @cached_property
    def links(self) -> pl.DataFrame:
        """Bytes by rank, axis and level of link. Columns: `LINKS`."""
        return pl.DataFrame(self.over, schema=LINKS, orient="row")

    @property
    def extent(self) -> str:
        """Ranks and their nodes, in words: ``16 ranks on 2 nodes of 8``."""
        ranks = format_count(self.world_size, "rank")
        return f"{ranks} on {format_count(self.nodes, self.box)} of {self.ranks_per_node}"

    def named(self, level: str) -> str:
        """Return the level of a link in words: ``inside a node``, ``between domains``."""
        return level.replace("node", self.box)

    @property
    def nodes(self) -> int:
        """Number of nodes, or of domains."""
        return -(-self.world_size // self.ranks_per_node)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes over which anything is sent, the one with most bytes first."""
        return tuple(sorted(self.received, key=lambda axis: (-float(self.received[axis].sum()), axis)))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Bytes by axis inside a node and between nodes, the axis with most bytes first."""
        most: dict[tuple[int, bool, str], tuple[int, int]] = {}
        place = {axis: i for i, axis in enumerate(self.axes)}
        for _, axis, level, peers, size, _ in self.over:
            key = (place.get(axis, len(place)), level != INSIDE, axis)
            before = most.get(key, (0, 0))
            most[key] = (max(before[0], size), max(before[1], peers))
        result = [
            Level(axis, BETWEEN if between else INSIDE, size, peers)
            for (_, between, axis), (size, peers) in sorted(most.items())
        ]
        return tuple(
            level._replace(seconds=max(self._seconds_over(level.level, level.axis).values(), default=0.0))
            for level in result
        )

    @property
    def shade(self) -> Shade:
        """Quantity that shades the ranks: ``bytes`` or ``seconds``."""
        return "bytes" if self.running is None else "seconds"

    def _seconds_over(self, level: str, axis: str | None = None) -> dict[int, float]:
        """Return {recorded rank: seconds per step in which its collectives ran over links of `level` and `axis`}."""
        if self.running is None:
            return {}
        return self.running.of_ranks(flows_over(self.tables, self.running.flows, self.ranks_per_node, axis, level))

    @cached_property
    def most_seconds(self) -> dict[str, float]:
        """{level: seconds per step in which collectives ran over any link of it, on the rank with most}."""
        return {level: max(self._seconds_over(level).values(), default=0.0) for level in (INSIDE, BETWEEN)}

    @cached_property
    def most(self) -> dict[str, int]:
        """{level: bytes per step of the recorded rank that sends most over links of that level}."""
        sent: dict[tuple[str, int], int] = defaultdict(int)
        for rank, _, level, _, size, _ in self.over:
            sent[level, rank] += size
        return {
            level: max((size for (other, _), size in sent.items() if other == level), default=0)
            for level in (INSIDE, BETWEEN)
        }

    @cached_property
    def is_even(self) -> bool:
        """True if every recorded rank sends the same, axis by axis and level by level."""
        sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
        for _, axis, level, _, size, _ in self.over:
            sizes[axis, level].append(size)
        return all(len(set(held)) == 1 and len(held) >= len(self.senders) for held in sizes.values())

    def to_frame(self) -> pl.DataFrame:
        """Return one row per recorded rank, axis and level of link.

        Columns: `LINKS`, with ``bytes`` renamed to ``wire_bytes`` or ``message_bytes``. If seconds shade the map, also
        ``seconds``: per step, in which the rank's collectives over these links ran.
        """
        links = self.links.rename({"bytes": f"{self.sizes}_bytes"})
        if self.running is None:
            return links
        seconds_of = {(level.axis, level.level): self._seconds_over(level.level, level.axis) for level in self.levels}
        seconds = [seconds_of[axis, level].get(rank, 0.0) for rank, axis, level, *_ in self.over]
        return links.with_columns(pl.Series("seconds", seconds, dtype=pl.Float64))

    def to_each(self, axis: str | None = None) -> npt.NDArray[np.float64]:
        """Return the bytes per step that the recorded ranks send to each rank, shape (world,).

        Args:
            axis: only over this axis; None for all.

        Raises:
            UsageError: nothing is sent over that axis.
        """
        if axis is not None and axis not in self.received:
            raise UsageError(f"to_each({axis!r}): nothing is sent over that axis; axes are {', '.join(self.axes)}")
        chosen = [self.received[axis]] if axis is not None else list(self.received.values())
        return np.sum([np.zeros(self.world_size), *chosen], axis=0)  # type: ignore[no-any-return]  # of an array

    def to_shades(self, axis: str | None = None) -> npt.NDArray[np.float64]:
        """Return the quantity that shades each rank, shape (world,): the bytes of `to_each`, or seconds per step.

        The seconds of a rank are those in which collectives ran that include both it and a recorded rank.

        Args:
            axis: only over this axis; None for all.

        Raises:
            UsageError: nothing is sent over that axis.
        """
        sent = self.to_each(axis)
        return sent if self.running is None else self.running.to_each(self.world_size, axis)

    def talks_to(self, rank: int, axis: str | None = None) -> Trace:
        """Return the events that include both a recorded rank and `rank`, as a `Trace`.

        Raises:
            UsageError: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise UsageError(f"talks_to({rank}): ranks are 0 to {self.world_size - 1}")
        flows = self._flows()
        return self._events_of(flows.filter(flows_with(self.tables, flows, [rank], axis)))

    def sent_over(self, axis: str, level: str) -> Trace:
        """Return the events in which a recorded rank sends over an axis to any rank at that level, as a `Trace`.

        Args:
            axis: one of `axes`.
            level: `INSIDE` a node or `BETWEEN` nodes.
        """
        flows = self._flows()
        return self._events_of(flows.filter(flows_over(self.tables, flows, self.ranks_per_node, axis, level)))

    def _flows(self) -> pl.DataFrame:
        return self.tables.events.select(FLOW).unique()

    def _events_of(self, flows: pl.DataFrame) -> Trace:
        events = self.tables.events.join(flows, on=FLOW, how="semi", nulls_equal=True, maintain_order="left")
        return Trace(replace(self.tables, events=events))

    def group_of_each(self) -> dict[int, int]:
        """Return {rank: index of its group of `axis`}, of all ranks if the mesh is known, else of recorded groups."""
        if self.axis is None:
            return {}
        mesh = parse_mesh(self.tables.info.mesh)
        if self.axis in mesh.axes and mesh.size == self.world_size:
            place = mesh.axes.index(self.axis)
            ranks = np.moveaxis(np.arange(mesh.size).reshape(mesh.shape), place, -1).reshape(-1, mesh.shape[place])
            return {int(rank): number for number, held in enumerate(ranks) for rank in held}
        return {rank: number for number, held in enumerate(self.groups.get(self.axis, ())) for rank in held}


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
            there = [peer for peer in peers if level_of(rank, peer, ranks_per_node) == level]
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

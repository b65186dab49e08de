"""`WorldMap` shows what recorded ranks send to which ranks, over which mesh axis, inside a node or between nodes.

The bytes of a collective are divided equally among the other ranks of its group, as if every pair of them had a link: a
trace has the bytes that a rank must send at least, but not the ring or tree that a library chooses. A point-to-point
message goes to its peer. Bytes are per step, without start-up.

If times are known, the map can be shaded by seconds per step: of the collectives that a rank takes part in, or that go
over a link; see `analysis.running_times`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.link_flows import (
    BETWEEN,
    FLOW,
    INSIDE,
    LinkUse,
    flows_over,
    flows_with,
)
from dsexplore._internal.analysis.running_times import FlowSeconds
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.trace.unknown_sizes import what_is_unknown
from dsexplore._internal.units import format_bytes, format_count, format_seconds

Shade = Literal["bytes", "seconds"]
Box = Literal["node", "domain"]
LINKS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),  # a recorded rank
    "axis": pl.String(),
    "level": pl.String(),  # INSIDE or BETWEEN
    "peers": pl.Int32(),  # ranks that it sends to
    "bytes": pl.Int64(),  # to all of them, per step
    "events": pl.Int64(),  # collectives and messages, per step
}


class Level(NamedTuple):
    """What recorded ranks send over the links of one axis at one level in a step."""

    axis: str
    level: str
    """`INSIDE` a node or `BETWEEN` nodes."""
    bytes: int
    """Bytes of the recorded rank that sends most."""
    peers: int
    """Maximum number of ranks that a recorded rank sends to."""
    seconds: float = 0.0
    """Seconds in which collectives over these links ran, on the recorded rank with most; 0 if times are unknown."""


class LinkRow(NamedTuple):
    """What collectives of one axis send over links of one level, or of both levels."""

    axis: str
    links: str
    peers: int
    """Number of ranks sent to."""
    value: float
    """Bytes or seconds per rank and step, as the map shows."""


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
    """Number of recorded steps; all bytes are means over them."""
    received: dict[str, npt.NDArray[np.float64]]
    """{axis: bytes that the recorded ranks together send to each rank per step, shape (world,)}."""
    groups: dict[str, tuple[tuple[int, ...], ...]]
    """{axis: the groups of the recorded ranks}."""
    over: tuple[LinkUse, ...]
    """The rows of `links`; there are few of them, which plain Python processes faster than polars."""
    senders: tuple[int, ...]
    """Ranks with recorded events."""
    sizes: Sizes = "wire"
    """The kind of these bytes."""
    axis: str | None = None
    """The axis whose groups are outlined; None for none."""
    running: FlowSeconds | None = None
    """The seconds that shade it; None if bytes shade it."""
    box: Box = "node"
    """Name of `ranks_per_node` consecutive ranks: a node, or an NVLink domain of several nodes."""

    def __repr__(self) -> str:
        return f"<WorldMap: {self.extent}>"

    def verdict(self) -> str:
        """Return what goes over links inside a node and between nodes, per rank and step."""
        return _verdict(self)

    def lines(self) -> list[str]:
        """Return the verdict, a line per axis and level of link, and what is unknown or how seconds are counted."""
        unknown = unknown_bytes(self) if self.received else ""
        more = [f"More may be sent: {unknown}."] if unknown else []
        if self.running is not None:
            more.append(about_seconds(self))
        return [_verdict(self), *_level_lines(self), *more]

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
        links: dict[tuple[str, str], list[LinkUse]] = defaultdict(list)
        for link in self.over:
            links[link.axis, link.level].append(link)
        place = {axis: i for i, axis in enumerate(self.axes)}
        return tuple(
            Level(
                axis,
                level,
                bytes=max(link.bytes for link in links[axis, level]),
                peers=max(link.peers for link in links[axis, level]),
                seconds=max(self._seconds_over(level, axis).values(), default=0.0),
            )
            for axis, level in sorted(links, key=lambda key: (place.get(key[0], len(place)), key[1] != INSIDE, key[0]))
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
        for link in self.over:
            sent[link.level, link.rank] += link.bytes
        return {
            level: max((size for (other, _), size in sent.items() if other == level), default=0)
            for level in (INSIDE, BETWEEN)
        }

    @cached_property
    def is_even(self) -> bool:
        """True if every recorded rank sends the same, axis by axis and level by level."""
        sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
        for link in self.over:
            sizes[link.axis, link.level].append(link.bytes)
        return all(len(set(of_ranks)) == 1 and len(of_ranks) >= len(self.senders) for of_ranks in sizes.values())

    def to_frame(self) -> pl.DataFrame:
        """Return one row per recorded rank, axis and level of link.

        Columns: `LINKS`, with ``bytes`` renamed to ``wire_bytes`` or ``message_bytes``. If seconds shade the map, also
        ``seconds``: per step, in which the rank's collectives over these links ran.
        """
        links = self.links.rename({"bytes": f"{self.sizes}_bytes"})
        if self.running is None:
            return links
        seconds_of = {(level.axis, level.level): self._seconds_over(level.level, level.axis) for level in self.levels}
        seconds = [seconds_of[link.axis, link.level].get(link.rank, 0.0) for link in self.over]
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
        """Return {rank: index of its group along `axis`}, for all ranks if the mesh is known, else for recorded groups.

        Empty if no axis is outlined.
        """
        if self.axis is None:
            return {}
        mesh = parse_mesh(self.tables.info.mesh)
        if self.axis in mesh.axes and mesh.size == self.world_size:
            dim = mesh.axes.index(self.axis)
            groups = np.moveaxis(np.arange(mesh.size).reshape(mesh.shape), dim, -1).reshape(-1, mesh.shape[dim])
            return {int(rank): index for index, ranks in enumerate(groups) for rank in ranks}
        return {rank: index for index, ranks in enumerate(self.groups.get(self.axis, ())) for rank in ranks}


def _verdict(world: WorldMap) -> str:
    """Return what goes over links inside a node and between nodes, summed over all axes."""
    if not world.received:
        unknown = unknown_bytes(world)
        return (
            f"No link is drawn: {unknown}." if unknown else "Nothing was sent after start-up: there is no link to draw."
        )
    values = world.most if world.running is None else world.most_seconds
    inside, between = (
        f"{at_most(world) if values[level] else ''}{value_text(world, values[level])}" for level in (INSIDE, BETWEEN)
    )
    near, far = world.named(INSIDE), world.named(BETWEEN)
    if world.running is None:
        return f"Per rank and step {inside} stay {near}, {between} go {far}."
    if inside == between:
        rows = link_rows(world)
        all_cross = 2 * len(merged(rows)) == len(rows)
        where = f"all of it {far}" if all_cross else f"as much {near} as {far}"
        return f"Collectives take {inside} of a rank's step, {where}."
    return f"Per rank and step collectives take {inside} {near}, {between} {far}."


def _level_lines(world: WorldMap) -> list[str]:
    """Return a line per axis and level of link, with bytes, number of peers, and seconds if they are known."""
    most = "" if world.is_even else "at most "
    kind = "on the wire" if world.sizes == "wire" else "in messages"
    rows = [
        f"{level.axis}, {world.named(level.level)}: {most}{format_bytes(level.bytes)} {kind} "
        f"to {format_count(level.peers, 'other rank')}"
        for level in world.levels
    ]
    if world.running is None:
        return rows
    seconds = "at most " if len(world.senders) > 1 else ""
    return [f"{row}, {seconds}{format_seconds(level.seconds)}" for row, level in zip(rows, world.levels, strict=True)]


def about_seconds(world: WorldMap) -> str:
    """Return sentences on what the seconds count, and whether they are measured or predicted."""
    assert world.running is not None
    times = world.running.times
    alone = (
        " Of a collective that one rank alone recorded, waiting for the others is part of what was measured."
        if times.source == "measured" and len(world.senders) < world.world_size
        else ""
    )
    return (
        f"Seconds: {times.words}, in which collectives ran that the rank takes part in with a recorded one; what runs "
        "at the same time counts once, and start-up is left out. A collective has one duration, the least over its "
        f"recorded ranks: the rest is waiting, and is not counted.{alone} Links have no times of their own: theirs are "
        "those of the collectives that go over them."
    )


def link_rows(world: WorldMap) -> list[LinkRow]:
    """Return a row per axis and level of link, the axis with most bytes first."""
    return [
        LinkRow(
            level.axis,
            world.named(level.level),
            level.peers,
            level.bytes if world.running is None else level.seconds,
        )
        for level in world.levels
    ]


def merged(rows: list[LinkRow]) -> list[LinkRow]:
    """Return one row for both levels of an axis if its collectives all go over links of both."""
    result: list[LinkRow] = []
    for row in rows:
        if result and (result[-1].axis, result[-1].value) == (row.axis, row.value):
            before = result.pop()
            result.append(LinkRow(row.axis, f"{before.links} and {row.links}", before.peers + row.peers, row.value))
        else:
            result.append(row)
    return result


def at_most(world: WorldMap) -> str:
    """Return ``"at most "`` if the numbers are those of the busiest rank, ``""`` if all recorded ranks send as much."""
    even = world.is_even if world.running is None else len(world.senders) < 2
    return "" if even else "at most "


def unknown_bytes(world: WorldMap) -> str:
    """Return half a sentence on bytes after start-up that are not known; empty if all are, or time is shown."""
    sizes = f"{world.sizes}_bytes"
    if world.running is not None or not world.tables.events[sizes].null_count():
        return ""
    events = in_steps(world.tables.events)
    return what_is_unknown(events.filter(pl.col(sizes).is_null()), events.height)


def value_text(world: WorldMap, value: float) -> str:
    """Return a value of the map as text: bytes, or seconds if the map is shaded by seconds."""
    return format_bytes(value) if world.running is None else format_seconds(value)

"""`WorldMap`: which ranks the recorded ranks talk to, node by node, over which mesh axis, and how much.

What a collective sends is shared equally among the other ranks of its group, as if every pair of them were linked: the
trace knows the least that a rank must send, and not the ring or tree that a library chooses. A message from point to
point goes to its peer. What is sent at start-up is left out, and the rest is per step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.display import Displayable
from dsexplore.errors import UsageError
from dsexplore.trace.tables import Tables
from dsexplore.trace.trace import Trace

INSIDE, BETWEEN = "inside a node", "between nodes"
NO_AXIS = "no axis"
LINKS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),  # a recorded rank
    "axis": pl.String(),
    "level": pl.String(),  # INSIDE or BETWEEN
    "peers": pl.Int32(),  # ranks that it sends to
    "wire_bytes": pl.Int64(),  # to all of them, per step
    "events": pl.Int64(),  # collectives and messages, per step
}


@dataclass(frozen=True, eq=False)
class WorldMap(Displayable):
    """The ranks of a world by node, and what the recorded ones send to each. Shows itself as a drawing."""

    tables: Tables
    ranks_per_node: int
    world_size: int
    steps: int
    """Steps recorded: all bytes here are per step."""
    received: dict[str, npt.NDArray[np.float64]]
    """By axis: (world,) wire bytes that the recorded ranks together send to each rank, per step."""
    groups: dict[str, tuple[tuple[int, ...], ...]]
    """By axis: the groups of the recorded ranks."""
    links: pl.DataFrame
    """Columns: `LINKS`."""

    def __repr__(self) -> str:
        return f"<WorldMap: {self.world_size:,} ranks on {self.nodes:,} nodes of {self.ranks_per_node}>"

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.world_size // self.ranks_per_node)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which anything is sent, the one with most bytes first."""
        return tuple(sorted(self.received, key=lambda axis: (-float(self.received[axis].sum()), axis)))

    def to_frame(self) -> pl.DataFrame:
        """A row per recorded rank, axis and level of link; columns: `LINKS`."""
        return self.links

    def to_each(self, axis: str | None = None) -> npt.NDArray[np.float64]:
        """(world,) wire bytes that the recorded ranks send to each rank, per step.

        Args:
            axis: over this axis alone; None for all.

        Raises:
            UsageError: nothing is sent over that axis.
        """
        if axis is not None and axis not in self.received:
            raise UsageError(f"to_each({axis!r}): nothing is sent over that axis; axes are {', '.join(self.axes)}")
        chosen = [self.received[axis]] if axis is not None else list(self.received.values())
        return np.sum([np.zeros(self.world_size), *chosen], axis=0)  # type: ignore[no-any-return]  # of an array

    def talks_to(self, rank: int, axis: str | None = None) -> Trace:
        """The events in which a recorded rank and this one take part together, as a `Trace`.

        Raises:
            UsageError: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise UsageError(f"talks_to({rank}): ranks are 0 to {self.world_size - 1}")
        members = {name: set(held) for name, held in self.tables.groups.select("group", "ranks").iter_rows()}
        with_rank = [name for name, held in members.items() if rank in held]
        alone = pl.col("peer").is_null()
        shared = pl.col("group").is_in(with_rank) & (alone | (pl.col("peer") == rank) | (pl.col("rank") == rank))
        chosen = shared if axis is None else shared & (_axis() == axis)
        return Trace(replace(self.tables, events=self.tables.events.filter(chosen)))


def world_map(tables: Tables, ranks_per_node: int = 8) -> WorldMap:
    """The map of a trace's world.

    Args:
        tables: the trace.
        ranks_per_node: ranks on each node; consecutive ones share a node.

    Raises:
        UsageError: fewer than one rank per node.
    """
    if not isinstance(ranks_per_node, int) or ranks_per_node < 1:
        raise UsageError(f"world_map(ranks_per_node={ranks_per_node!r}): give the ranks on each node, such as 8")
    events = tables.events.filter(pl.col("phase") != "start-up")
    steps = max(1, events["step"].n_unique())
    members = {name: list(held) for name, held in tables.groups.select("group", "ranks").iter_rows()}
    world = max(tables.info.world_size, 1 + max((max(held, default=0) for held in members.values()), default=0))
    keys = ("rank", "axis", "group", "peer")
    sent = events.with_columns(_axis().alias("axis")).group_by(keys)
    totals = sent.agg(pl.col("wire_bytes").sum(), pl.len().alias("events")).sort(keys)
    received: dict[str, npt.NDArray[np.float64]] = {}
    groups: dict[str, dict[tuple[int, ...], None]] = defaultdict(dict)
    links: dict[tuple[int, str, str], list[Any]] = {}
    for rank, axis, group, peer, size, count in totals.iter_rows():
        peers = [peer] if peer is not None else [other for other in members.get(group, ()) if other != rank]
        if group in members:
            groups[axis][tuple(members[group])] = None
        if not peers or not size:
            continue
        received.setdefault(axis, np.zeros(world))[peers] += size / len(peers) / steps
        for level in (INSIDE, BETWEEN):
            there = [one for one in peers if (one // ranks_per_node == rank // ranks_per_node) == (level == INSIDE)]
            if there:
                link = links.setdefault((rank, axis, level), [set(), 0.0, 0])
                link[0] |= set(there)
                link[1] += size * len(there) / len(peers)
                link[2] += count
    rows = [
        (rank, axis, level, len(peers), round(size / steps), -(-count // steps))
        for (rank, axis, level), (peers, size, count) in sorted(links.items())
    ]
    return WorldMap(
        tables,
        ranks_per_node,
        world,
        steps,
        received,
        {axis: tuple(held) for axis, held in groups.items()},
        pl.DataFrame(rows, schema=LINKS, orient="row"),
    )


def _axis() -> pl.Expr:
    return pl.when(pl.col("axis") == "").then(pl.lit(NO_AXIS)).otherwise("axis")

"""Bytes from recorded ranks to their peers, and the events that send them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_ranges
from dsexplore._internal.views.trace.tally import MOST_ROWS, Grid

MOST_PEERS = 32
_MOST_RANGES = 4
"""Maximal number of ranges that a list of ranks shows."""


@dataclass(frozen=True)
class Flows:
    """Bytes from recorded ranks to their peers in steps."""

    senders: list[int]
    receivers: list[list[int]]
    """Lists of receiving ranks; ranks that get the same bytes from every sender share a list."""
    bytes: npt.NDArray[np.float64]
    """(senders, receivers) bytes to each rank of a list."""
    hidden: int
    """Number of senders and of lists of receivers that are omitted."""

    def grid(self) -> Grid:
        """Return the flows as a grid; a cell has the bytes to each rank of its column."""
        columns = [
            f"{format_ranges(ranks, _MOST_RANGES)}, each" if len(ranks) > 1 else format_ranges(ranks)
            for ranks in self.receivers
        ]
        return Grid([f"rank {rank}" for rank in self.senders], columns, self.bytes)

    def route(self, row: int, column: int) -> Route | None:
        """Return the ranks of a cell of `grid`, or None if there is no such cell."""
        if not (0 <= row < len(self.senders) and 0 <= column < len(self.receivers)):
            return None
        return Route([self.senders[row]], self.receivers[column])


@dataclass(frozen=True)
class Route:
    """Ranks that send, and ranks that receive."""

    senders: list[int]
    receivers: list[int]

    @property
    def title(self) -> str:
        """Senders and receivers as text: ``rank 0 to ranks 4–7``."""
        return f"{ranks_text(self.senders)} to {ranks_text(self.receivers)}"

    def condition(self, tables: Tables) -> pl.Expr:
        """Return the condition for events that `between_ranks` counts as sent from one of the senders to a receiver."""
        members = [(group, list(ranks or ())) for group, ranks in tables.groups.select("group", "ranks").iter_rows()]

        def from_rank(sender: int) -> pl.Expr:
            others = set(self.receivers) - {sender}
            reaching = [group for group, ranks in members if not others.isdisjoint(ranks)]
            to_group = pl.col("peer").is_null() & pl.col("group").is_in(reaching)
            return (pl.col("rank") == sender) & (to_group | pl.col("peer").is_in(self.receivers))

        return IN_STEPS & pl.any_horizontal(*map(from_rank, self.senders))


def ranks_text(ranks: list[int]) -> str:
    """Return ranks as text: ``rank 3``, ``ranks 0–3, 8``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks, _MOST_RANGES)}"


def between_ranks(
    tables: Tables, senders: int = MOST_ROWS, receivers: int | None = MOST_PEERS, column: str = "wire_bytes"
) -> Flows:
    """Sum the bytes from each recorded rank to each peer in steps, without start-up.

    A message counts for its peer. The bytes of a collective are divided equally among the other ranks of its group.

    Args:
        tables: tables of the trace.
        senders: maximal number of senders.
        receivers: maximal number of lists of receivers; None for all.
        column: column of the events that is summed.
    """
    members = {group: list(ranks or ()) for group, ranks in tables.groups.select("group", "ranks").iter_rows()}
    keys = ("rank", "group", "peer")
    steps = tables.events.filter(IN_STEPS)
    sent = steps.group_by(keys).agg(pl.col(column).sum()).sort(keys)
    sent = sent.filter(pl.col(column) > 0)
    ranks = sent["rank"].unique().sort().to_list()
    row_of = {rank: row for row, rank in enumerate(ranks[:senders])}
    highest = (max(peers, default=0) for peers in (*members.values(), sent["peer"].drop_nulls().to_list()))
    world = max(tables.info.world_size, *(rank + 1 for rank in highest))
    matrix = np.zeros((len(row_of), world))
    for rank, group, receiver, total in sent.iter_rows():
        peers = [peer for peer in members.get(group, ()) if peer != rank] if receiver is None else [receiver]
        if rank in row_of and peers:
            matrix[row_of[rank], peers] += total / len(peers)
    peers_of: dict[tuple[float, ...], list[int]] = {}
    for peer in range(world if row_of else 0):
        if matrix[:, peer].any():
            peers_of.setdefault(tuple(matrix[:, peer]), []).append(peer)
    kept = list(peers_of.items())[:receivers]
    return Flows(
        senders=list(row_of),
        receivers=[peers for _, peers in kept],
        bytes=np.array([sizes for sizes, _ in kept]).T.reshape(len(row_of), len(kept)),
        hidden=len(ranks) - len(row_of) + len(peers_of) - len(kept),
    )

"""Small tables counted from events for static sections and figures: by op, by message size, by peer.

Each has at most a few hundred rows, whatever the number of events: they are binned here, in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.trace.byte_sizes import signed
from dsexplore._internal.views.trace.module_tree import ranges

MOST_ROWS, MOST_COLUMNS = 16, 10
OTHERS = "(all others)"


@dataclass(frozen=True)
class Grid:
    """Numbers with named rows and columns."""

    rows: list[str]
    columns: list[str]
    values: npt.NDArray[np.float64]
    """Array of shape (rows, columns)."""
    unknown: npt.NDArray[np.float64] | None = None
    """How many summands of each value are unknown; None for none."""

    @property
    def signed(self) -> npt.NDArray[np.float64]:
        """Values with the sign that `byte_sizes.size_text` reads."""
        return signed(self.values, self.unknown)


def grid(
    totals: Mapping[tuple[str, str], float],
    most: int = MOST_ROWS,
    unknown: Mapping[tuple[str, str], float] | None = None,
) -> Grid:
    """Build a grid from {(row, column): bytes}, largest rows and columns first; those beyond the limit are merged.

    Args:
        totals: known bytes of each cell.
        most: maximal number of rows.
        unknown: {(row, column): how many sizes are not known}, where there are some.
    """
    rows = _ranked([(row, size) for (row, _), size in totals.items()], most)
    columns = _ranked([(column, size) for (_, column), size in totals.items()], MOST_COLUMNS)
    values, missing = np.zeros((2, len(rows), len(columns)))
    row_of, column_of = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    for cells, into in ((totals, values), (unknown or {}, missing)):
        for (row, column), size in cells.items():
            into[row_of.get(row, -1), column_of.get(column, -1)] += size
    return Grid(rows, columns, values, missing if unknown else None)


def _ranked(sizes: Iterable[tuple[str, float]], most: int) -> list[str]:
    """Return names by descending bytes; if there are more than `most`, the last entry stands for all others."""
    sums: dict[str, float] = {}
    for name, size in sizes:
        sums[name] = sums.get(name, 0) + size
    names = sorted(sums, key=lambda name: (-sums[name], name))
    return names if len(names) <= most else [*names[: most - 1], OTHERS]


MOST_PEERS = 32
Bytes = npt.NDArray[np.float64]


def op_by_phase(events: pl.DataFrame, size: str = "wire_bytes") -> pl.DataFrame:
    """Count events and sum bytes per op and phase; ops in order of their bytes.

    Columns: op, phase, count, bytes, unknown (how many are of unknown size).
    """
    return (
        events.group_by("op", "phase")
        .agg(pl.len().alias("count"), pl.col(size).sum().alias("bytes"), pl.col(size).null_count().alias("unknown"))
        .with_columns(pl.col("bytes").sum().over("op").alias("all"))
        .sort("all", "op", "phase", descending=[True, False, False])
        .drop("all")
    )


def message_sizes(events: pl.DataFrame) -> pl.DataFrame:
    """Count messages per op and power of two.

    Columns: op, size (lower bound in bytes, 0 for empty messages, null for unknown ones), count, message_bytes.
    """
    return (
        events.group_by("op", _power_of_two().alias("size"))
        .agg(pl.len().alias("count"), pl.col("message_bytes").sum())
        .sort("size", "op", nulls_last=True)
    )


def bus_bandwidth(events: pl.DataFrame) -> pl.DataFrame:
    """Return the median bus bandwidth per op and power of two, for events with measured durations.

    Columns: op, size (bytes), count, gb_per_s (1e9 bytes; wire bytes over duration).
    """
    timed = events.filter(
        (pl.col("end") > pl.col("start")) & (pl.col("message_bytes") > 0) & pl.col("wire_bytes").is_not_null()
    )
    return (
        timed.group_by("op", _power_of_two().alias("size"))
        .agg(
            pl.len().alias("count"),
            (pl.col("wire_bytes") / (pl.col("end") - pl.col("start"))).median().alias("gb_per_s"),
        )
        .sort("size", "op")
    )


@dataclass(frozen=True)
class Flows:
    """Bytes from recorded ranks to their peers in steps."""

    senders: list[int]
    receivers: list[list[int]]
    """Receiving ranks; ranks that get the same bytes from every sender share one entry."""
    bytes: Bytes
    """(senders, receivers) bytes to each single rank of the entry."""
    hidden: int
    """Number of senders and receivers beyond those kept."""

    def grid(self) -> Grid:
        """Return the flows as a grid; a cell has the bytes to each single rank of its column."""
        columns = [f"{ranges(r, 4)}, each" if len(r) > 1 else ranges(r) for r in self.receivers]
        return Grid([f"rank {rank}" for rank in self.senders], columns, self.bytes)


def between_ranks(
    tables: Tables, senders: int = MOST_ROWS, receivers: int | None = MOST_PEERS, size: str = "wire_bytes"
) -> Flows:
    """Sum the bytes from each recorded rank to each peer in steps, without start-up.

    A message counts for its peer; other traffic of a group is divided equally among its other ranks. Equal peers share
    one column; equal senders do not.

    Args:
        tables: tables of the trace.
        senders: maximal number of senders.
        receivers: maximal number of columns; None for all.
        size: column of the events that is summed.
    """
    members = {group: list(ranks or ()) for group, ranks in tables.groups.select("group", "ranks").iter_rows()}
    keys = ("rank", "group", "peer")
    steps = tables.events.filter(IN_STEPS)
    sent = steps.group_by(keys).agg(pl.col(size).sum()).sort(keys)
    sent = sent.filter(pl.col(size) > 0)
    every = sent["rank"].unique().sort().to_list()
    row_of = {rank: row for row, rank in enumerate(every[:senders])}
    named = (max(ranks, default=0) + 1 for ranks in (*members.values(), sent["peer"].drop_nulls().to_list()))
    world = max(tables.info.world_size, *named)
    matrix = np.zeros((len(row_of), world))
    for rank, group, receiver, total in sent.iter_rows():
        peers = [peer for peer in members.get(group, ()) if peer != rank] if receiver is None else [receiver]
        if rank in row_of and peers:
            matrix[row_of[rank], peers] += total / len(peers)
    columns: dict[tuple[float, ...], list[int]] = {}
    for peer in range(world if row_of else 0):
        columns.setdefault(tuple(matrix[:, peer]), []).append(peer)
    ranked = sorted(((v, p) for v, p in columns.items() if any(v)), key=lambda item: item[1])
    kept = ranked[:receivers]
    return Flows(
        list(row_of),
        [peers for _, peers in kept],
        np.array([values for values, _ in kept]).T.reshape(len(row_of), len(kept)),
        len(every) - len(row_of) + len(ranked) - len(kept),
    )


def sent_between(tables: Tables, senders: list[int], receivers: list[int]) -> pl.Expr:
    """Return the condition that an event counts, in `between_ranks`, as sent from ``senders`` to ``receivers``."""
    members = [(group, list(ranks or ())) for group, ranks in tables.groups.select("group", "ranks").iter_rows()]

    def from_rank(sender: int) -> pl.Expr:
        others = set(receivers) - {sender}
        reaching = [group for group, ranks in members if not others.isdisjoint(ranks)]
        to_group = pl.col("peer").is_null() & pl.col("group").is_in(reaching)
        return (pl.col("rank") == sender) & (to_group | pl.col("peer").is_in(receivers))

    return IN_STEPS & pl.any_horizontal(*(from_rank(sender) for sender in senders))


def size_range(low: int | None) -> str:
    """Return the text of the sizes from a power of two to its double; ``empty`` for 0, ``size unknown`` for None."""
    if low is None:
        return format_bytes(None)
    return f"{format_bytes(low)} – {format_bytes(2 * low)}" if low else "empty"


def _power_of_two() -> pl.Expr:
    size = pl.col("message_bytes")
    floor = pl.lit(2.0).pow(size.cast(pl.Float64).log(2.0).floor())
    return pl.when(size > 0).then(floor).when(size == 0).then(0).cast(pl.Int64)

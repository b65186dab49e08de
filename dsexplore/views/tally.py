"""Small tables for drawing, counted from a trace's events; shared by the static views, figures and the explorer.

Each has at most a few hundred rows, whatever the number of events: what is drawn is binned here, in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace.model import Tables
from dsexplore.units import format_bytes
from dsexplore.views.fold import ranges
from dsexplore.views.module_tree import NO_AXIS, OUTSIDE

MOST_ROWS = 16
MOST_COLUMNS = 10
OTHERS = "(all others)"
CAUSE = ("module", "op", "axis", "phase", "cause", "source")
"""Implicit redistributes that agree in these columns stand on one line; ``module`` is the place of the trigger."""


@dataclass(frozen=True)
class Grid:
    """Numbers with named rows and columns."""

    rows: list[str]
    columns: list[str]
    values: npt.NDArray[np.float64]
    """(rows, columns)"""


def pattern_of(name: pl.Expr) -> pl.Expr:
    """``Net.layers.3.up`` → ``Net.layers.*.up``: the numbered siblings of one place together."""
    return pl.when(name == "").then(pl.lit(OUTSIDE)).otherwise(name.str.replace_all(r"\.\d+(\.|$)", ".*${1}"))


def module_by_axis(events: pl.DataFrame, most: int = MOST_ROWS) -> Grid:
    """Message bytes per place in the model (layers together) and mesh axis, largest first."""
    totals = events.group_by("owner", "axis").agg(pl.col("message_bytes").sum())
    named = totals.group_by(pattern_of(pl.col("owner")).alias("row"), _axis().alias("column"))
    summed = named.agg(pl.col("message_bytes").sum())
    return grid({(row, column): size for row, column, size in summed.iter_rows()}, most)


def op_by_phase(events: pl.DataFrame) -> pl.DataFrame:
    """Count and bytes per op and phase; ops in order of their bytes. Columns: op phase count message_bytes."""
    return (
        events.group_by("op", "phase")
        .agg(pl.len().alias("count"), pl.col("message_bytes").sum())
        .with_columns(pl.col("message_bytes").sum().over("op").alias("all"))
        .sort("all", "op", "phase", descending=[True, False, False])
        .drop("all")
    )


def message_sizes(events: pl.DataFrame) -> pl.DataFrame:
    """Messages per op and power of two. Columns: op, size (lower bound in bytes, 0 for empty), count, message_bytes."""
    return (
        events.group_by("op", _power_of_two().alias("size"))
        .agg(pl.len().alias("count"), pl.col("message_bytes").sum())
        .sort("size", "op")
    )


def bus_bandwidth(events: pl.DataFrame) -> pl.DataFrame:
    """Median bus bandwidth per op and power of two, where durations were measured.

    Columns: op, size (bytes), count, gb_per_s (1e9 bytes; wire bytes over duration).
    """
    timed = events.filter((pl.col("end") > pl.col("start")) & (pl.col("message_bytes") > 0))
    return (
        timed.group_by("op", _power_of_two().alias("size"))
        .agg(
            pl.len().alias("count"),
            (pl.col("wire_bytes") / (pl.col("end") - pl.col("start"))).median().alias("gb_per_s"),
        )
        .sort("size", "op")
    )


def implicit(events: pl.DataFrame) -> pl.DataFrame:
    """Redistributes that nobody asked for, layers together, most bytes first.

    Columns: module, op, axis, phase, cause, source, count, message_bytes.
    """
    counted = (
        events.filter(pl.col("implicit"))
        .with_columns(pattern_of(pl.col("trigger")).alias("module"))
        .group_by(CAUSE)
        .agg(pl.len().alias("count"), pl.col("message_bytes").sum())
    )
    return counted.sort("message_bytes", "count", *CAUSE, descending=[True, True, *(False for _ in CAUSE)])


@dataclass(frozen=True)
class Lanes:
    """Who sent when: one row per rank, group and op, columns are equal bins of program order or time."""

    labels: list[tuple[int, str, str]]
    """(rank, axis or group, op) per row."""
    bytes: npt.NDArray[np.int64]
    """(rows, bins) message bytes."""
    counts: npt.NDArray[np.int64]
    """(rows, bins) collectives."""
    phases: list[list[str]]
    """(rows, bins) the phase of the first collective in a bin; "" where there is none."""
    unit: str
    """``seq`` for program order, ``ns`` for time since the first start."""
    first: float
    last: float
    width: float
    """Of a bin, in the unit: a whole number of collectives in program order."""
    hidden: int
    """Rows left out."""

    def edges(self, column: int) -> tuple[float, float]:
        """Where a bin begins, and where the next does."""
        return self.first + column * self.width, self.first + (column + 1) * self.width


def is_timed(events: pl.DataFrame) -> bool:
    """Whether there are events and every one has its times: else they are shown in program order."""
    return events.height > 0 and events["start"].null_count() == 0 and events["end"].null_count() == 0


def lanes(events: pl.DataFrame, bins: int = 96, most: int = 8, window: tuple[float, float] | None = None) -> Lanes:
    """Bin the events by time where every one was timed, else by program order.

    Args:
        window: only this part of the axis, in its unit.
    """
    timed = is_timed(events)
    at = (pl.col("start") - pl.col("start").min()) if timed else pl.col("seq")
    lane = pl.when(pl.col("axis") != "").then("axis").otherwise("group").alias("lane")
    rows = events.select("rank", "op", "phase", "message_bytes", lane, at.cast(pl.Float64).alias("at"))
    first, last = window or _extent(rows["at"])
    width, bins = _bins(first, last, bins, timed)
    column = ((pl.col("at") - first) / width).floor().clip(0, bins - 1).cast(pl.Int32)
    keys = ("rank", "lane", "op")
    binned = (
        rows.filter(pl.col("at").is_between(first, last))
        .group_by(*keys, column.alias("bin"))
        .agg(pl.len().alias("count"), pl.col("message_bytes").sum(), pl.col("phase").first())
        .sort(*keys, "bin")
    )
    every = binned.select(keys).unique(maintain_order=True)
    row_of = {key: row for row, key in enumerate(every.head(most).iter_rows())}
    size, count = np.zeros((len(row_of), bins), np.int64), np.zeros((len(row_of), bins), np.int64)
    phases = [[""] * bins for _ in row_of]
    for *key, place, number, total, phase in binned.iter_rows():
        row = row_of.get(tuple(key))
        if row is not None:
            size[row, place], count[row, place], phases[row][place] = total, number, phase
    hidden = every.height - len(row_of)
    return Lanes(list(row_of), size, count, phases, "ns" if timed else "seq", first, last, width, hidden)


def lane_names(found: Lanes) -> list[str]:
    """What each lane is called; its rank is left out where all are of one."""
    several = len({rank for rank, _, _ in found.labels}) > 1
    parts = (((f"rank {rank}" if several else ""), lane, op) for rank, lane, op in found.labels)
    return [" · ".join(part for part in named if part) for named in parts]


def phase_runs(found: Lanes) -> list[tuple[str, int, int]]:
    """(phase, first bin, end): the bins cut where the phase of what was sent changes; "" before the first event."""
    runs: list[tuple[str, int, int]] = []
    for column in range(found.bytes.shape[1]):
        phase = next((row[column] for row in found.phases if row[column]), "")
        if runs and (runs[-1][0] == phase or not phase):
            runs[-1] = (runs[-1][0], runs[-1][1], column + 1)
        else:
            runs.append((phase, column, column + 1))
    return runs


def _extent(at: pl.Series) -> tuple[float, float]:
    numbers = at.to_numpy()
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)


def _bins(first: float, last: float, most: int, timed: bool) -> tuple[float, int]:
    """(width, how many): program order is cut into whole numbers of collectives."""
    if timed:
        return max(last - first, 1.0) / most, most
    places = int(last - first) + 1
    width = -(-places // most)
    return float(width), -(-places // width)


@dataclass(frozen=True)
class Flows:
    """Wire bytes from recorded ranks to their peers."""

    senders: list[int]
    receivers: list[list[int]]
    """Ranks that get the same from every sender, together."""
    bytes: npt.NDArray[np.float64]
    """(senders, receivers) to each one of those ranks."""
    hidden: int
    """Senders and receivers that are left out, because there are too many."""

    def grid(self) -> Grid:
        """The same as a grid."""
        return Grid([f"rank {rank}" for rank in self.senders], [ranges(r, 4) for r in self.receivers], self.bytes)


def between_ranks(tables: Tables, senders: int = MOST_ROWS, receivers: int | None = 2 * MOST_ROWS) -> Flows:
    """Wire bytes from each recorded rank to each peer, a group's traffic shared equally among its other ranks.

    Equal peers are one column, equal senders are not joined. Point-to-point in a group of more than two ranks
    counts the same way, because a trace does not hold the peer.

    Args:
        tables: what was recorded.
        senders: how many are kept at most.
        receivers: how many columns; None for all of them.
    """
    members = {group: list(ranks or ()) for group, ranks in tables.groups.select("group", "ranks").iter_rows()}
    sent = tables.events.group_by("rank", "group").agg(pl.col("wire_bytes").sum()).sort("rank", "group")
    sent = sent.filter(pl.col("wire_bytes") > 0)
    every = sent["rank"].unique().sort().to_list()
    row_of = {rank: row for row, rank in enumerate(every[:senders])}
    world = max([tables.info.world_size, *(max(ranks, default=0) + 1 for ranks in members.values())])
    matrix = np.zeros((len(row_of), world))
    for rank, group, total in sent.iter_rows():
        peers = [peer for peer in members.get(group, ()) if peer != rank]
        if rank in row_of and peers:
            matrix[row_of[rank], peers] += total / len(peers)
    columns: dict[tuple[float, ...], list[int]] = {}
    for peer in range(world if row_of else 0):
        columns.setdefault(tuple(matrix[:, peer]), []).append(peer)
    found = sorted(((v, p) for v, p in columns.items() if any(v)), key=lambda item: item[1])
    kept = found[:receivers]
    return Flows(
        list(row_of),
        [peers for _, peers in kept],
        np.array([values for values, _ in kept]).T.reshape(len(row_of), len(kept)),
        len(every) - len(row_of) + len(found) - len(kept),
    )


def grid(totals: Mapping[tuple[str, str], float], most: int = MOST_ROWS) -> Grid:
    """(row, column) → bytes, as a grid with rows and columns in order of their bytes; past the most they become one."""
    rows = _ranked([(row, size) for (row, _), size in totals.items()], most)
    columns = _ranked([(column, size) for (_, column), size in totals.items()], MOST_COLUMNS)
    values = np.zeros((len(rows), len(columns)))
    row_of, column_of = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    for (row, column), size in totals.items():
        values[row_of.get(row, -1), column_of.get(column, -1)] += size
    return Grid(rows, columns, values)


def _ranked(sizes: Iterable[tuple[str, float]], most: int) -> list[str]:
    """Names by their bytes, the largest first; where there are too many, the last stands for all others."""
    sums: dict[str, float] = {}
    for name, size in sizes:
        sums[name] = sums.get(name, 0) + size
    names = sorted(sums, key=lambda name: (-sums[name], name))
    return names if len(names) <= most else [*names[: most - 1], OTHERS]


def _axis() -> pl.Expr:
    return pl.when(pl.col("axis") == "").then(pl.lit(NO_AXIS)).otherwise("axis")


def size_range(low: int) -> str:
    """A power of two as messages between it and its double are called."""
    return f"{format_bytes(low)} – {format_bytes(2 * low)}" if low else "empty"


def _power_of_two() -> pl.Expr:
    size = pl.col("message_bytes")
    floor = pl.lit(2.0).pow(size.cast(pl.Float64).log(2.0).floor())
    return pl.when(size > 0).then(floor).otherwise(0).cast(pl.Int64)

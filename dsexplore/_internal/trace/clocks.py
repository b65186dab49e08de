"""Put the ranks of a trace on one clock: estimate offsets from the ends of collectives, and subtract them.

A collective that needs all ranks of a group, such as an all_reduce, ends on all of them at nearly the same moment, no
matter which rank was late. If two ranks' clocks differ, the ends of their common collectives therefore differ by the
offset, which is the median difference. Ranks without a common group are related through other ranks. With many common
collectives, each rank's ends are then compared with the median of all ends, because two neighbors in a ring are often
late together.

Worked example: three all_reduces end on rank 0 at 10, 20 and 30 µs, on rank 1 at 1,010, 1,020 and 1,032 µs: rank 1's
clock is 1,000 µs ahead. Its spread is the median of 0, 0 and 2, which is 0, and the residual that over √3.

Equal clocks also seem to differ a little, because one process notices ends later than another. Two clocks certainly
differ if, on equal clocks, a rank would have ended a collective before another rank began it. They also do if the
differences of the ends agree so closely that noise would produce them less than once in a million times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import add

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace.matching import AT_BEST, LEAST_IN_COMMON, TOGETHER, is_beyond_chance, numbered
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.units import format_seconds

SAME = ("same_group", "number", "op", "message_bytes")
"""Columns that are equal on all ranks of one collective."""

LEAST_REFINED = 64
"""Number of common collectives from which an offset is refined."""
PARTS = 16
"""Number of parts of the record from which the uncertainty of an offset is estimated."""
LEAST_COLLECTIVES = 3
"""Number of common collectives from which an offset is applied."""
LEAST_OFFSET = 500_000
"""Offsets up to this many nanoseconds are not applied: a process may need as long to notice an end."""
_NAMED = 4
"""Number of shifted ranks that the note names."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClockOffset:
    """Offset of one rank's clock from that of the first rank."""

    offset: int
    """Nanoseconds by which the clock is ahead; 0 if the ends differ by less than their spread."""
    residual: int
    """Uncertainty of the offset in nanoseconds: the spread over the square root of the number of collectives; for a
    refined offset, the scatter of the offsets of `PARTS` parts over the square root of their number."""
    spread: int
    """Median of the remaining differences of the ends after alignment, in nanoseconds."""
    collectives: int
    """Number of common collectives from which the offset was computed."""
    limit: int | None = None
    """Largest possible error of the offset in nanoseconds, because no rank ends a collective before all have begun it;
    None if starts are unknown. The residual covers random errors only, not a rank that always notices ends late."""
    is_sure: bool = False
    """True if the clock certainly differs from the first rank's: neither equal clocks nor chance explain the ends."""


_NO_OFFSET = ClockOffset(offset=0, residual=0, spread=0, collectives=0)


def align(tables: Tables, *, shares_clock: bool = False) -> Tables:
    """Return the tables with the times of all ranks on the first rank's clock; the info holds offsets and errors.

    Ranks that share a clock, such as those of one host, are shifted together, and only where their clock certainly
    differs (`ClockOffset.is_sure`) and by more than `LEAST_OFFSET`. A trace of one rank, or one whose clocks have no
    measured collective in common, is returned unchanged.

    Args:
        tables: tables of several ranks.
        shares_clock: True if all ranks share a clock although the info does not name it.
    """
    info = tables.info
    if shares_clock or (len(set(info.clocks)) == 1 and all(info.clocks)):
        return replace(tables, info=_record_offsets(info, {}))
    clocks = clock_offsets(tables.events, tables.groups, dict(zip(info.ranks, info.clocks, strict=False)))
    if len(clocks) < 2:
        return tables
    offsets = {rank: _beyond_noise(clock) for rank, clock in clocks.items()}
    shifted = {rank: clock for rank, clock in offsets.items() if clock.offset}
    info = _record_offsets(info, offsets)
    if not shifted:
        return replace(tables, info=info)
    return replace(
        tables,
        info=replace(info, notes=(*info.notes, _note(shifted))),
        events=aligned(tables.events, shifted),
        io=aligned(tables.io, shifted),
    )


def _record_offsets(info: TraceInfo, offsets: Mapping[int, ClockOffset]) -> TraceInfo:
    """Return `info` with these offsets recorded; a shifted rank is given the name of the first rank's clock."""
    of_ranks = [offsets.get(rank, _NO_OFFSET) for rank in info.ranks]
    zeros = (0,) * len(of_ranks)
    return replace(
        info,
        clocks=tuple(
            info.clocks[0] if clock.offset else name for name, clock in zip(info.clocks, of_ranks, strict=False)
        ),
        clock_offsets=tuple(map(add, info.clock_offsets or zeros, (clock.offset for clock in of_ranks))),
        clock_residuals=tuple(map(add, info.clock_residuals or zeros, (clock.residual for clock in of_ranks))),
    )


def _beyond_noise(clock: ClockOffset) -> ClockOffset:
    """Return the clock with an offset of 0 unless it is certain, large enough, and of enough collectives."""
    is_significant = clock.is_sure and abs(clock.offset) > LEAST_OFFSET and clock.collectives >= LEAST_COLLECTIVES
    return clock if is_significant else replace(clock, offset=0)


def _note(shifted: Mapping[int, ClockOffset]) -> str:
    """Return the note on the ranks whose times were shifted, with the error of each offset."""
    named = [
        f"rank {rank} by {format_seconds(-clock.offset / 1e9)} ({_doubt(clock)})"
        for rank, clock in list(shifted.items())[:_NAMED]
    ]
    more = f" and {len(shifted) - len(named)} more" if len(shifted) > len(named) else ""
    return f"clocks were aligned by the ends of collectives: {', '.join(named)}{more}"


def _doubt(clock: ClockOffset) -> str:
    residual = f"± {format_seconds(clock.residual / 1e9)}"
    return residual if clock.limit is None else f"{residual} by chance, {format_seconds(clock.limit / 1e9)} at most"


def clock_offsets(
    events: pl.DataFrame, groups: pl.DataFrame, clocks: Mapping[int, str] | None = None
) -> dict[int, ClockOffset]:
    """Return {rank: offset of its clock from the lowest rank's}; ranks that no collective relates to it are omitted.

    Args:
        events: events of all ranks.
        groups: groups table of the same trace.
        clocks: {rank: name of its clock}, for known clocks; ranks that share a clock get one offset. None: all unknown.
    """
    clocks = clocks or {}
    measured = numbered(events, groups).filter(
        pl.col("op").is_in(TOGETHER) & pl.col("end").is_not_null() & (pl.col("group_size") > 1)
    )
    ranks = measured["rank"].unique().to_list()
    first_of = _first_of_clock(sorted({*ranks, *clocks}), clocks)
    of_clocks = _offsets(_ends_by_clock(measured, first_of))
    return {rank: of_clocks[first] for rank, first in first_of.items() if first in of_clocks}


def _first_of_clock(ranks: Iterable[int], clocks: Mapping[int, str]) -> dict[int, int]:
    """Return {rank: lowest rank that shares its clock}."""
    first: dict[str | int, int] = {}
    return {rank: first.setdefault(clocks.get(rank) or rank, rank) for rank in ranks}


def _ends_by_clock(measured: pl.DataFrame, first_of: Mapping[int, int]) -> pl.DataFrame:
    """Return one row per collective and clock; its end is the earliest end on any rank of that clock."""
    if all(rank == first for rank, first in first_of.items()):
        return measured
    on_clocks = measured.with_columns(pl.col("rank").replace(first_of))
    return on_clocks.group_by("rank", *SAME, maintain_order=True).agg(pl.col("start").max(), pl.col("end").min())


def _offsets(measured: pl.DataFrame) -> dict[int, ClockOffset]:
    """Return the offset of each rank from the lowest one's clock; no two of the ranks share a clock."""
    ends = _rows_by_rank(measured)
    ranks = sorted(ends)
    if not ranks:
        return {}
    offsets = {ranks[0]: _NO_OFFSET}
    waiting = [ranks[0]]
    related: list[tuple[int, int]] = []
    neighbors = _neighbors(measured)
    while waiting:
        reference = waiting.pop(0)
        for rank in sorted(neighbors[reference] - offsets.keys()):
            differences = _differences(ends[reference], ends[rank])
            if differences.size:
                offsets[rank] = _related(offsets[reference], differences)
                waiting.append(rank)
                related.append((reference, rank))
    return _limited(ends, _refined(measured, offsets, related), related)


def _limited(
    ends: Mapping[int, pl.DataFrame], offsets: Mapping[int, ClockOffset], related: Iterable[tuple[int, int]]
) -> dict[int, ClockOffset]:
    """Return the offsets with `limit`, and with `is_sure` where the limits exclude equal clocks.

    Args:
        ends: {rank: its collectives, with start and end}.
        offsets: {rank: its offset}.
        related: pairs (rank with a known offset, rank whose offset was derived from it).
    """
    limited = {rank: replace(clock, limit=0) if not clock.collectives else clock for rank, clock in offsets.items()}
    for reference, rank in related:
        both = ends[reference].join(ends[rank], on=SAME, how="inner", suffix="_of_second")
        ahead = offsets[rank].offset - offsets[reference].offset
        most = (both["end_of_second"] - both["start"]).min()
        least = (both["start_of_second"] - both["end"]).max()
        known, limit_of_known = offsets[reference].offset, limited[reference].limit
        if limit_of_known is not None and isinstance(most, int) and isinstance(least, int) and least <= most:
            limit = limit_of_known + max(abs(most - ahead), abs(least - ahead))
            is_zero_possible = known + least - limit_of_known <= 0 <= known + most + limit_of_known
            is_sure = offsets[rank].is_sure or not is_zero_possible
            limited[rank] = replace(offsets[rank], limit=limit, is_sure=is_sure)
    return limited


def _rows_by_rank(measured: pl.DataFrame) -> dict[int, pl.DataFrame]:
    parts = measured.select("rank", *SAME, "start", "end").partition_by("rank", as_dict=True)
    return {rank: part for (rank,), part in parts.items()}


def _refined(
    measured: pl.DataFrame, offsets: Mapping[int, ClockOffset], related: Iterable[tuple[int, int]]
) -> dict[int, ClockOffset]:
    """Return the offsets; with many common collectives, computed from the median of each collective's ends.

    The difference between two ranks carries the noise of both; the median of many ends has little noise of its own. The
    residual is estimated by how far apart the offsets of `PARTS` parts of the record lie.

    Args:
        measured: measured collectives of all ranks.
        offsets: offsets derived from pairs of ranks.
        related: pairs (rank with a known offset, rank whose offset was derived from it).
    """
    refined = dict(offsets)
    to_refine = [(reference, rank) for reference, rank in related if offsets[rank].collectives >= LEAST_REFINED]
    if not to_refine:
        return refined
    on_reference_clock = aligned(measured.filter(pl.col("rank").is_in(list(offsets))), offsets)
    after_first = (pl.col("end") - pl.col("end").min()).over(SAME).cast(pl.Float64)
    relative = _rows_by_rank(on_reference_clock.with_columns(end=after_first - after_first.median().over(SAME)))
    for reference, rank in to_refine:
        both = relative[reference].join(
            relative[rank], on=SAME, how="inner", suffix="_of_second", maintain_order="left"
        )
        ours, theirs = both["end"].to_numpy(), both["end_of_second"].to_numpy()
        shift = (
            refined[reference].offset - offsets[reference].offset + round(float(np.median(theirs) - np.median(ours)))
        )
        of_parts = _medians_of_parts(theirs) - _medians_of_parts(ours)
        scatter = float(np.median(np.abs(of_parts - np.median(of_parts)))) / math.sqrt(PARTS)
        refined[rank] = replace(
            offsets[rank],
            offset=offsets[rank].offset + shift if offsets[rank].offset else 0,
            residual=refined[reference].residual + round(scatter),
        )
    return refined


def _medians_of_parts(times: Times) -> Times:
    """Return the median of each of `PARTS` equal parts of `times`, without a remainder at the end."""
    length = times.size // PARTS
    medians: Times = np.median(times[: length * PARTS].reshape(PARTS, length), axis=1)
    return medians


def _related(reference: ClockOffset, differences: np.ndarray[tuple[int], np.dtype[np.int64]]) -> ClockOffset:
    """Return a rank's offset.

    Args:
        reference: offset of another rank.
        differences: ends of common collectives on the rank minus those on the other one, in nanoseconds.
    """
    offset = int(np.median(differences))
    spread = int(np.median(np.abs(differences - offset)))
    residual = reference.residual + round(spread / math.sqrt(differences.size))
    ahead = reference.offset + (offset if abs(offset) > spread else 0)
    count = differences.size
    closest = count - count // 4  # a few ends may be noticed very late
    reach = max(float(np.partition(np.abs(differences - offset), closest - 1)[closest - 1]), AT_BEST)
    is_sure = count >= LEAST_IN_COMMON and is_beyond_chance(spread=reach, width=abs(ahead), within=closest, count=count)
    return ClockOffset(offset=ahead, residual=residual, spread=spread, collectives=count, is_sure=is_sure)


def aligned(events: pl.DataFrame, offsets: Mapping[int, ClockOffset]) -> pl.DataFrame:
    """Return the events with all times on the reference clock of `offsets`."""
    shift = pl.col("rank").replace_strict(
        {rank: clock.offset for rank, clock in offsets.items()}, default=0, return_dtype=pl.Int64
    )
    return events.with_columns(pl.col("start") - shift, pl.col("end") - shift)


def _neighbors(measured: pl.DataFrame) -> dict[int, set[int]]:
    """Return {rank: ranks that share a group with it}."""
    neighbors: dict[int, set[int]] = defaultdict(set)
    for ranks in measured.group_by("same_group").agg(pl.col("rank").unique())["rank"]:
        for rank in ranks:
            neighbors[rank] |= set(ranks) - {rank}
    return neighbors


def _differences(ours: pl.DataFrame, theirs: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the end on the second rank minus the end on the first, for each collective of equal op and size, in ns."""
    both = ours.join(theirs, on=SAME, how="inner", suffix="_of_second")
    return (both["end_of_second"] - both["end"]).to_numpy()

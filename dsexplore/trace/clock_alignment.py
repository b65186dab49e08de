"""Put the times of a merged trace on one clock where the ranks' clocks differ by more than noise.

The ends of one collective also differ by the time a process needs to notice the end, milliseconds on a busy host. So
times are shifted only where the clocks certainly differ (`ClockOffset.is_sure`) and by more than `LEAST_OFFSET`. Ranks
known to share a clock, such as the ranks of one host, are never shifted against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import add

from dsexplore.trace.clocks import ClockOffset, aligned, clock_offsets
from dsexplore.trace.tables import Tables, TraceInfo
from dsexplore.units import format_seconds

LEAST_COLLECTIVES = 3
LEAST_OFFSET = 500_000
"""Nanoseconds up to which an offset is not applied: it may be the time in which a process notices an end."""
_NAMED = 4
_SAME = ClockOffset(0, 0, 0, 0)


def align(tables: Tables, *, shares_clock: bool = False) -> Tables:
    """Return the tables with the times of all ranks on the first rank's clock; the info holds offsets and errors.

    Ranks that share a clock are shifted together. A trace of one rank, or one without measured collectives shared by
    ranks of different clocks, is returned unchanged.

    Args:
        tables: the tables of several ranks.
        shares_clock: True if all ranks share a clock although the info does not name it.
    """
    info = tables.info
    if shares_clock or (len(set(info.clocks)) == 1 and all(info.clocks)):
        return replace(tables, info=_with_offsets(info, {}))
    clocks = clock_offsets(tables.events, tables.groups, dict(zip(info.ranks, info.clocks, strict=False)))
    if len(clocks) < 2:
        return tables
    known = {rank: _beyond_noise(clock) for rank, clock in clocks.items()}
    shifted = {rank: clock for rank, clock in known.items() if clock.offset}
    info = _with_offsets(info, known)
    if not shifted:
        return replace(tables, info=info)
    return replace(
        tables, info=replace(info, notes=(*info.notes, _note(shifted))), events=aligned(tables.events, shifted)
    )


def _with_offsets(info: TraceInfo, known: Mapping[int, ClockOffset]) -> TraceInfo:
    """Return `info` with these offsets recorded; a shifted rank is given the name of the first rank's clock."""
    found = [known.get(rank, _SAME) for rank in info.ranks]
    zeros = (0,) * len(found)
    return replace(
        info,
        clocks=tuple(info.clocks[0] if clock.offset else own for own, clock in zip(info.clocks, found, strict=False)),
        clock_offsets=tuple(map(add, info.clock_offsets or zeros, (clock.offset for clock in found))),
        clock_residuals=tuple(map(add, info.clock_residuals or zeros, (clock.residual for clock in found))),
    )


def _beyond_noise(clock: ClockOffset) -> ClockOffset:
    is_known = clock.is_sure and abs(clock.offset) > LEAST_OFFSET and clock.collectives >= LEAST_COLLECTIVES
    return clock if is_known else replace(clock, offset=0)


def _note(shifted: Mapping[int, ClockOffset]) -> str:
    named = [
        f"rank {rank} by {format_seconds(-clock.offset / 1e9)} ({_doubt(clock)})"
        for rank, clock in list(shifted.items())[:_NAMED]
    ]
    more = f" and {len(shifted) - len(named)} more" if len(shifted) > len(named) else ""
    return f"clocks were aligned by the ends of collectives: {', '.join(named)}{more}"


def _doubt(clock: ClockOffset) -> str:
    residual = f"± {format_seconds(clock.residual / 1e9)}"
    return residual if clock.limit is None else f"{residual} by chance, {format_seconds(clock.limit / 1e9)} at most"

"""The times of a merged trace on one clock, where the ranks' clocks differ by more than noise.

Ranks of one host share a clock; there the ends of a collective differ by the time that a process needs to notice it. A
difference of clocks that is not well beyond that is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dsexplore.trace.clocks import ClockOffset, aligned, clock_offsets
from dsexplore.trace.tables import Tables
from dsexplore.units import format_seconds

LEAST_COLLECTIVES = 3
LEAST_OFFSET = 500_000
"""Nanoseconds, and `LEAST_SPREADS` spreads: an offset up to their sum may be noise, and is not applied."""
LEAST_SPREADS = 10
_NAMED = 4


def align(tables: Tables) -> Tables:
    """The tables with the times of all ranks on the first rank's clock; offsets and residuals are in the info.

    A trace of one rank, or without measured collectives that ranks share, comes back as it is.
    """
    clocks = clock_offsets(tables.events, tables.groups)
    if len(clocks) < 2:
        return tables
    known = {rank: _beyond_noise(clock) for rank, clock in clocks.items()}
    of_rank = [known.get(rank, ClockOffset(0, 0, 0, 0)) for rank in tables.info.ranks]
    shifted = {rank: clock for rank, clock in known.items() if clock.offset}
    notes = (*tables.info.notes, _note(shifted)) if shifted else tables.info.notes
    info = replace(
        tables.info,
        clock_offsets=tuple(clock.offset for clock in of_rank),
        clock_residuals=tuple(clock.residual for clock in of_rank),
        notes=notes,
    )
    return replace(tables, info=info, events=aligned(tables.events, shifted) if shifted else tables.events)


def _beyond_noise(clock: ClockOffset) -> ClockOffset:
    is_noise = abs(clock.offset) <= LEAST_OFFSET + LEAST_SPREADS * clock.spread
    return replace(clock, offset=0) if is_noise or clock.collectives < LEAST_COLLECTIVES else clock


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

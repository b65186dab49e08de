"""How long a rank waited in the calls of its log, and for which ranks, per line and in DeepSpeed's form."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from dsexplore.analysis.skew import Skew
from dsexplore.comm.log_records import Record
from dsexplore.comm.log_summary import LineKey, Waiting, line_key, trimmed_mean
from dsexplore.comm.sent_calls import Series, numbered
from dsexplore.units import format_bytes


class CallWait(NamedTuple):
    """A call of a rank's log that all ranks of its group timed."""

    record: Record
    transfer: float
    """Seconds of the rank that waited least."""
    waited: float
    """Seconds that this rank took beyond that."""
    late_ranks: Sequence[int]
    """The ranks that the others waited for."""


def call_waits(records: Iterable[Record], dropped: Mapping[Series, int], skew: Skew, rank: int) -> Iterator[CallWait]:
    """Yield the calls of a rank's log that all ranks of their groups timed.

    Args:
        records: the rank's own; see `numbered`.
        dropped: see `numbered`.
        skew: of the logs of all ranks.
        rank: the rank that made these records.
    """
    waits = _waits(skew, rank)
    for series, number, record in numbered(records, dropped):
        found = waits.get((*series, number))
        if found is not None:
            yield CallWait(record, *found)


def _waits(skew: Skew, rank: int) -> dict[tuple[Any, ...], tuple[float, float, list[int]]]:
    """Return {(group name, ranks, number): (transfer, wait, late ranks)} of collectives timed on all ranks."""
    arrived = skew.arrivals
    late = arrived.filter("is_late").group_by("instance").agg(late="rank")
    of_all = pl.col("count") == pl.col("members").list.len()
    own = arrived.filter((pl.col("rank") == rank) & of_all).join(late, on="instance", how="left")
    name = pl.col("group").str.replace(r"@\d+$", "")  # merging adds it where two ranks name another group alike
    waited = pl.col("took") - pl.col("duration")
    return {
        (group, tuple(ranks), number): (duration, seconds, late_ranks or [])
        for group, ranks, number, duration, seconds, late_ranks in own.select(
            name, "members", "group_seq", "duration", waited, "late"
        ).iter_rows()
    }


def waiting_of_lines(waits: Iterable[CallWait]) -> dict[LineKey, Waiting]:
    """Return the waits of each line of a rank's summary; lines without a call timed on all ranks are omitted."""
    found: dict[LineKey, Waiting] = {}
    for record, _, waited, late_ranks in waits:
        line = found.setdefault(line_key(record), Waiting())
        line.count += 1
        line.seconds += waited
        line.late.update(late_ranks)
    return found


def straggler_analysis(waits: Iterable[CallWait]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return ``{name: {S: figures}}`` as seen by one rank, in DeepSpeed's form; S is the size that this rank sent."""
    calls: dict[str, dict[int, list[CallWait]]] = defaultdict(lambda: defaultdict(list))
    for wait in waits:
        calls[wait.record.name][wait.record.bytes].append(wait)
    return {
        name: {size: _deepspeed_figures(size, of_size) for size, of_size in sorted(sizes.items())}
        for name, sizes in sorted(calls.items())
    }


def _deepspeed_figures(size: int, calls: Sequence[CallWait]) -> dict[str, Any]:
    transfers, waits = [call.transfer * 1e3 for call in calls], [call.waited * 1e3 for call in calls]
    return {
        "count": len(calls),
        "total_comm_lat_ms": sum(transfers),
        "total_straggler_ms": sum(waits),
        "avg_comm_lat_ms": trimmed_mean(transfers),
        "avg_straggler_ms": trimmed_mean(waits),
        "late_ranks": dict(Counter(rank for call in calls for rank in call.late_ranks).most_common()),
        "msg_size_bytes": size,
        "msg_size_str": format_bytes(size),
    }

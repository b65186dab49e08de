"""A rank's log in the form in which it is sent to the other ranks, and the joint trace of all ranks.

The collectives of a group are numbered, including those that the log has dropped, so that the trace knows which belong
together. Each call is a few numbers; what many calls have in common is sent once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.capture.stack.source_lines import source_texts
from dsexplore._internal.comm.logs.log_records import Record, is_collective
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.matching import is_numbered
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.trace.process_states import host_clock
from dsexplore._internal.trace.tables import Tables, TraceInfo

MOST_OF_SERIES = 2_000
"""Number of calls of each group that are sent, the last ones."""
_APART = 10**9
"""Nanoseconds between two measurements made elsewhere that have durations alone."""

Series = tuple[str, tuple[int, ...]]
"""Group name and ranks shared by calls that are numbered together."""


class CallKind(NamedTuple):
    """Fields that many calls of a log have in common."""

    group: str
    ranks: tuple[int, ...]
    backend: str
    op: str
    message_bytes: int
    dtype: str
    reduction: str
    root: int | None
    is_object: bool
    is_apart: bool
    """True for a measurement made elsewhere or a user's function instead of a collective: see `series_of`."""
    source: str


@dataclass(frozen=True)
class SentCalls:
    """Calls of one rank, in order of issue."""

    rank: int
    clock: str
    """See `TraceInfo.clocks`."""
    is_simulated: bool
    kinds: list[CallKind]
    kind: npt.NDArray[np.int32]
    """(calls,) index in `kinds`."""
    number: npt.NDArray[np.int64]
    """(calls,) number among the calls of its series that the rank has logged."""
    start: npt.NDArray[np.int64]
    """(calls,) nanoseconds since the Unix epoch; 0 if not timed."""
    end: npt.NDArray[np.int64]


def series_of(record: Record) -> Series:
    """Return the series in which a line is numbered.

    A measurement made elsewhere, and a call of a user's function, are numbered by their names: other ranks need not
    have made them between the same collectives.
    """
    group = record.group
    name = group.name if is_collective(record.issued) else f"{record.name} on {group.name}"
    return name, group.ranks


def numbered(records: Iterable[Record], dropped: Mapping[Series, int]) -> Iterator[tuple[Series, int, Record]]:
    """Yield the lines that involve all ranks of a group, each with its number in its series.

    Args:
        records: the lines that the log still has, without `DroppedCalls.counted_early`.
        dropped: {series: number of earlier lines that the log has dropped}.
    """
    counts: Counter[Series] = Counter(dict(dropped))
    for record in records:
        if is_numbered(record.op):
            series = series_of(record)
            yield series, counts[series], record
            counts[series] += 1


def sent_calls(calls: Iterable[tuple[Series, int, Record]], rank: int) -> SentCalls:
    """Return lines in the form in which they are sent to other ranks.

    Args:
        calls: from `numbered`.
        rank: the rank that made them.
    """
    listed = list(calls)
    lines = source_texts(record.issued.origin.sources[:1] for _, _, record in listed)
    kinds: dict[CallKind, int] = {}
    kind = np.empty(len(listed), np.int32)
    number, start, end = (np.zeros(len(listed), np.int64) for _ in range(3))
    for i, ((series, at, record), line) in enumerate(zip(listed, lines, strict=True)):
        kind[i] = kinds.setdefault(_kind(series, record, line), len(kinds))
        number[i] = at
        start[i], end[i] = _times(record, at)
    is_simulated = any(record.group.timing == "none" for _, _, record in listed)
    return SentCalls(
        rank,
        clock=host_clock(),
        is_simulated=is_simulated,
        kinds=list(kinds),
        kind=kind,
        number=number,
        start=start,
        end=end,
    )


def last_calls(calls: Iterable[tuple[Series, int, Record]]) -> list[tuple[Series, int, Record]]:
    """Return the last `MOST_OF_SERIES` lines of each series, in order of issue."""
    listed = list(calls)
    ends = Counter[Series]()
    for series, number, _ in listed:
        ends[series] = number + 1
    return [call for call in listed if call[1] >= ends[call[0]] - MOST_OF_SERIES]


def _kind(series: Series, record: Record, line: str) -> CallKind:
    parties, dtype = record.issued.parties, record.dtype
    return CallKind(
        *series,
        record.group.backend,
        record.op,
        record.bytes,
        str(dtype).removeprefix("torch.") if dtype is not None else "",
        record.reduction,
        parties.root if parties is not None else None,
        record.is_object,
        not is_collective(record.issued),
        line,
    )


def _times(record: Record, number: int) -> tuple[int, int]:
    """Return start and end in ns; a member of a coalesced call has its share of the time. ``(0, 0)`` if not timed."""
    times = record.times
    if times is None:
        return 0, 0
    took = max(1, round((times[1] - times[0]) * record.share))
    if not is_collective(record.issued):
        end = (number + 1) * _APART
        return end - took, end
    return times[0], times[0] + took


def tables_of(sent: Sequence[SentCalls]) -> Tables:
    """Return the trace of several ranks' calls on one clock; its events have an additional column ``reduction``."""
    size = (
        max(
            [
                0,
                *(calls.rank for calls in sent),
                *(rank for calls in sent for kind in calls.kinds for rank in kind.ranks),
            ]
        )
        + 1
    )
    collectives = merge_tables([_tables(calls, size, is_apart=False) for calls in sent], ranks=())
    others = merge_tables([_tables(calls, size, is_apart=True) for calls in sent], ranks=(), shares_clock=True)
    return replace(
        collectives,
        events=pl.concat([collectives.events, others.events]).sort("rank", "seq"),
        groups=pl.concat([collectives.groups, others.groups]),
    )


def _tables(calls: SentCalls, world_size: int, *, is_apart: bool) -> Tables:
    """Return the trace of one rank's collectives, or of its other calls if `is_apart`."""
    kinds = pl.DataFrame(calls.kinds, schema=_KINDS, orient="row")
    events = kinds[calls.kind].with_columns(
        *(pl.Series(name, getattr(calls, field)) for name, field in _NUMBERS),
        rank=pl.lit(calls.rank),
        seq=pl.int_range(pl.len()),
        group_size=pl.col("ranks").list.len(),
    )
    is_timed = pl.col("end") > 0
    events = events.filter(pl.col("is_apart") == is_apart).with_columns(
        pl.when(is_timed).then("start"),
        pl.when(is_timed).then("end"),
        state=pl.when(is_timed).then(pl.lit("completed")).otherwise(pl.lit("scheduled")),
    )
    columns = [
        (pl.col(name) if name in events.columns else pl.lit(_DEFAULTS.get(name))).cast(kind).alias(name)
        for name, kind in schema.EVENTS.items()
    ]
    return Tables(
        events=events.select(*columns, "reduction"),
        groups=pl.DataFrame(
            list(dict.fromkeys(_group(kind) for kind in calls.kinds if kind.is_apart == is_apart)),
            schema=schema.GROUPS,
            orient="row",
        ),
        info=TraceInfo(
            world_size=world_size,
            ranks=(calls.rank,),
            simulated=calls.is_simulated,
            clocks=(calls.clock,) if calls.clock else (),
        ),
    )


def _group(kind: CallKind) -> tuple[object, ...]:
    return kind.group, "", "", kind.ranks, len(kind.ranks), kind.backend, "host"


_KINDS: dict[str, pl.DataType] = {
    "group": pl.String(),
    "ranks": pl.List(pl.Int32()),
    "backend": pl.String(),
    "op": pl.String(),
    "message_bytes": pl.Int64(),
    "dtype": pl.String(),
    "reduction": pl.String(),
    "root": pl.Int32(),
    "is_object": pl.Boolean(),
    "is_apart": pl.Boolean(),
    "source": pl.String(),
}
_NUMBERS = (("group_seq", "number"), ("start", "start"), ("end", "end"))
_DEFAULTS: dict[str, object] = {
    "step": 0,
    "phase": "other",
    "trigger": "",
    "owner": "",
    "axis": "",
    "cause": "",
    "raw_op": "",
    "wire_bytes": 0,
    "implicit": False,
    "is_async": False,
}

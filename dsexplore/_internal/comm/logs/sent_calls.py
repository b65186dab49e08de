"""A rank's log in the form in which it is sent to other ranks, and the joint trace of all ranks.

The collectives of a group are numbered, including those that the log has dropped, so that those of different ranks can
be matched. A call is sent as a few numbers; the fields that many calls have in common are sent once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
"""Number of calls of each series that are sent: the last ones."""
_INTERVAL = 10**9
"""Nanoseconds between the ends of two measurements made elsewhere, of which only the durations are known."""

Series = tuple[str, tuple[int, ...]]
"""Group name and ranks shared by calls that are numbered together."""


class NumberedCall(NamedTuple):
    """A line of the log with its number."""

    series: Series
    number: int
    """Number of the line in its series, from 0."""
    record: Record


class CallKind(NamedTuple):
    """The fields that many calls of a log have in common."""

    group: str
    ranks: tuple[int, ...]
    backend: str
    op: str
    message_bytes: int
    dtype: str
    reduction: str
    root: int | None
    is_object: bool
    is_collective: bool
    """False for a measurement made elsewhere, and for a user's function: see `series_of`."""
    source: str


@dataclass(frozen=True)
class SentCalls:
    """Calls of one rank, in order of issue."""

    rank: int
    clock: str
    """Name of the clock, see `TraceInfo.clocks`; empty if unknown."""
    is_simulated: bool
    """True if the process group simulates its ranks."""
    kinds: list[CallKind]
    """Distinct kinds of calls."""
    kind: npt.NDArray[np.int32]
    """(calls,) index of each call's kind in `kinds`."""
    number: npt.NDArray[np.int64]
    """(calls,) number of each call in its series."""
    start: npt.NDArray[np.int64]
    """(calls,) start in nanoseconds since the Unix epoch; 0 if not timed."""
    end: npt.NDArray[np.int64]
    """(calls,) end in nanoseconds since the Unix epoch; 0 if not timed."""


def series_of(record: Record) -> Series:
    """Return the series in which a line is numbered.

    A measurement made elsewhere or a call of a user's function has a series of its name, since other ranks may have
    made it between other collectives.
    """
    group = record.group
    name = group.name if is_collective(record.issued) else f"{record.name} on {group.name}"
    return name, group.ranks


def numbered(records: Iterable[Record], dropped: Mapping[Series, int]) -> list[NumberedCall]:
    """Return the lines that involve all ranks of a group, each with its number in its series.

    Args:
        records: the lines that the log still has, without `DroppedCalls.counted_early`.
        dropped: {series: number of earlier lines that the log has dropped}.
    """
    counts: Counter[Series] = Counter(dict(dropped))
    calls = []
    for record in records:
        if is_numbered(record.op):
            series = series_of(record)
            calls.append(NumberedCall(series, counts[series], record))
            counts[series] += 1
    return calls


def sent_calls(calls: Sequence[NumberedCall], rank: int) -> SentCalls:
    """Return calls of a rank in the form in which they are sent to other ranks."""
    sources = source_texts(call.record.issued.origin.sources[:1] for call in calls)
    kinds: dict[CallKind, int] = {}
    kind = np.empty(len(calls), np.int32)
    number, start, end = (np.zeros(len(calls), np.int64) for _ in range(3))
    for i, (call, source) in enumerate(zip(calls, sources, strict=True)):
        kind[i] = kinds.setdefault(_kind(call, source), len(kinds))
        number[i] = call.number
        start[i], end[i] = _times(call)
    return SentCalls(
        rank,
        clock=host_clock(),
        is_simulated=any(call.record.group.timing == "none" for call in calls),
        kinds=list(kinds),
        kind=kind,
        number=number,
        start=start,
        end=end,
    )


def last_calls(calls: Sequence[NumberedCall]) -> list[NumberedCall]:
    """Return the last `MOST_OF_SERIES` calls of each series, in order of issue."""
    ends = {call.series: call.number + 1 for call in calls}
    return [call for call in calls if call.number >= ends[call.series] - MOST_OF_SERIES]


def _kind(call: NumberedCall, source: str) -> CallKind:
    """Return the fields that a call shares with others; `source` is its line, ``"train.py:12"``."""
    record = call.record
    group, ranks = call.series
    return CallKind(
        group=group,
        ranks=ranks,
        backend=record.group.backend,
        op=record.op,
        message_bytes=record.bytes,
        dtype=str(record.dtype).removeprefix("torch.") if record.dtype is not None else "",
        reduction=record.reduction,
        root=record.issued.parties.root if record.issued.parties is not None else None,
        is_object=record.is_object,
        is_collective=is_collective(record.issued),
        source=source,
    )


def _times(call: NumberedCall) -> tuple[int, int]:
    """Return start and end in ns; a member of a coalesced call has its share of the time. ``(0, 0)`` if not timed."""
    times = call.record.times
    if times is None:
        return 0, 0
    start, end = times
    duration = max(1, round((end - start) * call.record.share))
    if not is_collective(call.record.issued):
        start = (call.number + 1) * _INTERVAL - duration
    return start, start + duration


def tables_of(sent: Sequence[SentCalls]) -> Tables:
    """Return the trace of several ranks' calls on one clock; its events have an additional column ``reduction``."""
    ranks = {calls.rank for calls in sent}
    for calls in sent:
        ranks.update(*(kind.ranks for kind in calls.kinds))
    world_size = max(ranks, default=0) + 1
    collectives = merge_tables([_tables(calls, world_size, collectives=True) for calls in sent], ranks=())
    # the times of other calls are not on the ranks' clocks, so these are not aligned
    others = merge_tables(
        [_tables(calls, world_size, collectives=False) for calls in sent], ranks=(), shares_clock=True
    )
    return replace(
        collectives,
        events=pl.concat([collectives.events, others.events]).sort("rank", "seq"),
        groups=pl.concat([collectives.groups, others.groups]),
    )


def _tables(calls: SentCalls, world_size: int, *, collectives: bool) -> Tables:
    """Return the trace of one rank's collectives, or of its other calls."""
    kinds = pl.DataFrame(calls.kinds, schema=_KINDS, orient="row")
    events = kinds[calls.kind].with_columns(
        *(pl.Series(name, getattr(calls, field)) for name, field in _NUMBERS),
        rank=pl.lit(calls.rank),
        seq=pl.int_range(pl.len()),
        group_size=pl.col("ranks").list.len(),
    )
    is_timed = pl.col("end") > 0
    events = events.filter(pl.col("is_collective") == collectives).with_columns(
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
            list(dict.fromkeys(_group_row(kind) for kind in calls.kinds if kind.is_collective == collectives)),
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


def _group_row(kind: CallKind) -> tuple[object, ...]:
    """Return the row of a call's group in the order of `schema.GROUPS`."""
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
    "is_collective": pl.Boolean(),
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

"""What ranks waited for each other, from the logs of all of them.

The k-th all_reduce on a group is one event on every rank of it. The rank that arrived last waited for nobody, so
its time is the time of the communication; what the others took beyond that is waiting. Only collectives are
matched: a send on one rank is a recv on another.

The logs are brought together in one gather of plain numbers, whatever they hold, so ranks that recorded
different ops get a report that says so and cannot hang. Of each op the last `MOST_CALLS` calls are compared, which
bounds what a thousand ranks send each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.comm.ranks_alike import alike
from dsexplore.comm.records import Record
from dsexplore.comm.summary import trimmed_mean
from dsexplore.display import Displayable
from dsexplore.units import format_bytes

MOST_CALLS = 2_000
_POINT_TO_POINT = ("send", "recv")
_MOST_ROWS, _MOST_RANKS, _MOST_DIFFERENCES = 30, 4, 20
Key = tuple[str, tuple[int, ...], str]
"""A group's name, its ranks, and an op's name in the log."""
Floats = npt.NDArray[np.float64]

COLUMNS: dict[str, pl.DataType] = {
    "op": pl.String(),  # what the op was logged under
    "group": pl.String(),
    "group_size": pl.Int32(),
    "message_bytes": pl.Int64(),
    "count": pl.Int64(),  # calls found on all ranks of the group with times
    "rank": pl.Int32(),
    "communication_ms": pl.Float64(),  # mean per call of the rank that waited least
    "waiting_ms": pl.Float64(),  # mean per call that this rank took beyond that
    "last": pl.Int64(),  # how often this rank was the last to arrive
    "kept_waiting_ms": pl.Float64(),  # what the other ranks waited for this one, on average over them, added up
}


@dataclass(frozen=True)
class Series:
    """The calls of one op on one group that a rank logged, in order of issue."""

    sizes: npt.NDArray[np.int64]
    """Message bytes."""
    seconds: Floats
    """NaN for a call that was not timed."""
    is_even: bool = True
    """Whether all ranks send messages of one size."""
    first: int = 0
    """The number of the first one; those before are no longer in the log, or are too many to be compared."""

    @property
    def end(self) -> int:
        """The number of the call after the last."""
        return self.first + len(self.sizes)


@dataclass(frozen=True)
class RankLog:
    """One rank's log, small enough to send."""

    rank: int
    series: Mapping[Key, Series]


@dataclass(frozen=True)
class Straggling:
    """One op on one group with one message size: how much of its time was communication, and who kept whom waiting."""

    name: str
    group: str
    group_size: int
    message_bytes: int
    ranks: tuple[int, ...]
    """The ranks of the group whose logs there are."""
    shortest: Floats
    """Per call the seconds of the rank that waited least."""
    waits: Floats
    """Per rank and call the seconds beyond that."""

    @property
    def count(self) -> int:
        """How many calls were found on all ranks of the group with times."""
        return len(self.shortest)

    @property
    def communication_ms(self) -> float:
        """The time of the rank that waited least, added up over the calls."""
        return float(self.shortest.sum()) * 1e3

    @property
    def waiting_ms(self) -> dict[int, float]:
        """What each rank waited beyond that, added up."""
        return dict(zip(self.ranks, (self.waits.sum(axis=1) * 1e3).tolist(), strict=True))

    @property
    def last(self) -> dict[int, int]:
        """How often each rank was the last to arrive."""
        times = np.bincount(self.waits.argmin(axis=0), minlength=len(self.ranks))
        return dict(zip(self.ranks, times.tolist(), strict=True))

    @property
    def kept_waiting_ms(self) -> dict[int, float]:
        """What the others waited, on average over them, in the calls that each rank was the last to join."""
        others = self.waits.sum(axis=0) / max(1, len(self.ranks) - 1) * 1e3
        total = np.bincount(self.waits.argmin(axis=0), weights=others, minlength=len(self.ranks))
        return dict(zip(self.ranks, total.tolist(), strict=True))

    @property
    def worst(self) -> list[int]:
        """The ranks that kept others waiting, the worst first."""
        kept = self.kept_waiting_ms
        return sorted((rank for rank, ms in kept.items() if ms > 0), key=lambda rank: -kept[rank])


@dataclass(frozen=True)
class StragglerReport(Displayable):
    """All ops, those first in which most was waited; and where the ranks' logs differ."""

    ops: tuple[Straggling, ...]
    differences: tuple[str, ...]
    ranks: tuple[int, ...]

    def text(self) -> str:
        """A table with one line per op, group and message size, the worst first; then the differences."""
        lines = [f"Waiting for each other, {len(self.ranks)} ranks (communication: the rank that waited least)"]
        rows = [_HEAD, *(_cells(op) for op in self.ops[:_MOST_ROWS])]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        for row in rows if self.ops else ():
            cells = [
                text.ljust(width) if i in (0, 1, 7) else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        more = len(self.ops) - _MOST_ROWS
        if more > 0:
            lines.append(f"… and {more:,} more lines: to_frame() has all")
        return "\n".join([*lines, *(f"difference: {text}" for text in bounded(self.differences))])

    def to_frame(self) -> pl.DataFrame:
        """One row per op, group, message size and rank, the worst ranks first; columns: `COLUMNS`."""
        return pl.DataFrame(list(self._rows()), schema=COLUMNS, orient="row")

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for op in self.ops:
            waiting, last, kept = op.waiting_ms, op.last, op.kept_waiting_ms
            of_op = (op.name, op.group, op.group_size, op.message_bytes, op.count)
            for rank in sorted(op.ranks, key=lambda rank: (-kept[rank], rank)):
                means = op.communication_ms / op.count, waiting[rank] / op.count
                yield (*of_op, rank, *means, last[rank], kept[rank])

    def by_name(self, rank: int) -> dict[str, dict[int, dict[str, Any]]]:
        """``{name: {S: figures}}`` as seen by one rank, in DeepSpeed's shape."""
        calls: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        for op in self.ops:
            if rank in op.ranks:
                waits = op.waits[op.ranks.index(rank)]
                calls[op.name][op.message_bytes] += zip(op.shortest.tolist(), waits.tolist(), strict=True)
        return {
            name: {size: _deepspeed_figures(size, pairs) for size, pairs in sorted(sizes.items())}
            for name, sizes in calls.items()
        }


_HEAD = ("op", "group", "ranks", "message", "count", "communication", "waiting", "kept others waiting")


def _cells(op: Straggling) -> tuple[str, ...]:
    waiting = float(op.waits.mean()) * 1e3
    size = format_bytes(op.message_bytes) if op.message_bytes else "–"
    means = f"{op.communication_ms / op.count:.3f} ms", f"{waiting:.3f} ms"
    return (op.name, op.group, str(op.group_size), size, str(op.count), *means, worst_text(op))


def worst_text(op: Straggling) -> str:
    """``"rank 3: 5 × 46.1 ms, rank 0: 1 × 2.0 ms … and 250 more"``, the worst first."""
    last, kept, worst = op.last, op.kept_waiting_ms, op.worst
    texts = [f"rank {rank}: {last[rank]} × {kept[rank] / last[rank]:.3g} ms" for rank in worst[:_MOST_RANKS]]
    more = f" … and {len(worst) - _MOST_RANKS:,} more" if len(worst) > _MOST_RANKS else ""
    return ", ".join(texts) + more if texts else "–"


def bounded(texts: Sequence[str]) -> list[str]:
    """The first few, and how many more there are."""
    more = len(texts) - _MOST_DIFFERENCES
    return [*texts[:_MOST_DIFFERENCES], *([f"… and {more:,} more"] if more > 0 else [])]


def _deepspeed_figures(size: int, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    shortest, waits = ([value * 1e3 for value in column] for column in zip(*pairs, strict=True))
    return {
        "count": len(pairs),
        "total_comm_lat_ms": sum(shortest),
        "total_straggler_ms": sum(waits),
        "avg_comm_lat_ms": trimmed_mean(shortest),
        "avg_straggler_ms": trimmed_mean(waits),
        "msg_size_bytes": size,
        "msg_size_str": format_bytes(size),
    }


def rank_log(records: Iterable[Record], rank: int, dropped: Mapping[Key, int] | None = None) -> RankLog:
    """What a rank sends of its log to the others.

    Args:
        records: the lines that the log still has.
        rank: whose.
        dropped: how many lines before those it no longer has.
    """
    calls: dict[Key, list[tuple[int, float]]] = defaultdict(list)
    uneven: set[Key] = set()
    for record in records:
        if is_matched(record):
            if not has_one_size(record):
                uneven.add(key_of(record))
            seconds = record.seconds
            calls[key_of(record)].append((record.bytes, float("nan") if seconds is None else seconds))
    series = {}
    for key, pairs in calls.items():
        last = pairs[-MOST_CALLS:]
        sizes, times = zip(*last, strict=True)
        first = (dropped or {}).get(key, 0) + len(pairs) - len(last)
        series[key] = Series(np.array(sizes, np.int64), np.array(times, np.float64), key not in uneven, first)
    return RankLog(rank, series)


def is_matched(record: Record) -> bool:
    """Whether a line is one of a collective, which all ranks of its group make."""
    return record.op not in _POINT_TO_POINT and not record.switched_off


def has_one_size(record: Record) -> bool:
    """Whether all ranks of the group send a message of that size; objects and the parts of an all_to_all may differ."""
    return record.op != "all_to_all" and not record.is_object


def key_of(record: Record) -> Key:
    """The group and the name of a line."""
    return record.group.name, record.group.ranks, record.name


def straggler_report(logs: Sequence[RankLog]) -> StragglerReport:
    """Match the logs of all ranks."""
    by_rank = {log.rank: log for log in logs}
    ops: list[Straggling] = []
    differences: list[str] = []
    nothing = Series(np.empty(0, np.int64), np.empty(0))
    for key in sorted({key for log in logs for key in log.series}):
        group, ranks, name = key
        series = {rank: by_rank[rank].series.get(key, nothing) for rank in ranks if rank in by_rank}
        counts = {rank: each.end for rank, each in series.items()}
        if len(set(counts.values())) > 1:
            logged = alike(counts)
            differences.append(f"{name} on group {group} was logged {logged} times; the first calls are compared")
        ops += _match(key, series, differences)
    ops.sort(key=lambda op: -float(op.waits.sum()))
    return StragglerReport(tuple(ops), tuple(differences), tuple(by_rank))


def _match(key: Key, series: Mapping[int, Series], differences: list[str]) -> Iterator[Straggling]:
    group, ranks, name = key
    first, end = max(each.first for each in series.values()), min(each.end for each in series.values())
    if end <= first:
        return
    sizes = np.array([each.sizes[first - each.first : end - each.first] for each in series.values()])
    times = np.array([each.seconds[first - each.first : end - each.first] for each in series.values()])
    unequal = np.flatnonzero((sizes != sizes[0]).any(axis=0))
    if len(unequal) and all(each.is_even for each in series.values()):
        number = int(unequal[0])
        sent = alike(dict(zip(series, sizes[:, number].tolist(), strict=True)), lambda size: f"{size} B")
        more = f", and {len(unequal) - 1:,} later calls" if len(unequal) > 1 else ""
        differences.append(f"{name} on group {group}, call {first + number}: sizes differ: {sent}{more}")
    timed = ~np.isnan(times).any(axis=0)
    largest = sizes.max(axis=0)
    for size in np.unique(largest[timed]).tolist():
        chosen = times[:, timed & (largest == size)]
        shortest = chosen.min(axis=0)
        yield Straggling(name, group, len(ranks), size, tuple(series), shortest, chosen - shortest)

"""How long ranks waited for each other, from the logs of all of them.

The k-th all_reduce on a group is one event on every rank of it. The rank that arrived last waited for nobody, so
its time is the time of the communication; what the others took beyond that is waiting. Only collectives are
matched: a send on one rank is a recv on another.

The logs are brought together in one gather of plain numbers, whatever they hold, so ranks that recorded
different ops get a report that says so and cannot hang. Of each op the last `MOST_CALLS` calls are compared, which
bounds what a thousand ranks send each other.

Who was late is decided from the waits alone, as clocks of two machines differ: all ranks leave a collective together,
so the one that waited least began last. The rule is that of `Trace.skew`: a log and a trace name the same ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.analysis.arrivals import LATE, LATE_SHARE
from dsexplore.comm.log_summary import trimmed_mean
from dsexplore.comm.rank_logs import Floats, Key, RankLog, Series
from dsexplore.comm.ranks_alike import alike
from dsexplore.display import Displayable
from dsexplore.units import format_bytes

_MOST_ROWS, _MOST_RANKS, _MOST_DIFFERENCES = 30, 4, 20

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
    "late": pl.Int64(),  # how often the others waited for this rank for longer than processes take to wake up
    "kept_waiting_ms": pl.Float64(),  # what the other ranks waited for this one, on average over them, added up
}


@dataclass(frozen=True)
class Matched:
    """The calls of one name on one group that are in the logs of all its ranks, each in one column."""

    ranks: tuple[int, ...]
    """The ranks of the group whose logs there are, in the order of the rows."""
    first: int
    """The number of the call in the first column."""
    sizes: npt.NDArray[np.int64]
    """(ranks, calls) message bytes."""
    seconds: Floats
    """(ranks, calls); NaN where a call was not timed."""

    @property
    def timed(self) -> npt.NDArray[np.bool_]:
        """(calls,) whether every rank has a time."""
        return np.isfinite(self.shortest)

    @property
    def shortest(self) -> Floats:
        """(calls,) the seconds of the rank that waited least: those of the communication."""
        least: Floats = self.seconds.min(axis=0)
        return least

    @property
    def waits(self) -> Floats:
        """(ranks, calls) the seconds beyond that."""
        return self.seconds - self.shortest


def late_ranks(shortest: Floats, waits: Floats) -> npt.NDArray[np.bool_]:
    """(ranks, calls) whether the others waited for a rank: it began in the later half, as `Trace.skew` has it.

    Nobody was late where no rank waited for longer than `LATE`, and `LATE_SHARE` of the communication.

    Worked example: waits of 30, 29 and 0 ms → the third rank; 0.02, 0.01 and 0 ms → none.

    Args:
        shortest: (calls,) seconds of the communication.
        waits: (ranks, calls) seconds beyond that.
    """
    longest = waits.max(axis=0)
    late: npt.NDArray[np.bool_] = (waits < longest / 2) & (longest > np.maximum(LATE, LATE_SHARE * shortest))
    return late


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
        """The time of the rank that waited least, in milliseconds, added up over the calls."""
        return float(self.shortest.sum()) * 1e3

    @property
    def waiting_ms(self) -> dict[int, float]:
        """Milliseconds that each rank waited beyond that, added up."""
        return dict(zip(self.ranks, (self.waits.sum(axis=1) * 1e3).tolist(), strict=True))

    @property
    def last(self) -> dict[int, int]:
        """How often each rank was the last to arrive."""
        times = np.bincount(self.waits.argmin(axis=0), minlength=len(self.ranks))
        return dict(zip(self.ranks, times.tolist(), strict=True))

    @property
    def kept_waiting_ms(self) -> dict[int, float]:
        """Milliseconds that the others waited, on average, in the calls that each rank was the last to join."""
        others = self.waits.sum(axis=0) / max(1, len(self.ranks) - 1) * 1e3
        total = np.bincount(self.waits.argmin(axis=0), weights=others, minlength=len(self.ranks))
        return dict(zip(self.ranks, total.tolist(), strict=True))

    @property
    def late(self) -> dict[int, int]:
        """How often the others waited for each rank; see `late_ranks`."""
        times = late_ranks(self.shortest, self.waits).sum(axis=1)
        return dict(zip(self.ranks, times.tolist(), strict=True))

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
    matched: Mapping[Key, Matched] = field(default_factory=dict)
    """The calls, by group and name."""

    def text(self) -> str:
        """A table with one line per op, group and message size, the worst first; then the differences."""
        compared = f"{len(self.ranks)} ranks" if len(self.ranks) != 1 else "1 rank"
        lines = [f"Waiting for each other, {compared} (communication: the rank that waited least)"]
        if not self.ops:
            lines.append("nothing to compare: no collective of the log has a time on each rank of its group")
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

    def __str__(self) -> str:
        """As `text`, for ``print``."""
        return self.text()

    def to_frame(self) -> pl.DataFrame:
        """One row per op, group, message size and rank, the worst ranks first; columns: `COLUMNS`."""
        return pl.DataFrame(list(self._rows()), schema=COLUMNS, orient="row")

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for op in self.ops:
            waiting, last, late, kept = op.waiting_ms, op.last, op.late, op.kept_waiting_ms
            of_op = (op.name, op.group, op.group_size, op.message_bytes, op.count)
            for rank in sorted(op.ranks, key=lambda rank: (-kept[rank], rank)):
                means = op.communication_ms / op.count, waiting[rank] / op.count
                yield (*of_op, rank, *means, last[rank], late[rank], kept[rank])

    def by_name(self, rank: int) -> dict[str, dict[int, dict[str, Any]]]:
        """``{name: {S: figures}}`` as seen by one rank, in DeepSpeed's shape; S is the size that this rank sent."""
        calls: dict[tuple[str, int], list[tuple[float, float, list[int]]]] = defaultdict(list)
        for (_, _, name), matched in self.matched.items():
            if rank not in matched.ranks:
                continue
            row, ranks = matched.ranks.index(rank), np.array(matched.ranks)
            shortest, waits = matched.shortest, matched.waits
            late = late_ranks(shortest, waits)
            for call in np.flatnonzero(matched.timed).tolist():
                seen = float(shortest[call]), float(waits[row, call]), ranks[late[:, call]].tolist()
                calls[name, int(matched.sizes[row, call])].append(seen)
        found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (name, size), of_size in sorted(calls.items()):
            found[name][size] = _deepspeed_figures(size, of_size)
        return dict(found)


_HEAD = ("op", "group", "ranks", "message", "count", "communication", "waiting", "kept others waiting")


def _cells(op: Straggling) -> tuple[str, ...]:
    waiting = float(op.waits.mean()) * 1e3
    size = format_bytes(op.message_bytes) if op.message_bytes else "–"
    means = f"{op.communication_ms / op.count:.3f} ms", f"{waiting:.3f} ms"
    return (op.name, op.group, str(op.group_size), size, str(op.count), *means, worst_text(op))


def worst_text(op: Straggling) -> str:
    """The late ranks, the worst first, with how often each was last and the mean wait for it.

    Worked example: ``"rank 3: 5 × 46.1 ms, rank 0: 1 × 2.0 ms … and 250 more"``.
    """
    last, kept, worst = op.last, op.kept_waiting_ms, op.worst
    texts = [f"rank {rank}: {last[rank]} × {kept[rank] / last[rank]:.3g} ms" for rank in worst[:_MOST_RANKS]]
    more = f" … and {len(worst) - _MOST_RANKS:,} more" if len(worst) > _MOST_RANKS else ""
    return ", ".join(texts) + more if texts else "–"


def bounded(texts: Sequence[str]) -> list[str]:
    """The first few, and how many more there are."""
    more = len(texts) - _MOST_DIFFERENCES
    return [*texts[:_MOST_DIFFERENCES], *([f"… and {more:,} more"] if more > 0 else [])]


def _deepspeed_figures(size: int, calls: Sequence[tuple[float, float, list[int]]]) -> dict[str, Any]:
    shortest, waits = [seconds * 1e3 for seconds, _, _ in calls], [seconds * 1e3 for _, seconds, _ in calls]
    late = Counter(rank for *_, ranks in calls for rank in ranks)
    return {
        "count": len(calls),
        "total_comm_lat_ms": sum(shortest),
        "total_straggler_ms": sum(waits),
        "avg_comm_lat_ms": trimmed_mean(shortest),
        "avg_straggler_ms": trimmed_mean(waits),
        "late_ranks": dict(late.most_common()),
        "msg_size_bytes": size,
        "msg_size_str": format_bytes(size),
    }


def straggler_report(logs: Sequence[RankLog]) -> StragglerReport:
    """Match the logs of all ranks."""
    by_rank = {log.rank: log for log in logs}
    ops: list[Straggling] = []
    differences: list[str] = []
    found: dict[Key, Matched] = {}
    nothing = Series(np.empty(0, np.int64), np.empty(0))
    for key in sorted({key for log in logs for key in log.series}):
        group, ranks, name = key
        series = {rank: by_rank[rank].series.get(key, nothing) for rank in ranks if rank in by_rank}
        counts = {rank: each.end for rank, each in series.items()}
        if len(set(counts.values())) > 1:
            logged = alike(counts, lambda count: f"logged {count}")
            differences.append(f"{name} on group {group}, numbers of calls differ: {logged}; the first are compared")
        matched = _match(series)
        if matched is not None:
            found[key] = matched
            if all(each.is_even for each in series.values()):
                differences += _unequal_sizes(key, matched)
            ops += _by_size(key, matched)
    ops.sort(key=lambda op: -float(op.waits.sum()))
    return StragglerReport(tuple(ops), tuple(differences), tuple(by_rank), found)


def _match(series: Mapping[int, Series]) -> Matched | None:
    """The calls that all ranks have, by their numbers; None for none."""
    first, end = max(each.first for each in series.values()), min(each.end for each in series.values())
    if end <= first:
        return None
    sizes = np.array([each.sizes[first - each.first : end - each.first] for each in series.values()])
    times = np.array([each.seconds[first - each.first : end - each.first] for each in series.values()])
    return Matched(tuple(series), first, sizes, times)


def _unequal_sizes(key: Key, matched: Matched) -> Iterator[str]:
    group, _, name = key
    sizes = matched.sizes
    unequal = np.flatnonzero((sizes != sizes[0]).any(axis=0))
    if len(unequal):
        number = int(unequal[0])
        sent = alike(dict(zip(matched.ranks, sizes[:, number].tolist(), strict=True)), lambda size: f"{size} B")
        more = f", and {len(unequal) - 1:,} later calls" if len(unequal) > 1 else ""
        yield f"{name} on group {group}, call {matched.first + number}: sizes differ: {sent}{more}"


def _by_size(key: Key, matched: Matched) -> Iterator[Straggling]:
    """One for each message size, the largest over the ranks."""
    group, ranks, name = key
    timed, largest = matched.timed, matched.sizes.max(axis=0)
    shortest, waits = matched.shortest, matched.waits
    for size in np.unique(largest[timed]).tolist():
        chosen = timed & (largest == size)
        yield Straggling(name, group, len(ranks), size, matched.ranks, shortest[chosen], waits[:, chosen])

"""Sums of the log: a table with a line per op, layer, group and message size, and dicts in DeepSpeed's form."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

import polars as pl

from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.comm.logs.log_records import SWITCHED_OFF, Record
from dsexplore._internal.comm.sweeps.bandwidth import bandwidth, rate_text
from dsexplore._internal.display import Result
from dsexplore._internal.units import format_bytes, format_count, format_seconds, format_share

COLUMNS: dict[str, pl.DataType] = {
    "name": pl.String(),  # name that the op was logged under
    "op": pl.String(),  # plain op, or switched_off:<op>
    "layer": pl.String(),  # layer that was called: dsexplore.comm, deepspeed.comm or torch.distributed
    "group": pl.String(),
    "group_size": pl.Int32(),
    "message_bytes": pl.Int64(),  # S, as nccl-tests counts it
    "count": pl.Int64(),
    "timed": pl.Int64(),  # number of calls that were seen to complete without an error
    "total_ms": pl.Float64(),
    "mean_ms": pl.Float64(),
    "min_ms": pl.Float64(),
    "max_ms": pl.Float64(),
    "algbw_gb_per_s": pl.Float64(),  # of the total time; 1 GB = 1e9 bytes
    "busbw_gb_per_s": pl.Float64(),
    "waiting_ms": pl.Float64(),  # mean per call that this rank waited for others; null where ranks were not compared
    "late_ranks": pl.List(pl.Int32()),  # ranks that others waited for, the most often late first; null as waiting_ms
}

_TRIMMED = 0.1  # share that DeepSpeed's averages drop at either end
_MOST_LATE = 4  # ranks in a cell


class LineKey(NamedTuple):
    """The properties that all calls of one line share."""

    name: str
    op: str
    layer: str
    group: str
    group_size: int
    message_bytes: int


@dataclass
class Waiting:
    """How long this rank waited in the calls of one line, according to the logs of all ranks."""

    count: int = 0
    """Number of calls that have times on all ranks of the group."""
    seconds: float = 0.0
    """Total seconds that this rank waited in the calls."""
    late: Counter[int] = field(default_factory=Counter)
    """{rank: number of calls in which the others waited for it}."""

    @property
    def mean(self) -> float:
        """Mean wait of a call, in seconds."""
        return self.seconds / self.count

    @property
    def late_ranks(self) -> list[int]:
        """Ranks that the others waited for, the most often late first."""
        return [rank for rank, _ in sorted(self.late.items(), key=lambda item: (-item[1], item[0]))]


@dataclass
class Line:
    """Sums over all records of one name, op, layer, group and message size."""

    name: str
    op: str
    layer: str
    group: Group
    message_bytes: int
    count: int = 0
    timed: int = 0
    """Number of calls that were seen to complete without an error; the times below, in seconds, are theirs."""
    total: float = 0.0
    fastest: float = math.inf
    slowest: float = 0.0
    waiting: Waiting | None = None
    """Waits in this line's calls; None if the ranks' logs were not compared."""

    def add(self, seconds: float | None) -> None:
        """Add a call with its duration in seconds; None if it was not timed."""
        self.count += 1
        if seconds is not None:
            self.timed += 1
            self.total += seconds
            if seconds < self.fastest:
                self.fastest = seconds
            if seconds > self.slowest:
                self.slowest = seconds

    @property
    def mean(self) -> float:
        """Seconds per timed call; 0 if none was timed."""
        return self.total / self.timed if self.timed else 0.0

    @property
    def rates(self) -> tuple[float, float] | None:
        """``(algbw, busbw)`` in GB/s over the total time; None if nothing was timed or nothing is sent."""
        if not self.timed or not self.message_bytes:
            return None
        return bandwidth(self.op, self.message_bytes * self.timed, self.total, self.group.size)

    def row(self) -> dict[str, object]:
        """Return the line as a row of `COLUMNS`."""
        rates = self.rates or (None, None)
        times = (self.total, self.mean, self.fastest, self.slowest)
        total, mean, fastest, slowest = (seconds * 1e3 if self.timed else None for seconds in times)
        return {
            "name": self.name,
            "op": self.op,
            "layer": self.layer,
            "group": self.group.name,
            "group_size": self.group.size,
            "message_bytes": self.message_bytes,
            "count": self.count,
            "timed": self.timed,
            "total_ms": total,
            "mean_ms": mean,
            "min_ms": fastest,
            "max_ms": slowest,
            "algbw_gb_per_s": rates[0],
            "busbw_gb_per_s": rates[1],
            "waiting_ms": self.waiting.mean * 1e3 if self.waiting is not None else None,
            "late_ranks": self.waiting.late_ranks if self.waiting is not None else None,
        }


def line_key(record: Record) -> LineKey:
    """Return the key of the line that a record belongs to."""
    group = record.group
    return LineKey(
        name=record.name,
        op=record.op,
        layer=record.layer,
        group=group.name,
        group_size=group.size,
        message_bytes=record.bytes,
    )


def add_up(records: Iterable[Record], lines: dict[LineKey, Line]) -> None:
    """Add records to the lines that they belong to, creating missing lines."""
    # Records of one call, message and group belong to one line: most records need no key of strings.
    known_lines: dict[tuple[int, int, int], Line] = {}
    first_records: list[Record] = []  # keeps the objects alive, so that no other object gets their identities
    for record in records:
        identity = id(record.call), id(record.message), id(record.issued.group)
        line = known_lines.get(identity)
        if line is None:
            new_line = Line(
                name=record.name,
                op=record.op,
                layer=record.layer,
                group=record.group,
                message_bytes=record.bytes,
            )
            line = known_lines[identity] = lines.setdefault(line_key(record), new_line)
            first_records.append(record)
        line.add(record.seconds)


def lines_of(
    records: Iterable[Record],
    earlier: Mapping[LineKey, Line] | None = None,
    waiting: Mapping[LineKey, Waiting] | None = None,
) -> list[Line]:
    """Sum records into lines; names in order of first appearance, then groups, then sizes.

    Args:
        records: records of one log, or several.
        earlier: sums of earlier calls.
        waiting: waits by line, according to the logs of all ranks.
    """
    lines = {key: copy(line) for key, line in (earlier or {}).items()}
    add_up(records, lines)
    for key, line_waiting in (waiting or {}).items():
        lines[key].waiting = line_waiting
    position: dict[tuple[str, str, str], int] = {}
    for key in lines:
        position.setdefault((key.name, key.op, key.layer), len(position))

    def order(key: LineKey) -> tuple[int, str, int, int]:
        return position[key.name, key.op, key.layer], key.group, key.group_size, key.message_bytes

    return [lines[key] for key in sorted(lines, key=order)]


class CommsSummary(Result):
    """The log as a table, one line per op, layer, group and message size; displays itself in a notebook.

    Args:
        records: records of one logger, or several.
        earlier: sums of earlier calls.
        waiting: waits by line, according to the logs of all ranks; the table then has two more columns.
    """

    _INTERNAL = frozenset({"rows", "table_text", "totals"})

    def __init__(
        self,
        records: Iterable[Record],
        earlier: Mapping[LineKey, Line] | None = None,
        waiting: Mapping[LineKey, Waiting] | None = None,
    ) -> None:
        self.rows = lines_of(records, earlier, waiting)
        self.is_compared = waiting is not None
        """True if the ranks' logs were compared."""

    def verdict(self) -> str:
        """Return the op that takes most of the time; without times, the totals."""
        seconds: dict[str, float] = defaultdict(float)
        for line in self.rows:
            seconds[shown_name(line)] += line.total
        name = max(seconds, key=lambda op: seconds[op], default="")
        if not name or not seconds[name]:
            return self.totals()
        rows = [line for line in self.rows if shown_name(line) == name]
        calls = format_count(sum(line.count for line in rows), "call")
        parts = f", the sum of {len(rows):,} rows" if len(rows) > 1 else ""
        share = format_share(seconds[name], sum(seconds.values()))
        return f"{name} takes most of the time: {format_seconds(seconds[name])} ({share}) in {calls}{parts}."

    def totals(self) -> str:
        """Return the number of calls, their bytes and their time, as a sentence."""
        if not self.rows:
            return "Nothing was logged."
        calls = sum(line.count for line in self.rows)
        size = format_bytes(sum(line.message_bytes * line.count for line in self.rows))
        off = sum(line.count for line in self.rows if line.op.startswith(SWITCHED_OFF))
        seconds = format_seconds(sum(line.total for line in self.rows))
        switched = f"; {off:,} of the calls switched off" if off else ""
        return f"{calls:,} calls, {size} in messages, times that add up to {seconds}{switched}."

    def lines(self) -> list[str]:
        """Return the verdict, then the totals."""
        return list(dict.fromkeys([self.verdict(), self.totals()]))

    def to_frame(self) -> pl.DataFrame:
        """Return the table; columns: `COLUMNS`."""
        return pl.DataFrame([line.row() for line in self.rows], schema=COLUMNS)

    def table_text(self) -> str:
        """Return the table as text, with the unit of each column."""
        head: tuple[str, ...] = _HEAD + (WAITING_HEAD if self.is_compared else ())
        rows = [_cells(line) + (waiting_cells(line) if self.is_compared else ()) for line in self.rows]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = []
        for row in [head, *rows]:
            cells = [
                text.ljust(width) if i in _LEFT else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines) if rows else self.verdict()

    def __repr__(self) -> str:
        compared = ", ranks compared" if self.is_compared else ""
        return f"<CommsSummary of {format_count(len(self.rows), 'line')}{compared}>"

    def __str__(self) -> str:
        """Return `table_text`, for ``print``."""
        return self.table_text()

    def __len__(self) -> int:
        return len(self.rows)


_HEAD = ("op", "layer", "group", "ranks", "message", "count", "total ms", "mean ms", "algbw", "busbw")
WAITING_HEAD = ("waiting", "late ranks")
_LEFT = (0, 1, 2, 11)


def waiting_cells(line: Line) -> tuple[str, str]:
    """Return the mean wait of a call and how often each rank was late: ``("21.9 ms", "rank 3 in 13, rank 1 in 4")``."""
    waiting = line.waiting
    if waiting is None:
        return "–", "–"
    late = ", ".join(f"rank {rank} in {waiting.late[rank]:,}" for rank in waiting.late_ranks[:_MOST_LATE]) or "–"
    omitted = len(waiting.late) - _MOST_LATE
    if omitted > 0:
        late += f" … and {omitted:,} more"
    return format_seconds(waiting.mean), late


def _cells(line: Line) -> tuple[str, ...]:
    """Return the texts of a line in the columns of `_HEAD`."""
    times = (f"{line.total * 1e3:.3f}", f"{line.mean * 1e3:.3f}") if line.timed else ("–", "–")
    rates = tuple(map(rate_text, line.rates)) if line.rates else ("–", "–")
    size = "off" if line.op.startswith(SWITCHED_OFF) else format_bytes(line.message_bytes)
    return (shown_name(line), line.layer, line.group.name, str(line.group.size), size, str(line.count), *times, *rates)


def shown_name(line: Line) -> str:
    """Return the name, marked if the call was switched off."""
    if line.name.startswith(SWITCHED_OFF):
        return f"{line.name.removeprefix(SWITCHED_OFF)} (switched off)"
    return line.name


def raw_data(records: Iterable[Record], earlier: Iterable[Line] = ()) -> dict[str, dict[int, list[int | list[float]]]]:
    """Return ``{name: {message bytes: [count, [latency ms], [algbw Gbit/s], [busbw Gbit/s]]}}``, DeepSpeed's form.

    Args:
        records: records in the order of issue.
        earlier: sums of earlier calls, of which only the count is added.
    """
    data: dict[str, dict[int, list[Any]]] = defaultdict(dict)
    for line in earlier:
        data[line.name].setdefault(line.message_bytes, [0, [], [], []])[0] += line.count
    for record in records:
        entry = data[record.name].setdefault(record.bytes, [0, [], [], []])
        entry[0] += 1
        seconds = record.seconds
        if seconds is not None:
            algbw, busbw = bandwidth(record.op, record.bytes, seconds, record.group.size)
            _, latencies, algbws, busbws = entry
            latencies.append(seconds * 1e3)
            algbws.append(algbw * 8)
            busbws.append(busbw * 8)
    return dict(data)


def operation_summaries(
    records: Sequence[Record], earlier: Iterable[Line] = ()
) -> dict[str, dict[int, dict[str, object]]]:
    """Return ``{name: {message bytes: figures}}``, of all groups together, and of each group under ``groups``.

    Args:
        records: records in the order of issue.
        earlier: sums of earlier calls; counts and total times include them, averages do not.
    """
    group_sizes: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    records_by_key: dict[tuple[str, int, str], list[Record]] = defaultdict(list)
    lines_by_key: dict[tuple[str, int, str], list[Line]] = defaultdict(list)
    for line in earlier:
        group_sizes[line.name, line.message_bytes][line.group.name] = line.group.size
        lines_by_key[line.name, line.message_bytes, line.group.name].append(line)
    for record in records:
        group_sizes[record.name, record.bytes][record.group.name] = record.group.size
        records_by_key[record.name, record.bytes, record.group.name].append(record)
    summaries: dict[str, dict[int, dict[str, object]]] = defaultdict(dict)
    for (name, size), groups in sorted(group_sizes.items(), key=lambda item: item[0][1]):
        all_records = [record for group in groups for record in records_by_key[name, size, group]]
        all_lines = [line for group in groups for line in lines_by_key[name, size, group]]
        by_group = {}
        for group, group_size in groups.items():
            figures = _figures(size, records_by_key[name, size, group], lines_by_key[name, size, group])
            by_group[group] = {"group_size": group_size, **figures}
        summaries[name][size] = {**_figures(size, all_records, all_lines), "groups": by_group}
    return dict(summaries)


def _figures(size: int, records: Sequence[Record], earlier: Sequence[Line]) -> dict[str, object]:
    """Return DeepSpeed's figures of calls with one message size."""
    timed = [(seconds, record) for record in records if (seconds := record.seconds) is not None]
    rates = [bandwidth(record.op, size, seconds, record.group.size) for seconds, record in timed]
    latencies = [seconds * 1e3 for seconds, _ in timed]
    algbw, busbw = trimmed_mean([rate[0] for rate in rates]), trimmed_mean([rate[1] for rate in rates])
    return {
        "count": len(records) + sum(line.count for line in earlier),
        "total_latency_ms": sum(latencies) + sum(line.total for line in earlier) * 1e3,
        "avg_latency_ms": trimmed_mean(latencies),
        "tput_avg_gbps": algbw * 8,
        "busbw_avg_gbps": busbw * 8,
        "algbw_avg_gb_per_s": algbw,
        "busbw_avg_gb_per_s": busbw,
        "msg_size_bytes": size,
        "msg_size_str": format_bytes(size),
    }


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the tenth of the values at either end; 0 if there are none."""
    if not values:
        return 0.0
    dropped = round(len(values) * _TRIMMED)
    return fmean(sorted(values)[dropped : len(values) - dropped])

"""The log added up: a table per op, layer, group and message size, and the same in DeepSpeed's shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import polars as pl

from dsexplore.capture.groups import Group
from dsexplore.comm.bandwidth import bandwidth, rate_text
from dsexplore.comm.records import SWITCHED_OFF, Record
from dsexplore.display import Displayable
from dsexplore.units import format_bytes

COLUMNS: dict[str, pl.DataType] = {
    "name": pl.String(),  # what the op was logged under
    "op": pl.String(),  # plain op, or switched_off:<op>
    "layer": pl.String(),  # whose function was called: dsexplore.comm, deepspeed.comm or torch.distributed
    "group": pl.String(),
    "group_size": pl.Int32(),
    "message_bytes": pl.Int64(),  # S, as nccl-tests counts it
    "count": pl.Int64(),
    "timed": pl.Int64(),  # how many of them were seen to end without an error
    "total_ms": pl.Float64(),
    "mean_ms": pl.Float64(),
    "min_ms": pl.Float64(),
    "max_ms": pl.Float64(),
    "algbw_gb_per_s": pl.Float64(),  # of the total time; 1 GB = 1e9 bytes
    "busbw_gb_per_s": pl.Float64(),
}

_TRIMMED = 0.1  # share that DeepSpeed's averages drop at either end


@dataclass(frozen=True)
class Line:
    """All records of one name, op, layer, group and message size."""

    name: str
    op: str
    layer: str
    group: Group
    message_bytes: int
    count: int
    seconds: tuple[float, ...]
    """Of those that were seen to end without an error, in order of issue."""

    @property
    def rates(self) -> tuple[float, float] | None:
        """``(algbw, busbw)`` in GB/s over the total time; None where nothing was timed or nothing is sent."""
        if not self.seconds or not self.message_bytes:
            return None
        return bandwidth(self.op, self.message_bytes * len(self.seconds), sum(self.seconds), self.group.size)

    def row(self) -> dict[str, Any]:
        """The line with the columns of `COLUMNS`."""
        ms = [second * 1e3 for second in self.seconds]
        rates = self.rates or (None, None)
        return {
            "name": self.name,
            "op": self.op,
            "layer": self.layer,
            "group": self.group.name,
            "group_size": self.group.size,
            "message_bytes": self.message_bytes,
            "count": self.count,
            "timed": len(ms),
            "total_ms": sum(ms) if ms else None,
            "mean_ms": fmean(ms) if ms else None,
            "min_ms": min(ms, default=None),
            "max_ms": max(ms, default=None),
            "algbw_gb_per_s": rates[0],
            "busbw_gb_per_s": rates[1],
        }


def lines_of(records: Iterable[Record]) -> list[Line]:
    """Add records up; names in order of first appearance, then groups, then sizes."""
    order: dict[tuple[str, str, str], int] = {}
    found: dict[tuple[str, str, str, str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        order.setdefault((record.name, record.op, record.layer), len(order))
        group = record.group
        found[record.name, record.op, record.layer, group.name, group.size, record.bytes].append(record)
    keys = sorted(found, key=lambda key: (order[key[:3]], *key[3:]))
    return [_line(found[key]) for key in keys]


def _line(records: Sequence[Record]) -> Line:
    seconds = tuple(second for record in records if (second := record.seconds) is not None)
    first = records[0]
    return Line(first.name, first.op, first.layer, first.group, first.bytes, len(records), seconds)


class CommsSummary(Displayable):
    """The log as a table, one line per op, layer, group and message size; shows itself in a notebook.

    Args:
        records: of one logger, or several.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.lines = lines_of(records)

    def to_frame(self) -> pl.DataFrame:
        """The table; columns: `COLUMNS`."""
        return pl.DataFrame([line.row() for line in self.lines], schema=COLUMNS)

    def text(self) -> str:
        """The table as text, with the unit of each column."""
        head = ("op", "layer", "group", "ranks", "message", "count", "total ms", "mean ms", "algbw", "busbw")
        rows = [_cells(line) for line in self.lines]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = []
        for row in [head, *rows]:
            left, right = row[:3], row[3:]
            cells = [text.ljust(width) for text, width in zip(left, widths, strict=False)]
            cells += [text.rjust(width) for text, width in zip(right, widths[3:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines) if rows else "nothing was logged"

    def __len__(self) -> int:
        return len(self.lines)


def _cells(line: Line) -> tuple[str, ...]:
    total = sum(line.seconds) * 1e3
    times = (f"{total:.3f}", f"{total / len(line.seconds):.3f}") if line.seconds else ("–", "–")
    rates = tuple(map(rate_text, line.rates)) if line.rates else ("–", "–")
    size = "off" if line.op.startswith(SWITCHED_OFF) else format_bytes(line.message_bytes)
    return (shown_name(line), line.layer, line.group.name, str(line.group.size), size, str(line.count), *times, *rates)


def shown_name(line: Line) -> str:
    """The name, with a word for what was switched off."""
    if line.name.startswith(SWITCHED_OFF):
        return f"{line.name.removeprefix(SWITCHED_OFF)} (switched off)"
    return line.name


def raw_data(records: Iterable[Record]) -> dict[str, dict[int, list[Any]]]:
    """``{name: {S: [count, [latency ms], [algbw Gbit/s], [busbw Gbit/s]]}}``, DeepSpeed's shape and units."""
    data: dict[str, dict[int, list[Any]]] = defaultdict(dict)
    for record in records:
        entry = data[record.name].setdefault(record.bytes, [0, [], [], []])
        entry[0] += 1
        seconds = record.seconds
        if seconds is not None:
            algbw, busbw = bandwidth(record.op, record.bytes, seconds, record.group.size)
            for values, value in zip(entry[1:], (seconds * 1e3, algbw * 8, busbw * 8), strict=True):
                values.append(value)
    return dict(data)


def operation_summaries(records: Sequence[Record]) -> dict[str, dict[int, dict[str, Any]]]:
    """``{name: {S: figures}}``; each has the figures of all groups together, and of each under ``groups``."""
    by_group: dict[tuple[str, int], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_group[record.name, record.bytes][record.group.name].append(record)
    summaries: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for (name, size), groups in sorted(by_group.items(), key=lambda item: item[0][1]):
        figures = _figures(size, [record for members in groups.values() for record in members])
        figures["groups"] = {
            group: {"group_size": members[0].group.size, **_figures(size, members)} for group, members in groups.items()
        }
        summaries[name][size] = figures
    return dict(summaries)


def _figures(size: int, records: Sequence[Record]) -> dict[str, Any]:
    timed = [(seconds, record) for record in records if (seconds := record.seconds) is not None]
    rates = [bandwidth(record.op, size, seconds, record.group.size) for seconds, record in timed]
    latencies = [seconds * 1e3 for seconds, _ in timed]
    algbw, busbw = trimmed_mean([rate[0] for rate in rates]), trimmed_mean([rate[1] for rate in rates])
    return {
        "count": len(records),
        "total_latency_ms": sum(latencies),
        "avg_latency_ms": trimmed_mean(latencies),
        "tput_avg_gbps": algbw * 8,
        "busbw_avg_gbps": busbw * 8,
        "algbw_avg_gb_per_s": algbw,
        "busbw_avg_gb_per_s": busbw,
        "msg_size_bytes": size,
        "msg_size_str": format_bytes(size),
    }


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the tenth of the values at either end; 0 for none."""
    if not values:
        return 0.0
    dropped = round(len(values) * _TRIMMED)
    return fmean(sorted(values)[dropped : len(values) - dropped])

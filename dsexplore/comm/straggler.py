"""What ranks waited for each other, from the logs of all of them.

The k-th all_reduce on a group is one event on every rank of it. The rank that arrived last waited for nobody, so
its time is the time of the communication; what the others took beyond that is waiting. Only collectives are
matched: a send on one rank is a recv on another.

The logs are brought together in one gather of plain numbers, whatever they hold, so ranks that recorded
different ops get a report that says so and cannot hang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as td

from dsexplore.capture.timing import timing_of
from dsexplore.comm.records import Record, unlogged
from dsexplore.comm.summary import trimmed_mean
from dsexplore.units import format_bytes

_POINT_TO_POINT = ("send", "recv")
Key = tuple[str, tuple[int, ...], str]
"""A group's name, its ranks, and an op's name in the log."""


@dataclass(frozen=True)
class RankLog:
    """One rank's log, small enough to send: for each group and op the sizes and times in order of issue."""

    rank: int
    series: Mapping[Key, Sequence[tuple[int, float | None]]]
    """``(message bytes, seconds)``; None for an op that was not timed."""


@dataclass(frozen=True)
class Straggling:
    """One op on one group: how much of its time was communication, and who kept whom waiting."""

    name: str
    group: str
    ranks: tuple[int, ...]
    matched: int
    """How many calls were found on all ranks of the group with times."""
    communication_ms: float
    """The time of the rank that waited least, added up over the calls."""
    waiting_ms: Mapping[int, float]
    """What each rank waited beyond that, added up."""
    last: Mapping[int, int]
    """How often each rank was the last to arrive."""
    by_size: Mapping[int, Sequence[tuple[float, Mapping[int, float]]]] = field(default_factory=dict)
    """For each message size the calls: the communication's seconds, and each rank's seconds beyond that."""


@dataclass(frozen=True)
class StragglerReport:
    """All ops, and where the ranks' logs differ."""

    ops: tuple[Straggling, ...]
    differences: tuple[str, ...]
    ranks: tuple[int, ...]

    def text(self) -> str:
        """A table with one line per op, then the differences."""
        lines = [f"Waiting for each other, {len(self.ranks)} ranks (communication: the rank that waited least)"]
        for op in self.ops:
            slowest = max(op.last, key=lambda rank: (op.last[rank], -rank), default=None)
            waits = ", ".join(f"rank {rank} {ms:.3f}" for rank, ms in op.waiting_ms.items())
            lines.append(
                f"{op.name} on group {op.group} ({len(op.ranks)} ranks): {op.matched} matched,"
                f" communication {op.communication_ms:.3f} ms, waiting ms: {waits or '–'}"
                + (f"; last to arrive most often: rank {slowest}" if op.matched else "")
            )
        return "\n".join([*lines, *(f"difference: {text}" for text in self.differences)])

    def by_name(self, rank: int) -> dict[str, dict[int, dict[str, Any]]]:
        """``{name: {S: figures}}`` as seen by one rank, in DeepSpeed's shape."""
        calls: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        for op in self.ops:
            for size, members in op.by_size.items():
                calls[op.name][size] += [(shortest, waits[rank]) for shortest, waits in members if rank in waits]
        return {
            name: {size: _deepspeed_figures(size, pairs) for size, pairs in sorted(sizes.items()) if pairs}
            for name, sizes in calls.items()
        }


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


def rank_log(records: Iterable[Record], rank: int) -> RankLog:
    """What a rank sends of its log to the others."""
    series: dict[Key, list[tuple[int, float | None]]] = defaultdict(list)
    for record in records:
        if record.op not in _POINT_TO_POINT and not record.switched_off:
            key = (record.group.name, record.group.ranks, record.name)
            series[key].append((record.bytes, record.seconds))
    return RankLog(rank, dict(series))


def gather_logs(records: Iterable[Record]) -> list[RankLog]:
    """The logs of all ranks, on all ranks; every rank of the world must make this call."""
    mine = rank_log(records, td.get_rank())
    if timing_of(td.get_backend()) == "none":  # the other ranks are simulated, and have none
        return [mine]
    logs: list[Any] = [None] * td.get_world_size()
    with unlogged():
        td.all_gather_object(logs, mine)
    return logs


def straggler_report(logs: Sequence[RankLog]) -> StragglerReport:
    """Match the logs of all ranks."""
    by_rank = {log.rank: log for log in logs}
    keys = dict.fromkeys(key for log in logs for key in log.series)
    ops, differences = [], []
    for key in sorted(keys):
        group, ranks, name = key
        series = {rank: by_rank[rank].series.get(key, ()) for rank in ranks if rank in by_rank}
        counts = {rank: len(calls) for rank, calls in series.items()}
        if len(set(counts.values())) > 1:
            logged = ", ".join(f"rank {rank} {count}" for rank, count in counts.items())
            differences.append(f"{name} on group {group} was logged {logged} times; the first calls are compared")
        ops.append(_match(key, series, differences))
    return StragglerReport(tuple(op for op in ops if op.matched), tuple(differences), tuple(by_rank))


def _match(key: Key, series: Mapping[int, Sequence[tuple[int, float | None]]], differences: list[str]) -> Straggling:
    group, ranks, name = key
    communication, matched = 0.0, 0
    waiting, last = dict.fromkeys(series, 0.0), dict.fromkeys(series, 0)
    by_size: dict[int, list[tuple[float, Mapping[int, float]]]] = defaultdict(list)
    for number, calls in enumerate(zip(*series.values(), strict=False)):
        sizes = {size for size, _ in calls}
        times = {rank: seconds for rank, (_, seconds) in zip(series, calls, strict=True) if seconds is not None}
        if len(sizes) > 1:
            sent = ", ".join(f"rank {rank} {size} B" for rank, (size, _) in zip(series, calls, strict=True))
            differences.append(f"{name} on group {group}, call {number}: sizes differ: {sent}")
        if len(times) < len(series):
            continue
        shortest = min(times.values())
        waits = {rank: seconds - shortest for rank, seconds in times.items()}
        matched += 1
        communication += shortest
        last[min(times, key=times.__getitem__)] += 1
        for rank, seconds in waits.items():
            waiting[rank] += seconds * 1e3
        by_size[max(sizes)].append((shortest, waits))
    return Straggling(name, group, ranks, matched, communication * 1e3, waiting, last, dict(by_size))

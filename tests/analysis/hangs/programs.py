"""Programs of several ranks that hang, run one call at a time, and what their flight recorders would have held.

A program is a function of a rank that yields what the rank does: `Collective`, `Send`, `Recv`, `Batch` or `STOP`.
Ranks take turns. A collective ends when all ranks of its group have issued the one of that number and all called the
same; a message when both ends are there. A blocking call keeps its rank until it ends; an asynchronous one does not.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

STOP = "stop"
"""The rank does something else from now on, and does not come back."""


@dataclass(frozen=True)
class Group:
    name: str
    ranks: tuple[int, ...]
    desc: str = "undefined"


@dataclass(frozen=True)
class Collective:
    group: Group
    op: str = "all_reduce"
    elements: int = 1024
    line: int = 1
    dtype: str = "Float"
    blocking: bool = True
    received: int | None = None


@dataclass(frozen=True)
class Send:
    group: Group
    peer: int
    elements: int = 64
    line: int = 1
    blocking: bool = True


@dataclass(frozen=True)
class Recv(Send):
    pass


@dataclass(frozen=True)
class Batch:
    members: tuple[Send | Recv, ...]
    blocking: bool = True


Step = Collective | Send | Recv | Batch | str
Program = Callable[[int], Iterator[Step]]


@dataclass
class Issued:
    rank: int
    step: Any
    number: int
    record: int
    ended: bool = False
    batch: int | None = None
    end_record: int | None = None


@dataclass
class Run:
    """A job that has come to rest: what each rank issued, and what has ended."""

    size: int
    issued: dict[int, list[Issued]] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    """The ranks that came to their end or to `STOP`."""
    stuck: tuple[int, int] | None = None


def run(program: Program, size: int, budget: int = 200_000, stuck: tuple[int, int] | None = None) -> Run:
    """Run the ranks until none can go on.

    Args:
        stuck: a rank, and the number of the collective from which on none ends on its device, though it does on others.
    """
    job = Run(size, {rank: [] for rank in range(size)}, stuck=stuck)
    ranks: dict[int, Generator[Step, None, None] | Iterator[Step]] = {rank: program(rank) for rank in range(size)}
    held: dict[int, list[Issued]] = {}
    matching = _Matching(job)
    moved = True
    while moved and budget:
        moved = False
        for rank, steps in ranks.items():
            while rank not in job.stopped and budget:
                budget -= 1
                if any(not one.ended for one in held.get(rank, [])):
                    break
                step = next(steps, STOP)
                if step == STOP:
                    job.stopped.add(rank)
                    break
                calls = matching.issue(rank, step)
                held[rank] = calls if getattr(step, "blocking", True) else []
                moved = True
    return job


class _Matching:
    def __init__(self, job: Run) -> None:
        self._job = job
        self._waiting: dict[Any, dict[int, Issued]] = {}
        self._numbers: dict[Any, int] = {}
        self._records: dict[int, int] = {}

    def issue(self, rank: int, step: Any) -> list[Issued]:
        members = step.members if isinstance(step, Batch) else (step,)
        is_batch = isinstance(step, Batch)
        number = self._next((rank, members[0].group.name, isinstance(members[0], Send)))
        calls = []
        for member in members:
            one = Issued(rank, member, number, self._record(rank))
            calls.append(one)
            self._job.issued[rank].append(one)
        if is_batch:
            end = self._record(rank)
            for one in calls:
                one.batch = one.end_record = end
        for one in calls:
            self._match(one)
        return calls

    def _next(self, key: Any) -> int:
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return self._numbers[key]

    def _record(self, rank: int) -> int:
        self._records[rank] = self._records.get(rank, -1) + 1
        return self._records[rank]

    def _match(self, one: Issued) -> None:
        step = one.step
        if isinstance(step, Send):
            pair = (step.peer, one.rank) if isinstance(step, Recv) else (one.rank, step.peer)
            number = self._next(("message", one.rank, step.group.name, pair, type(step)))
            together = self._waiting.setdefault(("message", step.group.name, pair, number), {})
            together[one.rank] = one
            if len(together) == 2:
                self._end(together)
            return
        together = self._waiting.setdefault((step.group.name, step.group.ranks, one.number), {})
        together[one.rank] = one
        alike = {(each.step.op, each.step.elements, each.step.dtype) for each in together.values()}
        if len(together) == len(step.group.ranks) and (len(alike) == 1 or step.received is not None):
            self._end(together)

    def _end(self, together: dict[int, Issued]) -> None:
        stuck, since = self._job.stuck or (None, 0)
        if stuck in together and together[stuck].number > since:
            return
        for one in together.values():
            one.ended = one.rank != stuck or one.number < since


def dumps(
    job: Run,
    groups: Sequence[Group],
    *,
    keep: int | None = None,
    only_active: bool = False,
    empty: Sequence[int] = (),
    lost: Sequence[int] = (),
    with_frames: bool = True,
    version: str = "2.10",
) -> dict[int, dict[str, Any]]:
    """Return, by rank, what its flight recorder would have held.

    Args:
        keep: entries of the ring buffer.
        only_active: without the ended ones.
        empty: ranks whose dump has no entries.
        lost: ranks that left no dump.
    """
    found = {}
    for rank in range(job.size):
        if rank in lost:
            continue
        entries = [] if rank in empty else list(_entries(job, rank, with_frames))
        entries = entries[-keep:] if keep else entries
        if only_active:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        own = sorted((group for group in groups if rank in group.ranks), key=lambda group: int(group.name))
        for entry in entries:
            entry["pg_id"] = [group.name for group in own].index(entry["process_group"][0])
        found[rank] = {
            "version": version,
            "nccl_version" if version < "2.10" else "comm_lib_version": "2.21.5",
            "pg_config": {
                group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))} for group in own
            },
            "pg_status": {str(number): _status(job, rank, group) for number, group in enumerate(own)},
            "entries": entries,
        }
    return found


def _status(job: Run, rank: int, group: Group) -> dict[str, int]:
    mine = [one for one in job.issued[rank] if one.step.group == group and not isinstance(one.step, Send)]
    return {
        "last_enqueued_collective": max((one.number for one in mine), default=-1),
        "last_started_collective": -1,
        "last_completed_collective": max((one.number for one in mine if one.ended), default=-1),
    }


def _entries(job: Run, rank: int, with_frames: bool) -> Iterator[dict[str, Any]]:
    by_batch: dict[int, list[Issued]] = {}
    for one in job.issued[rank]:
        if one.batch is not None:
            by_batch.setdefault(one.batch, []).append(one)
    for one in job.issued[rank]:
        yield _entry(one, with_frames, ended=one.ended and one.batch is None)
        if one.batch is not None and by_batch[one.batch][-1] is one:
            ended = all(each.ended for each in by_batch[one.batch])
            end = replace(one, step=one.step, record=one.batch)
            entry = _entry(end, with_frames, ended=ended)
            yield {**entry, "profiling_name": "nccl:coalesced", "is_p2p": False, "input_sizes": [], "output_sizes": []}


def _entry(one: Issued, with_frames: bool, ended: bool) -> dict[str, Any]:
    step = one.step
    is_message = isinstance(step, Send)
    created = 1_000_000_000 + one.record * 1_000_000
    entry = {
        "record_id": one.record,
        "process_group": (step.group.name, step.group.desc),
        "collective_seq_id": 0 if is_message else one.number,
        "p2p_seq_id": one.number if is_message else 0,
        "op_id": one.record,
        "profiling_name": f"nccl:{_name(one)}",
        "time_created_ns": created,
        "input_sizes": [[step.elements]],
        "input_dtypes": [getattr(step, "dtype", "Float")],
        "output_sizes": [[getattr(step, "received", None) or step.elements]],
        "output_dtypes": [getattr(step, "dtype", "Float")],
        "state": "completed" if ended else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 500_000 if ended else None,
        "retired": ended,
        "timeout_ms": 600_000,
        "is_p2p": is_message,
    }
    if with_frames:
        entry["frames"] = [
            {"name": "all_reduce", "filename": "/usr/lib/python3/site-packages/torch/distributed/c10d.py", "line": 9},
            {"name": "step", "filename": "/job/train.py", "line": step.line},
        ]
    return entry


def _name(one: Issued) -> str:
    step = one.step
    if not isinstance(step, Send):
        return str(step.op)
    mine, other = step.group.ranks.index(one.rank), step.group.ranks.index(step.peer)
    return f"recv {mine}<-{other}" if isinstance(step, Recv) else f"send {mine}->{other}"


def write(found: dict[int, dict[str, Any]], folder: Path, name: str = "_dump_{}", *, as_json: bool = False) -> Path:
    """Write each rank's dump and return the folder."""
    folder.mkdir(exist_ok=True)
    for rank, dump in found.items():
        data = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
        (folder / name.format(rank)).write_bytes(data)
    return folder

"""Programs whose ranks issue ahead of their devices, as with NCCL, and what their flight recorders hold once all rest.

A rank issues without waiting until `Program.sync`. Its device begins a call once the one before it in the same group
has ended, and those that the program waited for; a collective ends once all its ranks have begun it and called alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.analysis.hangs.programs import Group

Message = tuple[str, int]
"""``send`` or ``recv``, and the other rank."""


NO_GROUP = Group("", ())


@dataclass
class Op:
    kind: str
    """``call``, ``messages``, ``wait`` or ``sync``; ``left out`` does nothing."""
    group: Group = NO_GROUP
    name: str = ""
    elements: int = 0
    received: int = 0
    messages: tuple[Message, ...] = ()
    waits: bool = True
    """True if the device continues only after it."""
    on: Op | None = None
    """The op that a ``wait`` waits for."""
    number: int = 0

    @property
    def is_issued(self) -> bool:
        return self.kind in ("call", "messages")


class Program:
    """The ops of one rank, in order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def call(self, group: Group, name: str = "all_reduce", elements: int = 64, **more: Any) -> Op:
        self.ops.append(Op("call", group, name, elements, **{"received": elements, **more}))
        return self.ops[-1]

    def together(self, group: Group, *messages: Message) -> None:
        self.ops.append(Op("messages", group, messages=messages))

    def wait(self, on: Op) -> None:
        self.ops.append(Op("wait", on=on))

    def sync(self) -> None:
        self.ops.append(Op("sync"))

    def issued(self) -> list[int]:
        return [at for at, op in enumerate(self.ops) if op.is_issued]


@dataclass
class Rest:
    """A job that has come to rest."""

    programs: Sequence[Program]
    begun: list[set[int]]
    ended: list[set[int]]
    reached: list[int]
    """{rank: number of ops that it has passed}."""
    keys: list[dict[int, list[Any]]] = field(default_factory=list)

    @property
    def hangs(self) -> bool:
        return any(
            at not in ended for program, ended in zip(self.programs, self.ended, strict=True) for at in program.issued()
        )


def come_to_rest(
    programs: Sequence[Program], hosts: dict[int, int] | None = None, devices: dict[int, int] | None = None
) -> Rest:
    """Run the job.

    Args:
        hosts: {rank: index of the op before which the process stops}.
        devices: {rank: index of the op from which on its device begins none}.
    """
    many = range(len(programs))
    job = Rest(programs, [set() for _ in many], [set() for _ in many], [0] * len(programs))
    job.keys = [_numbered(rank, program) for rank, program in enumerate(programs)]
    before = [_dependencies(program) for program in programs]
    arrived: dict[Any, dict[int, Op]] = defaultdict(dict)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            moved |= _issue(job, rank, (hosts or {}).get(rank, len(program.ops)))
            for at in _issued(job, rank) - job.begun[rank]:
                if before[rank][at] <= job.ended[rank] and at < (devices or {}).get(rank, len(program.ops)):
                    job.begun[rank].add(at)
                    for key in job.keys[rank][at]:
                        arrived[key][rank] = program.ops[at]
                    moved = True
        for rank in many:
            for at in job.begun[rank] - job.ended[rank]:
                if all(_is_met(arrived[key], key) for key in job.keys[rank][at]):
                    job.ended[rank].add(at)
                    moved = True
    return job


def _numbered(rank: int, program: Program) -> dict[int, list[Any]]:
    """Return, by op, what it meets others in."""
    counts: dict[Any, int] = defaultdict(int)

    def following(*key: Any) -> int:
        counts[key] += 1
        return counts[key]

    keys: dict[int, list[Any]] = {}
    for at, op in enumerate(program.ops):
        if not op.is_issued:
            continue
        op.number = following(op.kind, op.group.name)
        keys[at] = [(op.group, op.number)]
        if op.kind == "messages":
            pairs = [(rank, peer) if way == "send" else (peer, rank) for way, peer in op.messages]
            keys[at] = [(op.group, pair, following(op.group.name, pair)) for pair in pairs]
    return keys


def _dependencies(program: Program) -> list[set[int]]:
    last: dict[str, int] = {}
    waited: set[int] = set()
    found = []
    for at, op in enumerate(program.ops):
        found.append(waited | ({last[op.group.name]} if op.group.name in last else set()))
        if op.is_issued:
            last[op.group.name] = at
            waited = {at} if op.waits else waited
        elif op.kind == "wait":
            waited = waited | {program.ops.index(op.on)} if op.on in program.ops else waited
    return found


def _issued(job: Rest, rank: int) -> set[int]:
    return {at for at in job.programs[rank].issued() if at < job.reached[rank]}


def _issue(job: Rest, rank: int, end: int) -> bool:
    before = job.reached[rank]
    ops = job.programs[rank].ops
    while job.reached[rank] < min(end, len(ops)):
        if ops[job.reached[rank]].kind == "sync" and _issued(job, rank) - job.ended[rank]:
            break
        job.reached[rank] += 1
    return job.reached[rank] > before


def _is_met(there: dict[int, Op], key: Any) -> bool:
    if len(key) == 3:
        return len(there) == 2
    alike = {(op.name, 0 if op.name == "all_to_all" else op.elements) for op in there.values()}
    return len(there) == len(key[0].ranks) and len(alike) == 1


def recorded(
    job: Rest,
    groups: Iterable[Group],
    *,
    with_times: bool = False,
    only_active: bool = False,
    with_status: bool = True,
    keep: int | None = None,
    empty: Sequence[int] = (),
    lost: Sequence[int] = (),
) -> dict[int, dict[str, Any]]:
    """Return, by rank, its dump."""
    found = {}
    for rank, program in enumerate(job.programs):
        own = [group for group in groups if rank in group.ranks]
        entries = [entry for at in sorted(_issued(job, rank)) for entry in _entries(job, rank, at, with_times)]
        for record, entry in enumerate(entries):
            entry |= {"record_id": record, "pg_id": [group.name for group in own].index(entry["process_group"][0])}
        entries = entries[-keep:] if keep else entries
        if only_active:
            entries = [entry for entry in entries if entry["time_discovered_completed_ns"] is None]
        if rank not in lost:
            found[rank] = {
                "version": "2.10",
                "comm_lib_version": "2.27.3",
                "pg_config": {
                    group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
                    for group in own
                },
                "pg_status": {str(i): _status(job, rank, program, group) for i, group in enumerate(own) if with_status},
                "entries": [] if rank in empty else entries,
            }
    return found


def _status(job: Rest, rank: int, program: Program, group: Group) -> dict[str, int]:
    counted = {
        "enqueued": _issued(job, rank),
        "started": set(),
        "completed": job.ended[rank],
    }
    return {
        f"last_{what}_collective": max(
            (program.ops[at].number for at in places if program.ops[at].group == group), default=-1
        )
        for what, places in counted.items()
    }


def _entries(job: Rest, rank: int, at: int, with_times: bool) -> list[dict[str, Any]]:
    op = job.programs[rank].ops[at]
    has_ended, has_begun = at in job.ended[rank], at in job.begun[rank] and with_times

    def entry(name: str, sizes: tuple[int, ...], **changes: Any) -> dict[str, Any]:
        return {
            "process_group": [op.group.name, op.group.desc],
            "collective_seq_id": op.number if op.kind == "call" else 0,
            "p2p_seq_id": op.number if op.kind == "messages" else 0,
            "profiling_name": f"nccl:{name}",
            "time_created_ns": 1_000_000 * (at + 1),
            "input_sizes": [[size] for size in sizes[:1]],
            "output_sizes": [[size] for size in sizes[1:]],
            "input_dtypes": ["BFloat16"] * len(sizes[:1]),
            "output_dtypes": ["BFloat16"] * len(sizes[1:]),
            "state": "completed" if has_ended else "started" if has_begun else "scheduled",
            "time_discovered_started_ns": 1_000_000 * (at + 1) + 10 if has_begun else None,
            "time_discovered_completed_ns": 1_000_000 * (at + 1) + 99 if has_ended else None,
            "is_p2p": False,
            **changes,
        }

    if op.kind == "call":
        return [entry(op.name, (op.elements, op.received))]
    endless = {"is_p2p": True, "state": "scheduled", "time_discovered_completed_ns": None}
    mine = op.group.ranks.index(rank)
    ends = [(way, "->" if way == "send" else "<-", op.group.ranks.index(peer)) for way, peer in op.messages]
    return [
        *(entry(f"{way} {mine}{arrow}{peer}", (8, 8), **endless) for way, arrow, peer in ends),
        entry("coalesced", ()),
    ]

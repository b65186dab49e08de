"""The calls of each rank before a job hung: the evidence that all steps of the analysis read.

A `RankCall` is one collective, or one message between two ranks, as one rank issued it. An `Instance` is one collective
of a group, or one message, with the calls of all ranks that have issued it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from dsexplore._internal.trace.ends import KILLED, RUNNING, STOPPED, UNSAVED, WITHOUT_SAVING
from dsexplore._internal.trace.job_files import EarlierBlock
from dsexplore._internal.trace.schema import State
from dsexplore._internal.units import format_ranks

_HASH = re.compile("[0-9a-f]{40}")
_AT_ONCE = 64
"""Last calls of a rank among which a message may be that it did not wait for."""
WITH_TAGS = ("gloo", "mpi", "ucc")
"""The libraries whose messages have tags."""


class GroupId(NamedTuple):
    """A process group, with its ranks, since processes may use one name for different groups."""

    name: str
    ranks: tuple[int, ...]

    @property
    def made_as(self) -> str:
        """Name that the rank gave it; merging adds ``"@rank"`` where two ranks mean different groups by a name."""
        return self.name.partition("@")[0]

    @property
    def title(self) -> str:
        """Group's name in reports; its ranks if torch named it by a hash, ``"(ranks 1, 3)"``."""
        return f"({format_ranks(self.ranks)})" if _HASH.fullmatch(self.name) else self.name


def kinds(groups: Mapping[GroupId, str]) -> dict[GroupId, str]:
    """Return the kind of each group: equal for groups of other ranks in the same role, distinct within one rank.

    A kind consists of the description, size, stride between the ranks, and index among groups with equal ranks and
    description. Two ranks that execute one line of a program do so in groups of one kind.

    Args:
        groups: {group: its description}.
    """
    kinds_of = {}
    count_of_ranks: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
    for group, described in sorted(groups.items(), key=lambda pair: (len(pair[0].name), pair[0].name)):
        steps = {after - before for before, after in zip(group.ranks, group.ranks[1:], strict=False)}
        kinds_of[group] = f"{described} {len(group.ranks)} {sorted(steps)} {count_of_ranks[described, group.ranks]}"
        count_of_ranks[described, group.ranks] += 1
    return kinds_of


class InstanceId(NamedTuple):
    """A collective of a group, or a message in it."""

    group: GroupId
    pair: tuple[int, int] | None
    """Sender and receiver; None for a collective."""
    number: int
    """Sequence number of a collective in its group; of a message among those of its pair, from the first known one."""
    part: int = 0
    """Position among the calls of one rank that share a number, as those of one coalesced call do."""


class RankCall(NamedTuple):
    """A collective or a message, as one rank issued it."""

    rank: int
    position: int
    """Place in the rank's program order."""
    group: GroupId
    label: str
    """The group's name in reports: its mesh axis or description, else its own name."""
    number: int
    """Sequence number among the collectives of the group; of a message, as the recorder counts."""
    op: str
    state: State
    sent: int | None = None
    """Elements that the rank hands in; None where that is not known."""
    received: int | None = None
    """Elements that the rank gets."""
    dtype: str = ""
    message_bytes: int | None = 0
    """None where the size is not known."""
    pair: tuple[int, int] | None = None
    """Sender and receiver of a message; None for a collective, and where they are not known."""
    root: int | None = None
    """The rank that a broadcast, reduce, gather or scatter goes from or to; None elsewhere, and where that is not
    known, as in a flight-recorder dump."""
    source: str = ""
    batch: int | None = None
    created: int | None = None
    has_equal_parts: bool = True
    """True if all ranks must send equal sizes, as in ``all_gather_into_tensor`` and not in ``all_gather``."""
    has_tag: bool = False
    """For a message, True if its library matches messages by tags, which no record keeps."""
    reduction: str = ""
    """``SUM``, ``MAX``, …; empty for an op without one, and where that is not known."""
    send_splits: tuple[int, ...] | None = None
    """Of an uneven all_to_all, the elements for each rank of the group; None elsewhere, and where that is not known."""
    recv_splits: tuple[int, ...] | None = None
    """The same of what it receives."""
    record: int | None = None
    """Number of calls that the rank had recorded before, including those missing from its dump; None if not counted."""
    kind: str = ""
    """The trait of groups with the same part in the program: their description, or the pattern of their ranks."""

    @property
    def is_pending(self) -> bool:
        """True if it has not completed, or has failed."""
        return self.state != "completed"

    @property
    def is_message(self) -> bool:
        """True for a send or receive between two ranks."""
        return self.op in ("send", "recv")

    @property
    def token(self) -> tuple[str, ...]:
        """Call without time and rank: equal for ranks that execute the same line of a program."""
        size = self.sent if self.sent is not None else self.message_bytes  # of an all_to_all, each rank has its own
        return (self.kind, f"{self.op}{self.peer_ahead}", self.dtype, "" if self.op == "all_to_all" else str(size))

    @property
    def peer_ahead(self) -> str:
        """How many ranks of the group the peer of a message is ahead, in a ring: ``" +1"`` for the next; else empty."""
        ranks = self.group.ranks
        if self.pair is None or not {*self.pair} <= {*ranks}:
            return ""
        peer = self.pair[0] if self.pair[0] != self.rank else self.pair[1]
        return f" +{(ranks.index(peer) - ranks.index(self.rank)) % len(ranks)}"


class RankEnd(NamedTuple):
    """End of a rank: by itself, or stuck."""

    how: Literal["raised", "ended", "stopped", "killed"]
    text: str
    """After the rank's name: ``was killed by SIGKILL``, or ``raised ValueError (bad sample 17) at train.py:5``."""
    line: str = ""
    """The line where it ended, ``"train.py:5"``; empty if unknown."""

    @property
    def is_of_process(self) -> bool:
        """True if its process is gone or stands still, wherever the program was; false if the program ended."""
        return self.how in ("stopped", "killed") or UNSAVED in self.text or WITHOUT_SAVING in self.text

    @classmethod
    def of(cls, text: str) -> RankEnd | None:
        """Parse the end that a file records, see `trace.ends`; None if it records none."""
        if text in ("", RUNNING):
            return None
        if text == STOPPED:
            return cls("stopped", text)
        if text.startswith(KILLED):
            return cls("killed", text)
        line = text.rpartition(" at ")[2] if " at " in text else ""
        return cls("raised" if text.startswith("raised ") else "ended", text, line)


@dataclass(frozen=True)
class RankCalls:
    """The calls of one rank."""

    rank: int
    calls: Sequence[RankCall] = ()
    """In program order."""
    has_evidence: bool = True
    """False for a rank that left no file, or an empty one."""
    has_empty_file: bool = False
    """True if the rank left an empty file: it was asked for its calls, and wrote none."""
    is_whole: bool = True
    """True if ``calls`` begins with the first call, so that no ring buffer lost it, and calls that ended are kept."""
    enqueued: Mapping[GroupId, int] = field(default_factory=dict)
    """{group: last sequence number that the recorder counted, including calls that it no longer has}."""
    completed: Mapping[GroupId, int] = field(default_factory=dict)
    """{group: last sequence number that the recorder saw complete, including calls that it no longer has}."""
    replicas: frozenset[int] = frozenset()
    """The ranks that run the same program, judged by groups: members of its groups without messages, except those
    of all ranks."""
    stack: str = ""
    """The stack of the rank when it was ended, innermost call first; empty if unknown."""
    end: RankEnd | None = None
    """End of the rank; None if it was ended with the job, or if unknown."""
    earlier: EarlierBlock | None = None
    """The block that the rank saved last, if it saved nothing of the later one that others are in."""

    @cached_property
    def pending(self) -> list[RankCall]:
        """Calls that have not completed, in program order."""
        return [call for call in self.calls if call.is_pending]

    @property
    def tells_whether_it_waits(self) -> bool:
        """False if the rank left no record, or counted calls that had not completed and of which it has none."""
        counted = any(number > self.completed.get(group, -1) for group, number in self.enqueued.items())
        return self.has_evidence and (bool(self.calls) or not counted)

    @property
    def waits_earlier(self) -> bool:
        """True if the rank waits in a call of an earlier block, and in none that is in the trace."""
        return self.earlier is not None and self.earlier.waits_in_call

    @property
    def last_of_aborted(self) -> list[RankCall]:
        """Last call of a rank that SIGABRT ended: gloo aborts a rank that gets another size than it expects."""
        return list(self.calls[-1:]) if self._is_aborted else []

    @property
    def messages_of_aborted(self) -> list[RankCall]:
        """Last messages of a rank that SIGABRT ended: those of one batch, and those issued before without a wait."""
        return [call for call in self.calls[-_AT_ONCE:] if call.pair is not None] if self._is_aborted else []

    @property
    def _is_aborted(self) -> bool:
        return self.end is not None and self.end.text == f"{KILLED}SIGABRT"

    @cached_property
    def highest(self) -> dict[GroupId, int]:
        """{group: highest sequence number of a collective that the rank has issued}."""
        numbers = dict(self.enqueued)
        for call in self.calls:
            if not call.is_message:
                numbers[call.group] = max(numbers.get(call.group, -1), call.number)
        return numbers


@dataclass
class Instance:
    """One collective of a group, or one message, with each rank's call if known."""

    id: InstanceId
    calls: dict[int, RankCall] = field(default_factory=dict)
    """By rank, of those whose call is known."""
    absent: tuple[int, ...] = ()
    """Ranks that take part in it and, by all records, have not issued it."""

    @property
    def pending(self) -> list[RankCall]:
        """Calls of ranks that wait in it."""
        return [call for call in self.calls.values() if call.is_pending]


@dataclass(frozen=True)
class JobCalls:
    """The evidence of all ranks of one job."""

    ranks: Mapping[int, RankCalls]
    world_size: int
    notes: tuple[str, ...] = ()
    """Limits of the evidence: files that could not be read, ranks without a file, …"""
    stood: str | None = None
    """For how long no collective began or ended, ``"2 s"``; empty if that is not known of a job that had not ended in
    its time; None if it is not known to stand."""
    unlisted: frozenset[GroupId] = frozenset()
    """The groups whose ranks no file lists: those that called there are taken for all of them."""

    @cached_property
    def instances(self) -> dict[InstanceId, Instance]:
        """All collectives and messages with a recorded call of at least one rank."""
        by_id: dict[InstanceId, Instance] = {}
        for rank in self.ranks.values():
            for call, identity in _identities(self, rank):
                instance = by_id.get(identity)
                if instance is None:
                    instance = by_id[identity] = Instance(identity)
                instance.calls[call.rank] = call
        for instance in by_id.values():
            if instance.id.pair is None and len(instance.calls) < len(instance.id.group.ranks):
                instance.absent = tuple(self._absent(instance))
        _join_ends(self, by_id)
        return by_id

    @cached_property
    def has_begins(self) -> bool:
        """True if it is recorded which calls the devices have started: the recorder does so if torch takes times."""
        return any(call.state == "started" for calls_of_rank in self.ranks.values() for call in calls_of_rank.pending)

    def knows_all(self, ranks: Iterable[int]) -> bool:
        """Return True if all calls of these ranks are known, starting at the first."""
        calls = [self.ranks.get(rank) for rank in ranks]
        return all(
            calls_of_rank is not None and calls_of_rank.is_whole and calls_of_rank.has_evidence
            for calls_of_rank in calls
        )

    def _absent(self, instance: Instance) -> Iterable[int]:
        group, _, number, part = instance.id
        for rank in group.ranks:
            if rank in instance.calls:
                continue
            calls = self.ranks.get(rank)
            highest = calls.highest.get(group, -1) if calls else -1
            if highest < number or (part and highest == number and calls and calls.is_whole):
                yield rank

    @cached_property
    def waiting(self) -> list[Instance]:
        """Instances in which any rank waits, earliest first."""
        waiting = [instance for instance in self.instances.values() if instance.pending]
        return sorted(waiting, key=lambda instance: min(call.position for call in instance.pending))

    def instance_of(self, call: RankCall) -> Instance:
        """Return the instance that a call is part of."""
        return self._instance_of_call[call.rank, call.position]

    @cached_property
    def _instance_of_call(self) -> dict[tuple[int, int], Instance]:
        return {
            (call.rank, call.position): instance
            for instance in self.instances.values()
            for call in instance.calls.values()
        }


def _identities(job: JobCalls, rank: RankCalls) -> Iterable[tuple[RankCall, InstanceId]]:
    """Yield the calls of one rank, each with the id of its instance.

    A message is one instance for both its ranks if all calls of both are known, since only then they can be counted;
    otherwise each rank has an instance of its own.
    """
    of_pair: dict[tuple[GroupId, tuple[int, int]], int] = defaultdict(int)
    of_number: dict[tuple[GroupId, int], int] = defaultdict(int)
    for call in rank.calls:
        if call.pair is not None:
            number = of_pair[call.group, call.pair]
            of_pair[call.group, call.pair] += 1
            yield call, InstanceId(call.group, call.pair, number, 0 if job.knows_all(call.pair) else call.rank + 1)
        elif not call.is_message:
            part = of_number[call.group, call.number]
            of_number[call.group, call.number] += 1
            yield call, InstanceId(call.group, None, call.number, part)
        else:
            yield call, InstanceId(call.group, (call.rank, -1), call.position)


def _join_ends(job: JobCalls, instances: dict[InstanceId, Instance]) -> None:
    """Merge both ends of each pending message, or record which rank has not issued the other end.

    If both ranks' calls are known from the first on, message n of a pair is the n-th call at both ends. Else the first
    pending ones of both ends are taken to match.
    """
    counted: dict[tuple[GroupId, tuple[int, int], int], list[Instance]] = defaultdict(list)
    for identity, instance in instances.items():
        if identity.pair is None or identity.pair[1] < 0:
            continue
        if not identity.part:
            instance.absent = tuple(rank for rank in identity.pair if rank not in instance.calls)
        elif instance.pending:
            counted[identity.group, identity.pair, identity.part - 1].append(instance)
    for (group, pair, rank), ours in counted.items():
        other = pair[1] if pair[0] == rank else pair[0]
        theirs = counted.get((group, pair, other), [])
        for message, same in zip(ours, theirs, strict=False):
            if rank < other:
                message.calls |= instances.pop(same.id).calls
        for message in ours[len(theirs) :]:
            message.absent = (other,)

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
"""The name that torch gives a group as a hash of its ranks."""
_AT_ONCE = 64
"""Number of last calls of a rank that are searched for messages that it did not wait for."""
WITH_TAGS = ("gloo", "mpi", "ucc")
"""The libraries whose messages have tags."""


class GroupId(NamedTuple):
    """A process group by name and ranks, since processes may use one name for different groups."""

    name: str
    ranks: tuple[int, ...]

    @property
    def made_as(self) -> str:
        """Name that the rank gave it, without the ``"@rank"`` that merging adds for equal names of different groups."""
        return self.name.partition("@")[0]

    @property
    def title(self) -> str:
        """Group's name in reports; its ranks if torch named it by a hash, ``"(ranks 1, 3)"``."""
        return f"({format_ranks(self.ranks)})" if _HASH.fullmatch(self.name) else self.name


def kinds(groups: Mapping[GroupId, str]) -> dict[GroupId, str]:
    """Return {group: its kind}, equal for groups with the same role on different ranks, and distinct on one rank.

    A kind consists of the description, size, stride between the ranks, and index among groups with equal ranks and
    description. Ranks that execute one line of a program use groups of one kind.

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
    """Sequence number of a collective in its group; for a message, its index among the known messages of its pair."""
    part: int = 0
    """Index among the calls of one rank that share a number, such as those of one coalesced call. For a message whose
    ends cannot be matched, the rank of its end plus 1."""


class RankCall(NamedTuple):
    """A collective or a message, as one rank issued it."""

    rank: int
    position: int
    """Position in the rank's program order."""
    group: GroupId
    label: str
    """The group's name in reports: its mesh axis or description, or else its name."""
    number: int
    """Sequence number among the collectives of the group; for a message, the recorder's count."""
    op: str
    state: State
    sent: int | None = None
    """Number of elements that the rank passes in; None if it is unknown."""
    received: int | None = None
    """Number of elements that the rank gets; None if it is unknown."""
    dtype: str = ""
    message_bytes: int | None = 0
    """None if the size is unknown."""
    pair: tuple[int, int] | None = None
    """Sender and receiver of a message; None for a collective, or if they are unknown."""
    root: int | None = None
    """The root of a broadcast, reduce, gather or scatter; None for other ops, or if it is unknown, as in a
    flight-recorder dump."""
    source: str = ""
    """Lines of the program, innermost first: ``"model.py:3 ← train.py:5"``; empty if they are unknown."""
    batch: int | None = None
    """A number that the calls of one coalesced call share; None outside such a call."""
    created: int | None = None
    """Nanoseconds since the Unix epoch at which it was issued; None if they are unknown."""
    has_equal_parts: bool = True
    """True if all ranks must send equal sizes, as in ``all_gather_into_tensor`` and unlike ``all_gather``."""
    has_tag: bool = False
    """For a message, True if its library matches messages by tags, which no file records."""
    reduction: str = ""
    """``SUM``, ``MAX``, …; empty for an op without one, or if it is unknown."""
    send_splits: tuple[int, ...] | None = None
    """For an uneven all_to_all, the elements that it sends to each rank of the group; else None, or if unknown."""
    recv_splits: tuple[int, ...] | None = None
    """For an uneven all_to_all, the elements that it receives from each rank of the group; else None, or if unknown."""
    record: int | None = None
    """Number of calls that the rank had recorded before, including those missing from its dump; None if not counted."""
    kind: str = ""
    """The kind of its group, see `kinds`."""

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
        size = self.sent if self.sent is not None else self.message_bytes
        return (self.kind, f"{self.op}{self.peer_ahead}", self.dtype, "" if self.op == "all_to_all" else str(size))

    @property
    def peer_ahead(self) -> str:
        """Distance to the peer of a message in the group's ring: ``" +1"`` for the next rank; empty for others."""
        ranks = self.group.ranks
        if self.pair is None or not {*self.pair} <= {*ranks}:
            return ""
        peer = self.pair[0] if self.pair[0] != self.rank else self.pair[1]
        return f" +{(ranks.index(peer) - ranks.index(self.rank)) % len(ranks)}"


class RankEnd(NamedTuple):
    """End of a rank: by itself, or stuck."""

    how: Literal["raised", "ended", "stopped", "killed"]
    text: str
    """Text after the rank's name: ``was killed by SIGKILL``, ``raised ValueError (bad sample 17) at train.py:5``."""
    line: str = ""
    """The line where it ended, ``"train.py:5"``; empty if unknown."""

    @property
    def is_of_process(self) -> bool:
        """True if its process is gone or stopped, wherever the program was; False if the program ended."""
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
    """The calls in program order."""
    has_evidence: bool = True
    """False for a rank that left no file, or an empty one."""
    has_empty_file: bool = False
    """True if the rank left an empty file: it was asked for its calls, and wrote none."""
    is_whole: bool = True
    """True if ``calls`` has all calls from the first one on; a ring buffer or a dump of active calls loses some."""
    enqueued: Mapping[GroupId, int] = field(default_factory=dict)
    """{group: last sequence number that the recorder counted, including calls that it no longer has}."""
    completed: Mapping[GroupId, int] = field(default_factory=dict)
    """{group: last sequence number that the recorder saw complete, including calls that it no longer has}."""
    replicas: frozenset[int] = frozenset()
    """The ranks that run the same program, judged by groups: the members of its groups without messages, except groups
    of all ranks."""
    stack: str = ""
    """The stack of the rank when it was ended, innermost call first; empty if unknown."""
    end: RankEnd | None = None
    """How the rank ended; None if its launcher ended it with the job, or if it is unknown."""
    earlier: EarlierBlock | None = None
    """The last block that the rank saved, if others are in a later one; else None."""

    @cached_property
    def pending(self) -> list[RankCall]:
        """Calls that have not completed, in program order."""
        return [call for call in self.calls if call.is_pending]

    @property
    def tells_whether_it_waits(self) -> bool:
        """False if the rank left no record, or no calls although it counted some that had not completed."""
        counted = any(number > self.completed.get(group, -1) for group, number in self.enqueued.items())
        return self.has_evidence and (bool(self.calls) or not counted)

    @property
    def waits_earlier(self) -> bool:
        """True if the rank waits in a call of an earlier block, and in none that is in the trace."""
        return self.earlier is not None and self.earlier.waits_in_call

    @property
    def last_of_aborted(self) -> list[RankCall]:
        """Last call of a rank that SIGABRT ended: gloo aborts a rank that gets a different size than it expects."""
        return list(self.calls[-1:]) if self._is_aborted else []

    @property
    def messages_of_aborted(self) -> list[RankCall]:
        """Last messages of a rank that SIGABRT ended, which may have been in flight."""
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
    """One collective of a group, or one message, with the known calls of its ranks."""

    id: InstanceId
    calls: dict[int, RankCall] = field(default_factory=dict)
    """{rank: its call}, for ranks whose call is known."""
    absent: tuple[int, ...] = ()
    """Ranks that take part in it and, by all records, have not issued it."""

    @property
    def pending(self) -> list[RankCall]:
        """Calls that have not completed."""
        return [call for call in self.calls.values() if call.is_pending]


@dataclass(frozen=True)
class JobCalls:
    """The evidence of all ranks of one job."""

    ranks: Mapping[int, RankCalls]
    world_size: int
    notes: tuple[str, ...] = ()
    """Limits of the evidence: files that could not be read, ranks without a file, …"""
    no_progress_for: str | None = None
    """The time for which no collective began or ended, ``"2 s"``; empty if the job ran out of time and this is unknown;
    None if the job is not known to be stuck."""
    unlisted: frozenset[GroupId] = frozenset()
    """The groups whose ranks no file lists; the ranks that called them are taken for all of their ranks."""

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
    def has_starts(self) -> bool:
        """True if starts on devices are recorded, which the flight recorder does if torch measures times."""
        return any(call.state == "started" for calls_of_rank in self.ranks.values() for call in calls_of_rank.pending)

    def knows_all(self, ranks: Iterable[int]) -> bool:
        """Return True if all calls of these ranks are known."""
        calls = [self.ranks.get(rank) for rank in ranks]
        return all(
            calls_of_rank is not None and calls_of_rank.is_whole and calls_of_rank.has_evidence
            for calls_of_rank in calls
        )

    def _absent(self, instance: Instance) -> Iterable[int]:
        """Yield the ranks of a collective's group that have not issued it."""
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

    A message is one instance for both its ranks if all calls of both are known, so that they can be counted. Otherwise
    each rank has a separate instance.
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

    If all calls of both ranks are known, message n of a pair is the n-th call at both ends. Otherwise the pending
    messages of both ends are matched in order.
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

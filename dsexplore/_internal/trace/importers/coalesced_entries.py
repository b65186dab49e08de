"""Join the entries of coalesced calls in a flight-recorder dump: collectives or messages that NCCL starts together.

torch records each member when it is issued, without a state of its own. An end entry follows, named ``nccl:coalesced``
or ``nccl:ALLGATHER_coalesced``. It has the state of the call and no sizes, and its ``is_p2p`` is false even if the
members are messages. Members and end share both sequence numbers. Which of the two a call of messages increments
depends on torch: ``collective_seq_id`` up to 2.8, ``p2p_seq_id`` after that.

A dump of only active entries omits the end of a completed call but keeps its members, which never end. Such a call is
told from one in flight by the record number that is missing after its members.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsexplore._internal.trace.importers.recorder_entry import LIBRARIES_WITHOUT_ENDS, RecorderEntry

_ENDS = ("coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced")


@dataclass
class _Call:
    """A coalesced call, or a single entry that may be one."""

    members: list[int]
    """Positions of the members among the entries."""
    end: int | None = None
    """Position of the end entry; None if there is none."""


def with_states_of_calls(entries: Sequence[RecorderEntry], ended_messages: Mapping[str, int]) -> list[RecorderEntry]:
    """Return the entries; members of a coalesced call have its state, and its end entry is removed.

    Args:
        entries: entries of one dump, in the order of issue.
        ended_messages: {group: number of its last message that ended}, for groups whose messages the dump counts.
    """
    if not any(entry.is_p2p or _is_end(entry) for entry in entries) and not is_of_active(entries):
        return _completed_by_later(list(entries))
    calls = _calls(entries)
    senders = {entry.group for entry in entries if entry.is_p2p}
    updated: dict[int, RecorderEntry] = dict(enumerate(entries))
    for call in calls:
        if call.end is None:
            continue
        end = entries[call.end]
        for at in call.members:
            updated[at] = updated[at]._replace(state=end.state, started=end.started, ended=end.ended, batch=end.record)
        if call.members:
            del updated[call.end]
        elif end.group in senders:  # the members are lost, and this group's coalesced calls are of messages
            updated[call.end] = end._replace(is_p2p=True)
    for at in _skipped(entries, calls):
        updated[at] = updated[at]._replace(state="completed")
    for at, entry in updated.items():
        if entry.is_p2p and entry.sequence <= ended_messages.get(entry.group, -1):
            updated[at] = entry._replace(state="completed")
    return _subtract_messages(_completed_by_later([updated[at] for at in sorted(updated)]))


def _calls(entries: Sequence[RecorderEntry]) -> list[_Call]:
    """Return the coalesced calls and single entries; members precede the end, with other groups' entries in between."""
    calls: list[_Call] = []
    open_calls: dict[tuple[str, tuple[int, int]], _Call] = {}
    for at, entry in enumerate(entries):
        key = entry.group, entry.numbers
        if _is_end(entry):
            call = open_calls.pop(key, None)
            if call is None:
                calls.append(_Call([], at))
            else:
                call.end = at
        elif key in open_calls:
            open_calls[key].members.append(at)
        else:
            open_calls[key] = _Call([at])
            calls.append(open_calls[key])
    return calls


def _is_end(entry: RecorderEntry) -> bool:
    return entry.raw_op.endswith("coalesced") and entry.raw_op.rpartition(":")[2] in _ENDS


def is_of_active(entries: Sequence[RecorderEntry]) -> bool:
    """Return True if the dump holds active entries only: it has gaps, and nothing that completed."""
    records = {entry.record for entry in entries}
    is_whole = not records or (min(records) == 0 and max(records) == len(records) - 1)
    return not is_whole and all(entry.state != "completed" for entry in entries)


def _skipped(entries: Sequence[RecorderEntry], calls: Sequence[_Call]) -> list[int]:
    """Return the positions of members of calls whose end entry is missing from a dump of active entries."""
    if not is_of_active(entries):
        return []
    records = {entry.record for entry in entries}
    groups_that_coalesce = {entries[call.members[0]].group for call in calls if _coalesces_messages(call, entries)}
    skipped: list[int] = []
    for call in calls:
        if call.end is not None:
            continue
        first, last = entries[call.members[0]], entries[call.members[-1]]
        # A single message may be a coalesced call too, if its group has coalesced calls of messages.
        is_coalesced = len(call.members) > 1 or (first.is_p2p and first.group in groups_that_coalesce)
        if is_coalesced and last.record + 1 not in records:
            skipped += call.members
    return skipped


def _coalesces_messages(call: _Call, entries: Sequence[RecorderEntry]) -> bool:
    """Return True if the call is certainly a coalesced call of messages."""
    return bool(call.members) and entries[call.members[0]].is_p2p and (call.end is not None or len(call.members) > 1)


def _completed_by_later(entries: list[RecorderEntry]) -> list[RecorderEntry]:
    """Return the entries; one whose end was lost is completed if a later entry of its group is.

    NCCL runs one group's collectives on one stream, in order; gloo has several threads and is skipped. A single message
    between two ranks may have its own stream, so only messages of coalesced calls, which share their sequence numbers,
    are changed.
    """
    last = {(entry.group, entry.is_p2p): i for i, entry in enumerate(entries) if entry.state == "completed"}
    overtaken = [
        i
        for i, entry in enumerate(entries)
        if entry.state != "completed"
        and not entry.raw_op.startswith(LIBRARIES_WITHOUT_ENDS)
        and i < last.get((entry.group, entry.is_p2p), -1)
    ]
    shared = Counter((entry.group, entry.numbers) for entry in entries) if overtaken else Counter()
    completed = list(entries)
    for i in overtaken:
        if not entries[i].is_p2p or shared[entries[i].group, entries[i].numbers] > 1:
            completed[i] = entries[i]._replace(state="completed")
    return completed


def _subtract_messages(entries: list[RecorderEntry]) -> list[RecorderEntry]:
    """Return the entries, with message calls subtracted from the sequence numbers of collectives.

    torch up to 2.8 counts calls of messages among the collectives, and ranks of a pipeline make different numbers of
    them.
    """
    counted: dict[str, set[int]] = defaultdict(set)
    for entry in entries:
        collective_number, message_number = entry.numbers
        if entry.is_p2p and collective_number and not message_number:
            counted[entry.group].add(collective_number)
    ordered = {group: sorted(numbers) for group, numbers in counted.items()}
    renumbered = []
    for entry in entries:
        if not entry.is_p2p and entry.group in ordered:
            entry = entry._replace(sequence=entry.sequence - bisect_left(ordered[entry.group], entry.sequence))
        renumbered.append(entry)
    return renumbered

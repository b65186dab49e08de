"""Coalesced calls in a flight-recorder dump: several collectives or messages that NCCL starts together.

torch records each member when it is issued, without a state of its own, and after them one more entry, named
``nccl:coalesced`` or ``nccl:ALLGATHER_coalesced``. That one has the state of the call and no sizes, and ``is_p2p`` is
false in it even where the members are messages. Members and end share both sequence numbers. Which of the two a call of
messages increments depends on torch: ``collective_seq_id`` up to 2.8, ``p2p_seq_id`` after that.

A dump of active entries only omits the end of a completed call but keeps its members, which never end. Such a call
differs from one in flight by the record that is missing after its members.
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
    """Positions among the entries."""
    end: int | None = None


def with_states_of_calls(entries: Sequence[RecorderEntry], ended_messages: Mapping[str, int]) -> list[RecorderEntry]:
    """Return the entries, giving members of a coalesced call its state and dropping the entry that ended it.

    Args:
        entries: of one dump, in the order of issue.
        ended_messages: {group: number of the last message that ended}, where the dump counts them.
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
        elif end.group in senders:  # its messages are lost: they are no collective of the group
            updated[call.end] = end._replace(is_p2p=True)
    for at in _skipped(entries, calls):
        updated[at] = updated[at]._replace(state="completed")
    for at, entry in updated.items():
        if entry.is_p2p and entry.sequence <= ended_messages.get(entry.group, -1):
            updated[at] = entry._replace(state="completed")
    return _subtract_messages(_completed_by_later([updated[at] for at in sorted(updated)]))


def _calls(entries: Sequence[RecorderEntry]) -> list[_Call]:
    """Return the coalesced calls; members precede the end entry, and entries of other groups may be interleaved."""
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
    of_several = {entries[call.members[0]].group for call in calls if _is_of_several(call, entries)}
    return [
        at
        for call in calls
        if call.end is None and (len(call.members) > 1 or _may_be_single_message(call, entries, of_several))
        if entries[call.members[-1]].record + 1 not in records
        for at in call.members
    ]


def _is_of_several(call: _Call, entries: Sequence[RecorderEntry]) -> bool:
    """Return True if the call is known to be a coalesced call of messages."""
    return bool(call.members) and entries[call.members[0]].is_p2p and (call.end is not None or len(call.members) > 1)


def _may_be_single_message(call: _Call, entries: Sequence[RecorderEntry], of_several: set[str]) -> bool:
    """Return True if a single message may be a coalesced call: its group has coalesced calls of messages."""
    entry = entries[call.members[0]]
    return entry.is_p2p and entry.group in of_several


def _completed_by_later(entries: list[RecorderEntry]) -> list[RecorderEntry]:
    """Return the entries, setting those whose end was lost to completed if a later one of their group completed.

    NCCL runs one group's collectives on one stream, in order; gloo has several threads and is skipped. A single message
    between two ranks may have its own stream, so only messages of a call of several, which share their sequence
    numbers, are changed.
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
        if entry.is_p2p and not entry.numbers[1] and entry.numbers[0]:
            counted[entry.group].add(entry.numbers[0])
    ordered = {group: sorted(numbers) for group, numbers in counted.items()}
    return [
        entry
        if entry.is_p2p or entry.group not in ordered
        else entry._replace(sequence=entry.sequence - bisect_left(ordered[entry.group], entry.sequence))
        for entry in entries
    ]

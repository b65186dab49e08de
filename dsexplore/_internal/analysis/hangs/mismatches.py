"""Finds collectives that the ranks of a group called differently: with another op, size, dtype, root or reduction.

Ranks that call one op from different lines may pass a collective of gloo although they have diverged. That is found if
all ranks called the op from one of these lines together before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from dsexplore._internal.analysis.hangs.rank_calls import GroupId, Instance, JobCalls, RankCall

Field = Literal["op", "size", "root", "dtype", "reduction", "line", "count"]
"""The property in which calls differ. ``line``: only the line of the call. ``count``: some ranks made no such call."""

_REDUCED = frozenset({"broadcast", "reduce"})
"""Ops for which all ranks pass tensors of one size, which only some of them send or receive."""
_OF_ANY_SIZE = frozenset({"all_to_all", "gather", "scatter"})
"""Ops for which ranks may pass different sizes."""


class Signature(NamedTuple):
    """The properties of a call that all ranks of its group must agree on; None or empty if irrelevant or unknown."""

    op: str
    sent: int | None = None
    """Number of elements that the rank passes in."""
    received: int | None = None
    """Number of elements that the rank gets."""
    root: int | None = None
    dtype: str = ""
    reduction: str = ""


@dataclass(frozen=True)
class Mismatch:
    """The first collective of a group that its ranks called differently."""

    instance: Instance
    classes: tuple[tuple[int, ...], ...]
    """Groups of ranks that made the same call, the largest first; for `differences`, also the ranks without a call."""
    field: Field
    is_harmful: bool
    """True if ranks hang in it or after it. A mismatch that all ranks passed, and after which calls agree again, does
    not cause a hang."""

    @property
    def minority(self) -> tuple[int, ...]:
        """Ranks that did not make the call of the majority; empty if there is no majority."""
        first, *rest = self.classes
        if len(first) <= max(len(others) for others in rest):
            return ()
        return tuple(sorted(rank for others in rest for rank in others))


def mismatches(job: JobCalls) -> list[Mismatch]:
    """Return the first mismatch of each group, in the order of groups."""
    result = []
    for instances in _collectives_by_group(job):
        called = [instance for instance in instances if len(instance.calls) > 1]
        differing = [instance for instance in called if _field(instance)]
        if differing:
            result.append(_described(job, differing[0], called, differing))
        elif job.waiting and (parted := _parted_lines(called)) is not None:
            result.append(parted)
    return sorted(result, key=lambda mismatch: min(call.position for call in mismatch.instance.calls.values()))


def differences(job: JobCalls) -> list[Mismatch]:
    """Return the first collective of each group that not all its ranks called, or that they called differently.

    Args:
        job: the logs of all ranks, in none of which a call waits.
    """
    result = []
    for instances in _collectives_by_group(job):
        first = next((instance for instance in instances if instance.absent or _field(instance)), None)
        if first is not None:
            sides = [*_classes(first), *([first.absent] if first.absent else [])]
            sides.sort(key=lambda ranks: (-len(ranks), ranks))
            result.append(Mismatch(first, tuple(sides), _field(first) or "count", is_harmful=True))
    return result


def _collectives_by_group(job: JobCalls) -> list[list[Instance]]:
    """Return the collectives of each group, in the order of their numbers."""
    by_group: dict[GroupId, list[Instance]] = defaultdict(list)
    for instance in job.instances.values():
        if instance.id.pair is None:
            by_group[instance.id.group].append(instance)
    return [
        sorted(instances, key=lambda instance: (instance.id.number, instance.id.part))
        for instances in by_group.values()
    ]


def _described(job: JobCalls, first: Instance, instances: list[Instance], differing: list[Instance]) -> Mismatch:
    """Return the mismatch of a group.

    Args:
        job: the evidence of all ranks.
        first: the group's first collective that ranks called differently.
        instances: the group's collectives that at least two ranks called, in order.
        differing: those of them that ranks called differently.
    """
    hang = any(instance.pending for instance in instances if instance.id.number >= first.id.number)
    aborted = any(call is last for rank, call in first.calls.items() for last in job.ranks[rank].last_of_aborted)
    got_through = not first.pending and not aborted and differing[-1] is not instances[-1]
    sides = _classes(first)
    if len(sides) == 1:  # an all_to_all whose parts or sums differ
        sides = _sides_of_parts(differing_parts(first)) or [(rank,) for rank in sorted(first.calls)]
    return Mismatch(
        instance=first, classes=tuple(sides), field=_field(first) or "size", is_harmful=hang and not got_through
    )


def _sides_of_parts(parts: Sequence[UnlikePart]) -> list[tuple[int, ...]]:
    """Return the ranks between which parts differ: a rank that is part of all differences against the others.

    If there is no such rank, each rank is a side of its own.
    """
    ends = [{part.sender, part.receiver} for part in parts]
    ranks = set().union(*ends)
    odd = set(ranks).intersection(*ends) if len(ends) > 1 else set()
    if len(odd) == 1 and len(ranks) > 2:
        return [tuple(sorted(ranks - odd)), tuple(odd)]
    return [(rank,) for rank in sorted(ranks)]


def _classes(instance: Instance) -> list[tuple[int, ...]]:
    """Return groups of ranks that made equal calls, the largest first."""
    classes: dict[object, list[int]] = defaultdict(list)
    for rank, call in sorted(instance.calls.items()):
        classes[signature(call)].append(rank)
    return _most_first(classes.values())


def _most_first(sides: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    return sorted(map(tuple, sides), key=lambda ranks: (-len(ranks), ranks))


def _parted_lines(instances: Sequence[Instance]) -> Mismatch | None:
    """Return the first collective that ranks called from different lines, after all had called one of these together.

    Example: three ranks call a barrier at line 7 three times; then ranks 0 and 1 call it at line 7, rank 2 at line 8.
    Ranks that use different lines from the start, as a broadcast's root may, have not diverged.
    """
    together: set[str] = set()
    for instance in instances:
        by_line: dict[str, list[int]] = defaultdict(list)
        for rank, call in sorted(instance.calls.items()):
            by_line[call.source].append(rank)
        if "" in by_line or instance.absent:
            return None
        if len(by_line) > 1:
            parted = bool(together & by_line.keys())
            sides = tuple(_most_first(by_line.values()))
            return Mismatch(instance, sides, "line", is_harmful=False) if parted else None
        together |= by_line.keys()
    return None


def torn_message(job: JobCalls) -> Instance | None:
    """Return the first message whose ends differ in size, of a rank that SIGABRT ended, as gloo aborts it for that."""
    for calls in job.ranks.values():
        for call in calls.messages_of_aborted:
            message = job.instance_of(call)
            if _differ(end.message_bytes for end in message.calls.values()):
                return message
    return None


def signature(call: RankCall) -> Signature:
    """Return the properties of a call that must agree on all ranks of a group."""
    op, sent, received, root = call.op, call.sent, call.received, call.root
    if op == "barrier":
        return Signature(op)
    if op in _OF_ANY_SIZE:
        return Signature(op, root=root, dtype=call.dtype if op == "all_to_all" else "", reduction=call.reduction)
    if op == "all_reduce":
        root, sent = None, sent or received
    elif op in _REDUCED:
        sent, received = sent or received, None
    elif op == "all_gather":
        root, sent = None, sent if call.has_equal_parts else None
    elif op == "reduce_scatter":
        root, received = None, received if call.has_equal_parts else None
    else:
        root = None
    return Signature(op, sent, received, root, call.dtype, call.reduction)


def _field(instance: Instance) -> Field | None:
    """Return the property in which the ranks' calls differ; None if they are equal."""
    calls = instance.calls.values()
    if differing_parts(instance):
        return "size"
    unlike = {(*call.token, call.received, call.root, call.has_equal_parts, call.reduction): call for call in calls}
    difference = _differing([signature(call) for call in unlike.values()]) if len(unlike) > 1 else None
    if difference:
        return difference
    return "size" if _sums_differ(instance) or any(map(_is_torn, instance.pending)) else None


def _differing(signatures: Sequence[Signature]) -> Field | None:
    """Return the first property in which signatures differ; unknown values differ from none."""
    ops, sent, received, roots, dtypes, reductions = zip(*signatures, strict=True)
    if _differ(ops):
        return "op"
    if _differ(sent) or _differ(received):
        return "size"
    if _differ(roots):
        return "root"
    if _differ(dtype or None for dtype in dtypes):
        return "dtype"
    return "reduction" if _differ(reduction or None for reduction in reductions) else None


def _is_torn(call: RankCall) -> bool:
    """Return True if the sizes of a call's input and output do not fit each other."""
    parts, sent, received = len(call.group.ranks), call.sent, call.received
    if sent is None or received is None:
        return False
    if call.op == "all_reduce":
        return sent != received
    if parts < 2 or not call.has_equal_parts or call.op not in ("all_gather", "reduce_scatter"):
        return False
    return sent * parts != received if call.op == "all_gather" else sent != received * parts


def _differ(values: Iterable[object]) -> bool:
    return len({value for value in values if value is not None}) > 1


class UnlikePart(NamedTuple):
    """A part of an uneven all_to_all that one rank sends and another expects in a different size."""

    sender: int
    receiver: int
    sent: int
    """Number of elements that the sender sends."""
    expected: int
    """Number of elements that the receiver expects."""


def differing_parts(instance: Instance) -> list[UnlikePart]:
    """Return the parts of an uneven all_to_all whose ends are both known and differ in size.

    Example: rank 1 sends ``[4, 2, 2]`` elements where rank 0 receives ``[2, 2, 2]``: ``UnlikePart(1, 0, 4, 2)``.
    """
    members, calls = instance.id.group.ranks, instance.calls
    if all(call.send_splits is None and call.recv_splits is None for call in calls.values()):
        return []
    ranks = [rank for rank in members if rank in calls]
    places = [members.index(rank) for rank in ranks]
    sent = np.array([_shares(calls[rank], calls[rank].send_splits) for rank in ranks])[:, places]
    expected = np.array([_shares(calls[rank], calls[rank].recv_splits) for rank in ranks])[:, places].T
    differ = np.argwhere((sent != expected) & (sent >= 0) & (expected >= 0))
    return [UnlikePart(ranks[i], ranks[j], int(sent[i, j]), int(expected[i, j])) for i, j in differ]


def _shares(call: RankCall, splits: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the number of elements for each rank of a call's group, equal ones without splits; -1 if unknown."""
    count = len(call.group.ranks)
    if splits is None and call.sent is not None and call.op == "all_to_all":
        splits = (call.sent // count,) * count
    return splits if splits is not None and len(splits) == count else (-1,) * count


def _sums_differ(instance: Instance) -> bool:
    """Return True if the ranks of an all_to_all together send more or less than they receive."""
    calls = list(instance.calls.values())
    if calls[0].op != "all_to_all" or len(calls) < len(instance.id.group.ranks):
        return False
    sent, received = [call.sent for call in calls], [call.received for call in calls]
    if None in sent or None in received:
        return False
    return sum(filter(None, sent)) != sum(filter(None, received))

"""Ranks of a circle that left out a collective, or called one too many: told by how many the ranks of the job call.

Worked example: ranks 0 and 1 reduce 32 times in their pair before all ranks reduce together. Rank 1 left one out, and
waits in the collective of all ranks; rank 0 waits in the pair's 32nd for rank 1. Ranks 2 to 15, in pairs of the same
kind, have called 32 too, so rank 1 is the odd one. Had they called 31, rank 0 would be.
"""

from __future__ import annotations

from collections import Counter

from dsexplore.analysis.hangs.rank_calls import Call, GroupId, Instance, Job, RankCalls
from dsexplore.analysis.hangs.wavefront import Wavefront


def went_past(job: Job, front: Wavefront, circle: set[int]) -> set[int]:
    """The odd ranks, as far as most ranks agree.

    Args:
        job: the evidence of all ranks.
        front: of the same job.
        circle: ranks that wait for each other.
    """
    kinds = {call.group: call.kind for known in job.ranks.values() for call in known.calls}
    found: set[int] = set()
    for instance in {one.id: one for rank in circle for one in front.awaited.get(rank, ())}.values():
        kind = kinds[instance.id.group]
        for rank in circle.intersection(instance.absent):
            head = front.heads[rank][0]
            ahead = [call.rank for call in instance.calls.values() if _comes_before(call, job.instance_of(head))]
            if ahead:
                before = _numbers_before(job, head, kind, kinds)
                votes = Counter(before.values())
                mine, theirs = (votes[before[one]] if one in before else 0 for one in (rank, ahead[0]))
                if mine and theirs and mine != theirs:
                    found |= {rank} if mine < theirs else set(ahead)
    return found


def _comes_before(call: Call, instance: Instance) -> bool:
    """Whether a rank issued a call before its part in another collective."""
    later = instance.calls.get(call.rank)
    return later is not None and call.position < later.position


def _numbers_before(job: Job, head: Call, kind: str, kinds: dict[GroupId, str]) -> dict[int, int]:
    """By rank: how many collectives it called in its group of a kind before the one that stands where ``head`` does, of
    the ranks of which both are known."""
    found = {}
    for rank, known in job.ranks.items():
        at = next((call.position for call in known.calls if (call.kind, call.number) == (head.kind, head.number)), None)
        number = _number_before(known, at, kind, kinds) if at is not None else None
        if number is not None:
            found[rank] = number
    return found


def _number_before(known: RankCalls, at: int, kind: str, kinds: dict[GroupId, str]) -> int | None:
    own = [call for call in known.calls if call.kind == kind and not call.is_message]
    before = [call.number for call in own if call.position < at]
    if before:
        return max(before)
    if own:
        return min(call.number for call in own) - 1
    return next((number for group, number in known.highest.items() if kinds.get(group) == kind), None)

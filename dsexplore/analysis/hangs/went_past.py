"""Ranks that left out a collective, or called one too many: told by how many the ranks of the job call.

Worked example: ranks 0 and 1 reduce 32 times in their pair before all ranks reduce together. Rank 1 left one out, and
waits in the collective of all ranks; rank 0 waits in the pair's 32nd for rank 1. Ranks 2 to 15, in pairs of the same
kind, have called 32 too, so rank 1 is the odd one. Had they called 31, rank 0 would be.

A dump of what is active alone does not say that they have. Yet each call is numbered among all that its rank recorded:
the collective of all ranks is call 41 of ranks 0 and 2 to 15, and call 40 of rank 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dsexplore.analysis.hangs.rank_calls import Call, GroupId, Instance, Job, RankCalls
from dsexplore.analysis.hangs.wavefront import Wavefront


def went_past(job: Job, front: Wavefront, circle: set[int]) -> set[int]:
    """Return the ranks of a cycle that skipped a collective or issued an extra one, by majority vote of the ranks.

    Args:
        job: the evidence of all ranks.
        front: who waits for whom in this job.
        circle: ranks that wait for one another.
    """
    kinds = {call.group: call.kind for known in job.ranks.values() for call in known.calls}
    found: set[int] = set()
    for instance in {one.id: one for rank in circle for one in front.awaited.get(rank, ())}.values():
        kind = kinds[instance.id.group]
        for rank in circle.intersection(instance.absent):
            head = front.heads[rank][0]
            ahead = [call.rank for call in instance.calls.values() if _comes_before(call, job.instance_of(head))]
            if ahead:
                odd = _of_fewer_votes(_numbers_before(job, head, kind, kinds), rank, ahead[0])
                odd = recorded_otherwise(job, head, rank, ahead[0]) if odd is None else odd
                found |= set() if odd is None else {rank} if odd == rank else set(ahead)
    return found


def recorded_otherwise(job: Job, place: Call, behind: int, ahead: int) -> int | None:
    """Return which of two ranks issued an odd number of calls before a collective, by vote of the ranks like them.

    Args:
        job: the evidence of all ranks.
        place: a call of that collective, or its counterpart in another group of the kind.
        behind: a rank that recorded fewer calls; the result is None if it did not.
        ahead: a rank that recorded more calls.
    """
    asked = job.ranks[behind].alike | job.ranks[ahead].alike | {behind, ahead}
    before = {
        call.rank: call.record
        for rank in asked & job.ranks.keys()
        for call in job.ranks[rank].calls
        if call.record is not None and (call.kind, call.number, call.is_message) == (place.kind, place.number, False)
    }
    if not {behind, ahead} <= before.keys() or before[behind] >= before[ahead]:
        return None
    return _of_fewer_votes(before, behind, ahead)


def _of_fewer_votes(numbers: Mapping[int, int], one: int, other: int) -> int | None:
    """Return which of two ranks has the number that fewer ranks share; None on a tie or if either number is unknown."""
    votes = Counter(numbers.values())
    mine, theirs = (votes[numbers[rank]] if rank in numbers else 0 for rank in (one, other))
    if not mine or not theirs or mine == theirs:
        return None
    return one if mine < theirs else other


def _comes_before(call: Call, instance: Instance) -> bool:
    """Return True if the rank of `call` issued it before its call of `instance`."""
    later = instance.calls.get(call.rank)
    return later is not None and call.position < later.position


def _numbers_before(job: Job, head: Call, kind: str, kinds: dict[GroupId, str]) -> dict[int, int]:
    """Return {rank: number of collectives in its group of `kind` before its counterpart of `head`}.

    Ranks for which either call is not recorded are omitted.
    """
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

"""Finds ranks to blame by the calls of others: ranks without a record, and ranks that issued more or fewer calls.

*Ranks without a record* left no file or an empty one. Such a rank may itself wait for a third one. All ranks run one
program, so it had to make the same calls, in its own groups, as a waiting rank made before the collective in which it
waits. If the other members of those groups recorded that all of these calls ended, no call blocked it.

Worked example: ranks 0–3 reduce in the pairs (0, 1) and (2, 3), then in (0, 2) and (1, 3). Rank 0 waits for rank 2 in
(0, 2), and rank 2 left nothing. Before that, rank 0 called its pair's all_reduce 7. Rank 3 recorded that all_reduce 7
of (2, 3) ended: rank 2 completed it, and did not reach (0, 2).

*Ranks that skipped a collective, or issued an extra one*, are found by a vote on the number of calls.

Worked example: ranks 0 and 1 reduce 32 times in their pair before all ranks reduce together. Rank 1 skipped one, and
waits in the collective of all ranks; rank 0 waits in the pair's 32nd for rank 1. Ranks 2 to 15, in pairs of the same
kind, have called 32 too, so rank 1 is outvoted. Had they called 31, rank 0 would be.

A dump of active calls alone does not show how many came before. But each call is numbered among all that its rank
recorded: the collective of all ranks is call 41 of ranks 0 and 2 to 15, and call 40 of rank 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from dsexplore._internal.analysis.hangs.rank_calls import GroupId, Instance, JobCalls, RankCall, RankCalls
from dsexplore._internal.analysis.hangs.wavefront import Wavefront


def stopped_unseen(job: JobCalls, front: Wavefront) -> set[int]:
    """Return the ranks without a record that others wait for and that were not blocked by another rank."""
    if not front.for_unseen:
        return set()
    ended, of_kind = _ended(job), _groups_by_kind(job)
    return {
        rank
        for instance in front.for_unseen
        for rank in instance.absent
        if _came_near(job, rank, instance, ended, of_kind)
    }


def _ended(job: JobCalls) -> dict[GroupId, int]:
    """Return {group: highest sequence number of a collective that completed on any rank}."""
    last: dict[GroupId, int] = {}
    for rank_calls in job.ranks.values():
        for call in rank_calls.calls:
            if not call.is_message and not call.is_pending:
                last[call.group] = max(last.get(call.group, -1), call.number)
    return last


def _groups_by_kind(job: JobCalls) -> dict[str, set[GroupId]]:
    groups: dict[str, set[GroupId]] = defaultdict(set)
    for rank_calls in job.ranks.values():
        for call in rank_calls.calls:
            groups[call.kind].add(call.group)
    return groups


def _came_near(
    job: JobCalls, rank: int, instance: Instance, ended: dict[GroupId, int], of_kind: dict[str, set[GroupId]]
) -> bool:
    """Return True if an unseen rank passed all calls that some rank waiting in `instance` made before it."""
    return any(_passed_all(job, rank, waiting, instance, ended, of_kind) for waiting in instance.calls)


def _passed_all(
    job: JobCalls,
    rank: int,
    waiting: int,
    instance: Instance,
    ended: dict[GroupId, int],
    of_kind: dict[str, set[GroupId]],
) -> bool:
    """Return True if an unseen rank passed all calls that one rank waiting in `instance` made before it.

    Args:
        job: the evidence of all ranks.
        rank: the rank without a record.
        waiting: the waiting rank.
        instance: the collective in which it waits.
        ended: the result of `_ended`.
        of_kind: {kind: its groups}.
    """
    position = instance.calls[waiting].position
    before = [call for call in job.ranks[waiting].calls if call.position < position]
    if not before or any(call.is_message for call in before) or all(call.is_pending for call in before):
        return False
    last = {call.kind: call.number for call in before}
    for kind, number in last.items():
        groups = [group for group in of_kind[kind] if rank in group.ranks]
        if len(groups) != 1 or ended.get(groups[0], -1) < number:
            return False
    return True


def went_past(job: JobCalls, front: Wavefront, circle: set[int]) -> set[int]:
    """Return the ranks of a cycle that skipped a collective or issued an extra one, by majority vote of the ranks.

    Args:
        job: the evidence of all ranks.
        front: the waiting ranks of the job.
        circle: ranks that wait for one another.
    """
    kinds = {call.group: call.kind for rank_calls in job.ranks.values() for call in rank_calls.calls}
    outvoted: set[int] = set()
    for instance in {awaited.id: awaited for rank in circle for awaited in front.awaited.get(rank, ())}.values():
        kind = kinds[instance.id.group]
        for rank in circle.intersection(instance.absent):
            head = front.heads[rank][0]
            ahead = [call.rank for call in instance.calls.values() if _comes_before(call, job.instance_of(head))]
            if ahead:
                found = _outvoted_rank(_numbers_before(job, head, kind, kinds), rank, ahead[0])
                if found is None:
                    found = recorded_otherwise(job, head, rank, ahead[0])
                if found is not None:
                    outvoted.update([rank] if found == rank else ahead)
    return outvoted


def recorded_otherwise(job: JobCalls, place: RankCall, behind: int, ahead: int) -> int | None:
    """Return which of two ranks issued other calls before a collective than most of their replicas did.

    Args:
        job: the evidence of all ranks.
        place: a call of that collective, or its counterpart in another group of the kind.
        behind: the rank that recorded fewer calls.
        ahead: the rank that recorded more calls.

    Returns:
        The rank; None on a tie, or if `behind` did not record fewer calls.
    """
    asked = job.ranks[behind].replicas | job.ranks[ahead].replicas | {behind, ahead}
    before = {
        call.rank: call.record
        for rank in asked & job.ranks.keys()
        for call in job.ranks[rank].calls
        if call.record is not None and (call.kind, call.number, call.is_message) == (place.kind, place.number, False)
    }
    if not {behind, ahead} <= before.keys() or before[behind] >= before[ahead]:
        return None
    return _outvoted_rank(before, behind, ahead)


def _outvoted_rank(numbers: Mapping[int, int], rank: int, other: int) -> int | None:
    """Return which of two ranks has the number that fewer ranks share; None on a tie or if either number is unknown."""
    votes = Counter(numbers.values())
    mine, theirs = (votes[numbers[voter]] if voter in numbers else 0 for voter in (rank, other))
    if not mine or not theirs or mine == theirs:
        return None
    return rank if mine < theirs else other


def _comes_before(call: RankCall, instance: Instance) -> bool:
    """Return True if the rank of `call` issued it before its call of `instance`."""
    later = instance.calls.get(call.rank)
    return later is not None and call.position < later.position


def _numbers_before(job: JobCalls, head: RankCall, kind: str, kinds: dict[GroupId, str]) -> dict[int, int]:
    """Return {rank: number of collectives in its group of `kind` before its counterpart of `head`}.

    Ranks for which either call is not recorded are omitted.
    """
    numbers = {}
    for rank, rank_calls in job.ranks.items():
        same_place = (call for call in rank_calls.calls if (call.kind, call.number) == (head.kind, head.number))
        position = next((call.position for call in same_place), None)
        number = _number_before(rank_calls, position, kind, kinds) if position is not None else None
        if number is not None:
            numbers[rank] = number
    return numbers


def _number_before(rank_calls: RankCalls, position: int, kind: str, kinds: dict[GroupId, str]) -> int | None:
    """Return the sequence number of a rank's last collective of a kind before a position; None if it is unknown."""
    collectives = [call for call in rank_calls.calls if call.kind == kind and not call.is_message]
    before = [call.number for call in collectives if call.position < position]
    if before:
        return max(before)
    if collectives:
        return min(call.number for call in collectives) - 1
    return next((number for group, number in rank_calls.highest.items() if kinds.get(group) == kind), None)

"""Groups that ranks made of different ranks, and groups that some ranks still make while others wait in them.

``new_group`` is called by all ranks, and waits for them. So a rank that stands in it waits too, though in no recorded
call: whom it waits for is said by the groups that the others have made.

Worked example: rank 1 makes a group of ranks 0 and 1 where ranks 0 and 2 make it of all three. Rank 0 waits in the
group of three, rank 1 in that of two, and rank 2 still stands in ``new_group``. Rank 2 is a member of the first group
alone, so two ranks make it of three, and rank 1 is the odd one. Where rank 0 stands in ``new_group`` as well, rank 1 is
the only one that has gone on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from dsexplore.analysis.hangs.rank_calls import GroupId, JobCalls, RankCall
from dsexplore.analysis.hangs.standing import Standing, outnumbered

NEW_GROUP = "new_group"


class UnlikeGroups(NamedTuple):
    """Ranks that do not make a group as the others do."""

    calls: tuple[RankCall, ...]
    """The calls that wait in it, one per rank."""
    makers: dict[int, Standing]
    """Ranks that stand in ``new_group``, each with its place."""
    odd: tuple[int, ...]
    """The fewer ranks; empty where as many do one as the other."""


def makers(job: JobCalls) -> dict[int, Standing]:
    """Return the ranks that run and stand in ``new_group``, each with its place."""
    standing = {rank: Standing.of(calls.stack) for rank, calls in job.ranks.items() if _may_stand(job, rank)}
    return {rank: place for rank, place in standing.items() if place.call == NEW_GROUP}


def _may_stand(job: JobCalls, rank: int) -> bool:
    calls = job.ranks[rank]
    return bool(calls.stack) and calls.end is None and not calls.pending


def unlike_groups(job: JobCalls, heads: Iterable[RankCall], idle: Collection[int]) -> UnlikeGroups | None:
    """Return who makes a group otherwise than most, where others wait for ranks that stand in ``new_group``.

    Args:
        job: the evidence of all ranks.
        heads: the call that each waiting rank waits in.
        idle: ranks that others wait for and that wait in no recorded call.

    Returns:
        None if one of `idle` is elsewhere, or if the groups that ranks wait in do not contradict each other and no more
        ranks make one than wait.
    """
    standing = makers(job)
    if not idle or not standing.keys() >= set(idle):
        return None
    waiting = list(heads)
    return _of_contradiction(waiting, standing) or _of_unfinished(job, waiting, standing)


def _of_contradiction(waiting: list[RankCall], standing: dict[int, Standing]) -> UnlikeGroups | None:
    """Compare groups that one name stands for on different ranks; a maker counts to the one group that it is in."""
    by_name: dict[str, dict[GroupId, list[RankCall]]] = defaultdict(lambda: defaultdict(list))
    for call in waiting:
        by_name[call.group.made_as][call.group].append(call)
    for sides in by_name.values():
        calls = [call for calls in sides.values() for call in calls]
        if not any(call.rank in group.ranks for call in calls for group in sides if group != call.group):
            continue
        votes = {group: {call.rank for call in calls} for group, calls in sides.items()}
        for rank in standing:
            possible = [group for group in sides if rank in group.ranks]
            if len(possible) == 1:
                votes[possible[0]].add(rank)
        return UnlikeGroups(tuple(calls), standing, tuple(sorted(outnumbered(votes.values()))))
    return None


def _of_unfinished(job: JobCalls, waiting: list[RankCall], standing: dict[int, Standing]) -> UnlikeGroups | None:
    """Compare the ranks that make a group, at one line, with those that wait in one where none of these has called."""
    if len(set(standing.values())) > 1 or len(standing) < len(waiting):
        return None
    called = {call.group for rank in standing for call in job.ranks[rank].calls}
    if any(call.group in called or call.number > 1 for call in waiting):
        return None
    odd = sorted(call.rank for call in waiting) if len(standing) > len(waiting) else []
    return UnlikeGroups(tuple(waiting), standing, tuple(odd))

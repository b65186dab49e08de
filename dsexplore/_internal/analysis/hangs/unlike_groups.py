"""Finds process groups that ranks create with different members, or while others already wait in them.

All ranks call ``new_group``, which waits for all of them. So a rank inside it waits too, although in no recorded call.
The groups that the others have created show which ranks it waits for.

Worked example: rank 1 creates a group of ranks 0 and 1 where ranks 0 and 2 create it with all three. Rank 0 waits in
the group of three, rank 1 in that of two, and rank 2 is still in ``new_group``. Rank 2 is a member of the first group
only, so two ranks create it with three members, and rank 1 is the minority. If rank 0 is in ``new_group`` as well,
rank 1 is the only one that went on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import GroupId, JobCalls, RankCall
from dsexplore._internal.analysis.hangs.rank_places import RankPlace, outnumbered

NEW_GROUP = "new_group"


class UnlikeGroups(NamedTuple):
    """Ranks that create a group with other members than most ranks do."""

    calls: tuple[RankCall, ...]
    """The calls that wait in it, one per rank."""
    makers: dict[int, RankPlace]
    """Ranks that are inside ``new_group``, each with its place."""
    minority: tuple[int, ...]
    """The ranks that differ from most; empty if both sides have equally many ranks."""


def makers(job: JobCalls) -> dict[int, RankPlace]:
    """Return the running ranks that are inside ``new_group``, each with its place."""
    places = {rank: RankPlace.of(calls.stack) for rank, calls in job.ranks.items() if _may_be_inside(job, rank)}
    return {rank: place for rank, place in places.items() if place.call == NEW_GROUP}


def _may_be_inside(job: JobCalls, rank: int) -> bool:
    """Return True if a rank runs, is in no recorded call, and its stack is known."""
    calls = job.ranks[rank]
    return bool(calls.stack) and calls.end is None and not calls.pending


def unlike_groups(job: JobCalls, heads: Iterable[RankCall], idle: Collection[int]) -> UnlikeGroups | None:
    """Return the ranks that create a group differently from most, if ranks wait for others inside ``new_group``.

    Args:
        job: the evidence of all ranks.
        heads: the call that each waiting rank waits in.
        idle: ranks that others wait for and that are in no recorded call.

    Returns:
        The ranks. None if a rank of `idle` is not in ``new_group``, or if all ranks agree on their groups and fewer
        ranks create one than wait.
    """
    places = makers(job)
    if not idle or not places.keys() >= set(idle):
        return None
    waiting = list(heads)
    return _find_contradiction(waiting, places) or _find_unfinished(job, waiting, places)


def _find_contradiction(waiting: list[RankCall], places: dict[int, RankPlace]) -> UnlikeGroups | None:
    """Compare the groups of one name on different ranks; a rank in ``new_group`` votes for the one that lists it."""
    by_name: dict[str, dict[GroupId, list[RankCall]]] = defaultdict(lambda: defaultdict(list))
    for call in waiting:
        by_name[call.group.made_as][call.group].append(call)
    for sides in by_name.values():
        calls = [call for of_group in sides.values() for call in of_group]
        if not any(call.rank in group.ranks for call in calls for group in sides if group != call.group):
            continue
        votes = {group: {call.rank for call in of_group} for group, of_group in sides.items()}
        for rank in places:
            possible = [group for group in sides if rank in group.ranks]
            if len(possible) == 1:
                votes[possible[0]].add(rank)
        return UnlikeGroups(calls=tuple(calls), makers=places, minority=tuple(sorted(outnumbered(votes.values()))))
    return None


def _find_unfinished(job: JobCalls, waiting: list[RankCall], places: dict[int, RankPlace]) -> UnlikeGroups | None:
    """Compare the ranks inside ``new_group`` at one line with those that wait in a group unused by the former."""
    if len(set(places.values())) > 1 or len(places) < len(waiting):
        return None
    called = {call.group for rank in places for call in job.ranks[rank].calls}
    if any(call.group in called or call.number > 1 for call in waiting):
        return None
    minority = sorted(call.rank for call in waiting) if len(places) > len(waiting) else []
    return UnlikeGroups(calls=tuple(waiting), makers=places, minority=tuple(minority))

"""Ranks of which nothing is known, as they left no file or an empty one: which of them cannot be waiting for others.

A rank that left no record may have called what others wait for, and wait itself, for a third one. Ranks run a program:
what another rank called before the collective in which it waits for an unseen one, the unseen one had to call too, in
its own groups. Where all of that has ended, as the other members of those groups recorded, nothing held it up.

Worked example: ranks 0–3 reduce in the pairs (0, 1) and (2, 3), then in (0, 2) and (1, 3). Rank 0 waits for rank 2 in
(0, 2), and rank 2 left nothing. Before that, rank 0 called its pair's all_reduce 7. Rank 3 says that all_reduce 7 of
(2, 3) has ended: rank 2 came out of it, and did not come on to (0, 2).
"""

from __future__ import annotations

from collections import defaultdict

from dsexplore.analysis.hangs.rank_calls import GroupId, Instance, Job
from dsexplore.analysis.hangs.wavefront import Wavefront


def stopped_unseen(job: Job, front: Wavefront) -> set[int]:
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


def _ended(job: Job) -> dict[GroupId, int]:
    """Return {group: highest sequence number of a collective that completed on any rank}."""
    found: dict[GroupId, int] = {}
    for known in job.ranks.values():
        for call in known.calls:
            if not call.is_message and not call.is_pending:
                found[call.group] = max(found.get(call.group, -1), call.number)
    return found


def _groups_by_kind(job: Job) -> dict[str, set[GroupId]]:
    found: dict[str, set[GroupId]] = defaultdict(set)
    for known in job.ranks.values():
        for call in known.calls:
            found[call.kind].add(call.group)
    return found


def _came_near(
    job: Job, rank: int, instance: Instance, ended: dict[GroupId, int], of_kind: dict[str, set[GroupId]]
) -> bool:
    """Return True if an unseen rank passed all calls that some rank waiting in `instance` made before it."""
    return any(_passed_all(job, rank, waiting, instance, ended, of_kind) for waiting in instance.calls)


def _passed_all(
    job: Job, rank: int, waiting: int, instance: Instance, ended: dict[GroupId, int], of_kind: dict[str, set[GroupId]]
) -> bool:
    position = instance.calls[waiting].position
    before = [call for call in job.ranks[waiting].calls if call.position < position]
    if not before or any(call.is_message for call in before) or all(call.is_pending for call in before):
        return False
    last = {call.kind: call.number for call in before}
    for kind, number in last.items():
        own = [group for group in of_kind[kind] if rank in group.ranks]
        if len(own) != 1 or ended.get(own[0], -1) < number:
            return False
    return True

"""Who waits for whom: the order in which ranks and groups hold each other up, and where that order begins.

A rank waits in the first of its calls that has not ended; what it issued after that is held up with it. Such a
rank waits for the ranks that have not issued the same collective, and where all have, for those that are held up by
an earlier call of theirs. Followed from rank to rank, the waiting ends at ranks that wait for nobody, or goes round
in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from dsexplore.analysis.hangs.rank_calls import Call, Instance, Job


class Wavefront:
    """The call that holds up each rank of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def heads(self) -> dict[int, list[Call]]:
        """By rank: the call in which it waits, or several of one coalesced call; none for a rank that does not wait."""
        found = {}
        for rank, known in self.job.ranks.items():
            if known.pending:
                first = known.pending[0]
                together = first.batch is not None
                found[rank] = [call for call in known.pending if together and call.batch == first.batch] or [first]
        return found

    @cached_property
    def awaited(self) -> dict[int, list[Instance]]:
        """By rank: the instances in which others wait and that it has not issued."""
        found: dict[int, list[Instance]] = {}
        for instance in self.job.waiting:
            for rank in instance.absent:
                found.setdefault(rank, []).append(instance)
        return found

    @cached_property
    def waits_for(self) -> dict[int, set[int]]:
        """By waiting rank: the ranks that its own wait is for."""
        return {rank: set().union(*map(self._held_up_by, calls)) - {rank} for rank, calls in self.heads.items()}

    def _held_up_by(self, call: Call) -> set[int]:
        instance = self.job.instance_of(call)
        if not self._unseen.issuperset(instance.absent):
            return set(instance.absent)
        return set(instance.absent) | {
            rank for rank, other in instance.calls.items() if other.is_pending and not self._is_head(rank, other)
        }

    def _is_head(self, rank: int, call: Call) -> bool:
        return any(call is head for head in self.heads.get(rank, ()))

    @cached_property
    def _unseen(self) -> set[int]:
        """The ranks that left no record."""
        return {rank for rank, known in self.job.ranks.items() if not known.has_left_evidence}

    @cached_property
    def circles(self) -> list[set[int]]:
        """Ranks that wait for each other and for nobody else of whom a record is left: each a set of two or more.

        Of a rank without a record it is not known whether it came.
        """
        waits = {rank: awaited - self._unseen for rank, awaited in self.waits_for.items()}
        parts = strongly_connected(waits)
        return [part for part in parts if len(part) > 1 and all(waits.get(rank, set()) <= part for rank in part)]

    @cached_property
    def together(self) -> list[Instance]:
        """Instances in which all ranks wait, each in its first call that has not ended: nobody is missing there."""
        found = []
        for instance in self.job.waiting:
            is_whole = instance.id.pair is None and not instance.absent
            if is_whole and all(self._is_head(call.rank, call) for call in instance.pending):
                found.append(instance)
        return found


def strongly_connected(graph: Mapping[int, set[int]]) -> list[set[int]]:
    """The sets of nodes from each of which all others of the set are reached (Tarjan's algorithm, without
    recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    parts: list[set[int]] = []
    for root in graph:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        walk = [(root, iter(sorted(graph.get(root, ()))))]
        while walk:
            node, followers = walk[-1]
            for follower in followers:
                if follower not in order:
                    order[follower] = low[follower] = len(order)
                    stack.append(follower)
                    walk.append((follower, iter(sorted(graph.get(follower, ())))))
                    break
                if follower in stack:
                    low[node] = min(low[node], order[follower])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == order[node]:
                    part = set()
                    while node not in part:
                        part.add(stack.pop())
                    parts.append(part)
    return parts

"""Computes which ranks wait for which, and where the waiting begins.

A rank waits in the first of its calls that has not ended, which holds up its later calls. It waits for the ranks that
have not issued the same collective. If all have, it waits for those that are held up by an earlier call. Followed from
rank to rank, the waiting ends at ranks that wait for no other, or in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from dsexplore._internal.analysis.hangs.rank_calls import Instance, JobCalls, RankCall

END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""The ops that end on no rank before all ranks have come, as each rank needs data of every other."""


class Wavefront:
    """The call that blocks each rank of a job."""

    def __init__(self, job: JobCalls) -> None:
        self.job = job

    @cached_property
    def heads(self) -> dict[int, list[RankCall]]:
        """{waiting rank: the call it waits in, or several of one coalesced call}."""
        heads_of = {}
        for rank, calls in self.job.ranks.items():
            if calls.pending:
                first = calls.pending[0]
                together = first.batch is not None
                heads_of[rank] = [call for call in calls.pending if together and call.batch == first.batch] or [first]
        return heads_of

    @cached_property
    def awaited(self) -> dict[int, list[Instance]]:
        """{rank: instances in which others wait and that it has not issued}."""
        instances_of: dict[int, list[Instance]] = {}
        for instance in self.job.waiting:
            for rank in instance.absent:
                instances_of.setdefault(rank, []).append(instance)
        return instances_of

    @cached_property
    def waits_for(self) -> dict[int, set[int]]:
        """{waiting rank: ranks that it waits for}."""
        return {rank: set().union(*map(self._held_up_by, calls)) - {rank} for rank, calls in self.heads.items()}

    def _held_up_by(self, call: RankCall) -> set[int]:
        """Return the ranks that a call waits for."""
        instance = self.job.instance_of(call)
        if not self.unseen.issuperset(instance.absent):
            return set(instance.absent)
        return set(instance.absent) | {
            rank for rank, other in instance.calls.items() if other.is_pending and not self._is_head(rank, other)
        }

    def _is_head(self, rank: int, call: RankCall) -> bool:
        """Return True if a rank waits in a call, and not in an earlier one."""
        return any(call is head for head in self.heads.get(rank, ()))

    @cached_property
    def unseen(self) -> set[int]:
        """Ranks that left no record."""
        return {rank for rank, calls in self.job.ranks.items() if not calls.has_evidence}

    @cached_property
    def circles(self) -> list[set[int]]:
        """Sets of two or more ranks that wait for one another.

        They wait for no other ranks, except for ranks without a record and ranks that wait only for these. It is
        unknown for whom a rank without a record waits.
        """
        waits = {rank: awaited - self.unseen for rank, awaited in self.waits_for.items()}
        open_ends = self._waiting_for_unseen()
        components = [ranks for ranks in strongly_connected(waits) if len(ranks) > 1]
        return [ranks for ranks in components if all(waits.get(rank, set()) <= ranks | open_ends for rank in ranks)]

    def _waiting_for_unseen(self) -> set[int]:
        """Return the ranks that wait only for ranks without a record, directly or through other such ranks."""
        waiting: set[int] = set()
        while True:
            more = {
                rank for rank, awaited in self.waits_for.items() if awaited and awaited <= self.unseen | waiting
            } - waiting
            if not more:
                return waiting
            waiting |= more

    @cached_property
    def overtaken(self) -> dict[int, Instance]:
        """{rank: the collective in which it waits}, for collectives that have ended on another rank.

        Only collectives of `END_TOGETHER` count. Another rank's record or count of completed calls shows the end.
        """
        instance_of = {}
        for rank, calls in self.heads.items():
            call = calls[0]
            if call.op in END_TOGETHER and self.job.ranks[rank].completed.get(call.group, -1) < call.number:
                instance = self.job.instance_of(call)
                if any(self.has_ended(other, instance) for other in call.group.ranks if other != rank):
                    instance_of[rank] = instance
        return instance_of

    def has_ended(self, rank: int, instance: Instance) -> bool:
        """Return True if a collective is known to have ended on a rank."""
        calls, call = self.job.ranks.get(rank), instance.calls.get(rank)
        if call is not None:
            return not call.is_pending
        return calls is not None and calls.completed.get(instance.id.group, -1) >= instance.id.number

    @cached_property
    def together(self) -> list[Instance]:
        """Instances in which all ranks wait, each in its first pending call: no rank is missing."""
        return [instance for instance in self._unexplained if instance.id.pair is None and not instance.absent]

    @cached_property
    def unmet(self) -> list[Instance]:
        """Messages in which both ends wait, each in its first pending call: they do not match.

        A device that has not started a message leaves the same record. So only libraries with tagged messages are
        considered, which send and receive on the host.
        """
        return [
            instance
            for instance in self._unexplained
            if instance.id.pair is not None
            and len(instance.pending) == 2
            and all(call.has_tag for call in instance.pending)
        ]

    @cached_property
    def for_unseen(self) -> list[Instance]:
        """Instances from which only ranks without a record are missing.

        All other ranks wait there, each in its first pending call.
        """
        return [instance for instance in self._unexplained if instance.absent]

    @cached_property
    def _unexplained(self) -> list[Instance]:
        """Instances that no rank with a record blocks: none is missing, or waits in an earlier call."""
        return [
            instance
            for instance in self.job.waiting
            if self.unseen.issuperset(instance.absent)
            and all(self._is_head(call.rank, call) for call in instance.pending)
        ]


def strongly_connected(graph: Mapping[int, set[int]]) -> list[set[int]]:
    """Return the strongly connected components of a graph (Tarjan's algorithm, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    components: list[set[int]] = []
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
                    component = set()
                    while node not in component:
                        component.add(stack.pop())
                    components.append(component)
    return components

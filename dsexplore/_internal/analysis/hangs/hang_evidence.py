"""`HangEvidence` computes once per job what the rules of `blame` need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from dsexplore._internal.analysis.hangs.expected_calls import ExpectedCalls
from dsexplore._internal.analysis.hangs.mismatches import Mismatch
from dsexplore._internal.analysis.hangs.rank_calls import Instance, InstanceId, JobCalls, RankCall
from dsexplore._internal.analysis.hangs.wavefront import Wavefront


class HangEvidence:
    """The calls of a job that hangs, and what the rules of `blame` derive from them.

    Attributes:
        job: the calls of all ranks.
        front: the waiting ranks of the job.
        harmful: collectives that ranks called differently, and that did not end because of it.
    """

    def __init__(self, job: JobCalls, front: Wavefront, harmful: Sequence[Mismatch]) -> None:
        self.job, self.front, self.harmful = job, front, harmful

    @cached_property
    def expected(self) -> ExpectedCalls:
        """Calls that ranks are expected to make, by their earlier steps."""
        return ExpectedCalls(self.job)

    @cached_property
    def parted(self) -> set[InstanceId]:
        """Collectives that ranks called differently: a backend may abort a rank in one."""
        return {mismatch.instance.id for mismatch in self.harmful}

    @cached_property
    def idle(self) -> list[int]:
        """Ranks that others wait for and that wait in no call."""
        return [rank for rank in self.front.awaited if self._is_idle(rank)]

    @cached_property
    def died(self) -> dict[int, Instance]:
        """{rank whose process is gone or stopped: its call, in which others wait too}."""
        died = {}
        for rank, (call, *_) in self.front.heads.items():
            end, instance = self.job.ranks[rank].end, self.job.instance_of(call)
            is_gone = end is not None and end.is_of_process and not has_failed(call)
            if is_gone and instance.id not in self.parted and any(other.rank != rank for other in instance.pending):
                died[rank] = instance
        return died

    def _is_idle(self, rank: int) -> bool:
        """Return True if a rank waits in no call, or if it ended, and not because a call failed."""
        calls = self.job.ranks.get(rank)
        if calls is None:
            return False
        if calls.end is None:
            return calls.has_evidence and not calls.pending and not calls.waits_earlier
        if calls.end.how == "raised":
            return not any(map(has_failed, calls.pending))
        last = [*calls.pending, *calls.last_of_aborted]
        return not (calls.end.how == "killed" and any(self.job.instance_of(call).id in self.parted for call in last))

    def instances_without(self, ranks: Iterable[int]) -> tuple[Instance, ...]:
        """Return the instances that `ranks` are missing from, those first that a rank waits in before any other."""
        awaited = {instance.id: instance for rank in ranks for instance in self.front.awaited.get(rank, ())}
        heads = {id(call) for calls in self.front.heads.values() for call in calls}
        return tuple(
            sorted(awaited.values(), key=lambda instance: not any(id(call) in heads for call in instance.pending))
        )

    def instances_of(self, calls: Iterable[RankCall]) -> tuple[Instance, ...]:
        """Return the instances of calls, each once."""
        return tuple({self.job.instance_of(call).id: self.job.instance_of(call) for call in calls}.values())

    def unseen_in(self, instances: Iterable[Instance]) -> set[int]:
        """Return the ranks without a record that are absent from any of `instances`; they may have joined or not."""
        return {rank for instance in instances for rank in instance.absent} & self.front.unseen


def has_failed(call: RankCall) -> bool:
    """Return True if a call raised an error, for example as its peer had gone; that may have ended its rank."""
    return call.state == "failed"

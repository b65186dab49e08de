"""Ranks outside all recorded calls: in ``new_group``, at a store, in code of their own, while no call is open.

Where ranks are in a call of torch.distributed, they wait for those that ended. Where none is, a rank that torch's own
error names is what the others waited for, and then one that a signal ended: it does not come again. Else those are odd
that stand elsewhere than most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import JobCalls
from dsexplore._internal.analysis.hangs.standing import Standing, odd_ones

_NOT_AT_BARRIER = re.compile(r"Ranks? (\d+(?:, *\d+)*) failed to pass monitoredBarrier")
"""Error of ``monitored_barrier`` on rank 0."""


class Outside(NamedTuple):
    """Who holds up ranks that are in no recorded call."""

    culprits: tuple[int, ...]
    suspects: tuple[int, ...]
    """All ranks that may be meant, where there are no culprits."""


def outside(job: JobCalls) -> Outside | None:
    """Return who holds up a job in which no rank waits in a recorded call.

    Returns:
        None unless all running ranks are known to be stuck, which takes their stacks.
    """
    running = {rank: calls for rank, calls in job.ranks.items() if calls.end is None and calls.has_evidence}
    if job.stood is None or not running or not all(calls.stack for calls in running.values()):
        return None
    standing = {rank: Standing.of(calls.stack) for rank, calls in running.items()}
    ends = {rank: calls.end for rank, calls in job.ranks.items() if calls.end is not None}
    unseen = job.ranks.keys() - running.keys() - ends.keys()
    killed = tuple(sorted(rank for rank, end in ends.items() if end.how == "killed"))
    if ends and any(place.call for place in standing.values()):
        culprits = tuple(sorted(ends))
    else:
        culprits = _named(running, (end.text for end in ends.values())) or killed or odd_ones(standing)
    return Outside(culprits, () if culprits else tuple(sorted({*unseen, *running})))


def _named(running: Iterable[int], errors: Iterable[str]) -> tuple[int, ...]:
    """Return the running ranks that did not come to a ``monitored_barrier``, by the errors of those that did."""
    named = {int(rank) for text in errors for ranks in _NOT_AT_BARRIER.findall(text) for rank in ranks.split(",")}
    return tuple(sorted(named.intersection(running)))

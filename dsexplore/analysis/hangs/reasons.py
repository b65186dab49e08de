"""The reason of a hang as one word of a list, by what differs."""

from __future__ import annotations

from typing import Literal, get_args

from dsexplore.analysis.hangs.blame import Blame
from dsexplore.analysis.hangs.mismatches import Field
from dsexplore.analysis.hangs.rank_calls import Job
from dsexplore.analysis.hangs.wavefront import Wavefront

Reason = Literal[
    "none",
    "did not come",
    "raised",
    "ended",
    "stopped",
    "killed",
    "outside a collective",
    "other collective",
    "other size",
    "other dtype",
    "other root",
    "other reduction",
    "other group order",
    "messages in a circle",
    "device",
    "unknown",
]
"""In the order of this list:

* ``none``: nothing hangs;
* ``did not come``: others wait for the culprits, of which no more is known;
* ``raised``, ``ended``, ``stopped``, ``killed``: and they raised an exception, ended their program or its recorded
  block, stand still as by SIGSTOP, or were killed by a signal;
* ``outside a collective``: and they run, in other code, whose line is known;
* ``other collective``: they called another one than the others, or one too many;
* ``other size``, ``other dtype``, ``other root``, ``other reduction``: they called the same with another one of these;
* ``other group order``: ranks took their groups in different orders, and wait for each other;
* ``messages in a circle``: ranks wait for each other's messages;
* ``device``: all called it, and the culprits' devices do not begin or end it;
* ``unknown``: the evidence does not say.
"""
REASONS: tuple[Reason, ...] = get_args(Reason)

_OF_FIELD: dict[Field, Reason] = {
    "op": "other collective",
    "size": "other size",
    "dtype": "other dtype",
    "root": "other root",
    "reduction": "other reduction",
}
_HOW: tuple[Literal["killed", "raised", "stopped", "ended"], ...] = ("killed", "raised", "stopped", "ended")


def reason_of(job: Job, front: Wavefront, found: Blame) -> Reason:
    """Return the word for what the blame rests on.

    Args:
        job: the evidence of all ranks.
        front: of the same job.
        found: the blame.
    """
    if found.kind == "none":
        return "none"
    if found.kind in ("missing", "no evidence"):
        return _of_missing(job, found)
    if found.kind == "extra":
        return "other collective"
    if found.kind == "mismatch" and found.mismatch is not None:
        return _OF_FIELD.get(found.mismatch.field, "unknown")
    if found.kind == "messages":
        return _of_message(found)
    if found.kind == "order":
        return _of_circle(front, found)
    return "device" if found.kind == "device" and found.culprits else "unknown"


def _of_missing(job: Job, found: Blame) -> Reason:
    ends = {end.how for rank in found.culprits if (end := job.ranks[rank].end) is not None}
    for how in _HOW:
        if how in ends:
            return how
    is_elsewhere = any(job.ranks[rank].stack for rank in found.culprits if not job.ranks[rank].pending)
    return "outside a collective" if is_elsewhere else "did not come"


def _of_message(found: Blame) -> Reason:
    first, second = found.instances[0].pending
    if first.dtype != second.dtype and first.dtype and second.dtype:
        return "other dtype"
    known = first.message_bytes and second.message_bytes
    return "other size" if known and first.message_bytes != second.message_bytes else "messages in a circle"


def _of_circle(front: Wavefront, found: Blame) -> Reason:
    involved = found.suspects or {rank for instance in found.instances for rank in instance.calls} & front.heads.keys()
    are_messages = {front.heads[rank][0].is_message for rank in involved if rank in front.heads}
    if are_messages == {True}:
        return "messages in a circle"
    return "other group order" if are_messages == {False} else "other collective"

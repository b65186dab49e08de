"""The ranks that cause a hang, according to the evidence; `hang_report` has a word for each reason.

In this order:

1. *Missing*: ranks that others wait for and that wait for nothing themselves. In a program whose ranks call in one
   order, such a rank is stopped by something else than a collective: it left, it slept, it was in other code. Where
   they are most of the ranks, and their earlier steps do not have the collective that the others wait in, those others
   called one too many. Named with them are ranks without a record that nothing held up, and ranks that wait in nothing
   but what another rank has in flight too, which went on past it. Of other ranks without a record that are missing in
   the same collectives, one with an empty file is named, as it had nothing in flight to write; one without a file may
   have come, and is a suspect.
   So is a rank whose call in flight has ended on other ranks: what it waits in is not what holds it up.
   So is a rank whose process is gone or stopped in a call in which others wait, unless its backend aborted it there.
   Before that come messages whose ends name different peers, see `misdirected`: whom they wait for has done its part;
   and groups that a rank made of other ranks while those that others wait for still make it, see `unlike_groups`.
2. *Mismatch*: ranks that called another op, size, root or dtype than the most of their group under one sequence number.
3. *Behind*: ranks that others wait for, and whose own calls in flight do not explain it: a rank that waits for them
   has the same calls in flight, and went on past them.
4. *Order*: ranks that wait for each other in a circle, or in both ends of a message that do not meet. Named are the
   ranks that called another group than most of them, if all are in both; that did not call what they called before at
   that place; or that call more or fewer collectives of a group before the next one than most.
5. *Device*: all ranks are in one collective. Named are the ranks whose device has not begun it, or not ended it where
   others have, or that alone have not issued what follows.
6. *No evidence*: ranks that others wait for and of which nothing is known, where those others are all that is known to
   take part. They come last, as the file of a rank that did come may be lost: whatever does not end without it goes
   first. Where no times were taken, such a loss beside a device that stands still leaves the same records as one rank
   that died: the rank is named, as one cause is likelier than two, and the sentence has both explanations.

Where no rank waits in a recorded call though none has moved on, *outside*: ranks that ended while others wait in
``new_group``, at the store or the like, else those that stand elsewhere than most; see `standing`.

Where two sides have equally many ranks and the earlier steps do not say which of them is as usual, nobody is accused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dsexplore.analysis.hangs.expected_calls import ExpectedCalls
from dsexplore.analysis.hangs.misdirected import misdirected
from dsexplore.analysis.hangs.mismatches import Mismatch, mismatches, signature
from dsexplore.analysis.hangs.odd_ranks import stopped_unseen, went_past
from dsexplore.analysis.hangs.rank_calls import Instance, InstanceId, JobCalls, RankCall
from dsexplore.analysis.hangs.standing import Standing, odd_ones, outnumbered
from dsexplore.analysis.hangs.unlike_groups import unlike_groups
from dsexplore.analysis.hangs.wavefront import Wavefront

Kind = Literal[
    "none",
    "outside",
    "missing",
    "extra",
    "mismatch",
    "no evidence",
    "order",
    "messages",
    "misdirected",
    "device",
    "unknown",
]
"""Which step of the search found the culprits."""


@dataclass(frozen=True)
class Blame:
    """The ranks to blame, and the evidence."""

    kind: Kind
    culprits: tuple[int, ...] = ()
    """Empty where the evidence does not say."""
    suspects: tuple[int, ...] = ()
    """The ranks among which the cause is, where the evidence does not say which; beside culprits, ranks without a
    record of which it is not known whether they came."""
    instances: tuple[Instance, ...] = ()
    """The collectives in which the others wait for the culprits, or in which the ranks parted."""
    mismatch: Mismatch | None = None


def blame(job: JobCalls, front: Wavefront, mismatched: Iterable[Mismatch] | None = None) -> Blame:
    """Return the culprits of a job that hangs.

    Args:
        job: the evidence of all ranks.
        front: of the same job.
        mismatched: its `mismatches`, where they are known already.
    """
    if not job.waiting:
        untold = tuple(sorted(rank for rank, known in job.ranks.items() if not known.tells_whether_it_waits))
        return _outside(job) or (Blame("unknown", suspects=untold) if untold else Blame("none"))
    missed = misdirected(job, [call for calls in front.heads.values() for call in calls])
    if missed is not None:
        ends = (missed.sent.rank, missed.received.rank)
        instances = (job.instance_of(missed.sent), job.instance_of(missed.received))
        odd = () if missed.odd is None else (missed.odd,)
        return Blame("misdirected", odd, () if odd else tuple(sorted(ends)), instances)
    expected = ExpectedCalls(job)
    all_mismatches = mismatches(job) if mismatched is None else mismatched
    harmful = [mismatch for mismatch in all_mismatches if mismatch.is_harmful]
    parted = {mismatch.instance.id for mismatch in harmful}
    unlike = _unlike(job, front, parted)
    if unlike is not None:
        return unlike
    attempts = (
        _missing(job, front, expected, harmful, parted),
        *(_mismatch(job, mismatch, expected) for mismatch in harmful),
        _overtaken(front),
        _behind(job, front),
        *(_circle(job, front, circle, expected) for circle in front.circles),
        *(_unmet(instance) for instance in front.unmet),
        *(_device(job, front, instance) for instance in front.together if instance.id not in parted),
        *(_not_begun(job, instance) for instance in front.for_unseen),
    )
    answers = [answer for answer in attempts if answer is not None] or _without_evidence(job, front)
    sure = next((answer for answer in answers if answer.culprits), None)
    earlier = [rank for rank in front.awaited if job.ranks[rank].waits_earlier]
    return sure or next(iter(answers), Blame("unknown", suspects=tuple(sorted({*front.heads, *earlier}))))


def _outside(job: JobCalls) -> Blame | None:
    """Return the ranks outside all recorded calls that others wait for; None unless they are known to be stuck."""
    running = {rank: calls for rank, calls in job.ranks.items() if calls.end is None and calls.has_evidence}
    if job.stood is None or not running or not all(calls.stack for calls in running.values()):
        return None
    standing = {rank: Standing.of(calls.stack) for rank, calls in running.items()}
    waits = any(place.call for place in standing.values())
    left = sorted(rank for rank, calls in job.ranks.items() if calls.end is not None)
    unseen = sorted(job.ranks.keys() - running.keys() - set(left))
    culprits = tuple(left) if left and waits else odd_ones(standing)
    suspects = () if culprits else tuple(sorted({*unseen, *running}))
    return Blame("outside", culprits, suspects)


def _unlike(job: JobCalls, front: Wavefront, parted: Container[InstanceId]) -> Blame | None:
    idle = [rank for rank in front.awaited if _is_idle(job, rank, parted)]
    unlike = unlike_groups(job, [calls[0] for calls in front.heads.values()], idle)
    if unlike is None:
        return None
    instances = tuple({job.instance_of(call).id: job.instance_of(call) for call in unlike.calls}.values())
    suspects = () if unlike.odd else tuple(sorted({*unlike.makers, *(call.rank for call in unlike.calls)}))
    return Blame("order", unlike.odd, suspects, instances)


def _missing(
    job: JobCalls, front: Wavefront, expected: ExpectedCalls, harmful: list[Mismatch], parted: Container[InstanceId]
) -> Blame | None:
    died = _died_inside(job, front, parted)
    idle = sorted({*died, *(rank for rank in front.awaited if _is_idle(job, rank, parted))})
    if not idle:
        return None
    instances = (*_instances(front, idle), *died.values())
    waiting = sorted(front.heads)
    come_no_more = not all(job.ranks[rank].stack for rank in idle)  # those with a stack run, and may still come
    if (
        come_no_more
        and len(idle) > len(waiting)
        and not any(
            expected.is_expected(rank, next(iter(instance.calls.values()))) for instance in instances for rank in idle
        )
    ):
        return Blame("extra", tuple(waiting), instances=instances)
    odd = {rank for mismatch in harmful for rank in mismatch.minority} - set(idle)
    first = next((mismatch for mismatch in harmful if mismatch.minority), None)
    unseen = _unseen_with(front, instances)
    empty = {rank for rank in unseen if job.ranks[rank].has_empty_file}
    culprits = {*idle, *odd, *empty, *_overtaken_waiters(job, front), *stopped_unseen(job, front), *front.overtaken}
    suspects = unseen - culprits
    return Blame("missing", tuple(sorted(culprits)), tuple(sorted(suspects)), instances, mismatch=first)


def _died_inside(job: JobCalls, front: Wavefront, parted: Container[InstanceId]) -> dict[int, Instance]:
    """Return {rank that is gone or stopped: its call, in which others wait too}.

    Args:
        job: the evidence of all ranks.
        front: of the same job.
        parted: collectives that its ranks called differently: a backend may abort a rank in one.
    """
    died = {}
    for rank, (call, *_) in front.heads.items():
        end, instance = job.ranks[rank].end, job.instance_of(call)
        is_gone = end is not None and end.is_of_process and not _has_failed(call)
        if is_gone and instance.id not in parted and any(other.rank != rank for other in instance.pending):
            died[rank] = instance
    return died


def _unseen_with(front: Wavefront, instances: Iterable[Instance]) -> set[int]:
    """Return the ranks without a record that are absent from any of `instances`; they may have joined it or not."""
    return {rank for instance in instances for rank in instance.absent} & front.unseen


def _is_idle(job: JobCalls, rank: int, parted: Container[InstanceId]) -> bool:
    """Return True if a rank waits in no call, or ended by something else than a call.

    Args:
        job: the evidence of all ranks.
        rank: the rank.
        parted: collectives that its ranks called differently: a backend may abort a rank in one.
    """
    calls = job.ranks.get(rank)
    if calls is None:
        return False
    if calls.end is None:
        return calls.has_evidence and not calls.pending and not calls.waits_earlier
    if calls.end.how == "raised":
        return not any(map(_has_failed, calls.pending))
    last = [*calls.pending, *calls.last_of_aborted]
    return not (calls.end.how == "killed" and any(job.instance_of(call).id in parted for call in last))


def _has_failed(call: RankCall) -> bool:
    """Return True if a call raised, as when its peer is gone: that is why its rank ended."""
    return call.state == "failed"


def _instances(front: Wavefront, ranks: Iterable[int]) -> tuple[Instance, ...]:
    """Return the instances that `ranks` are missing from, first those that a rank waits in before any other."""
    awaited = {instance.id: instance for rank in ranks for instance in front.awaited.get(rank, ())}
    heads = {id(call) for calls in front.heads.values() for call in calls}
    order = sorted(awaited.values(), key=lambda instance: not any(id(call) in heads for call in instance.pending))
    return tuple(order)


def _mismatch(job: JobCalls, mismatch: Mismatch, expected: ExpectedCalls) -> Blame:
    culprits: Iterable[int] = mismatch.minority
    is_of_sums = len(set(map(signature, mismatch.instance.calls.values()))) == 1  # parts may differ, only their sum not
    if not culprits and not is_of_sums:
        calls = mismatch.instance.calls.values()
        odd = expected.unheard_of(calls) or expected.deviating(calls, _last_together(job, mismatch.instance))
        culprits = odd if len(odd) < len(mismatch.instance.calls) else ()
    suspects = () if culprits else tuple(sorted(rank for ranks in mismatch.classes for rank in ranks))
    return Blame("mismatch", tuple(sorted(culprits)), suspects, (mismatch.instance,), mismatch)


def _last_together(job: JobCalls, instance: Instance) -> dict[int, int]:
    """Return {rank: position after its last call in the same group before `instance`}, 0 where there is none."""
    before: dict[int, int] = {}
    for rank, call in instance.calls.items():
        in_group = (other for other in job.ranks[rank].calls if other.group == call.group and not other.is_message)
        earlier = [other.position for other in in_group]
        before[rank] = max((position for position in earlier if position < call.position), default=-1) + 1
    return before


def _without_evidence(job: JobCalls, front: Wavefront) -> list[Blame]:
    unknown = tuple(sorted(front.unseen & front.awaited.keys()))
    if not front.for_unseen:
        return []
    with_record = len(job.ranks) - len(front.unseen)
    instances = _instances(front, unknown)
    if len(unknown) > with_record:
        return [Blame("no evidence", suspects=unknown, instances=instances)]
    return [Blame("no evidence", tuple(sorted({*unknown, *_overtaken_waiters(job, front)})), instances=instances)]


def _overtaken_waiters(job: JobCalls, front: Wavefront) -> set[int]:
    """Return the waiting ranks that were overtaken by a rank which now waits for them.

    The other rank has issued all the pending calls of such a rank too, with equal numbers in groups of the same kind,
    and continued. What blocks the overtaken rank did not block the other one, which is stopped by something else.
    """
    return {
        rank
        for rank, instances in front.awaited.items()
        for instance in instances
        if instance.id.pair is None and any(_is_passed(job, rank, call) for call in instance.pending)
    }


def _is_passed(job: JobCalls, rank: int, further: RankCall) -> bool:
    calls = job.ranks.get(rank)
    if calls is None or not calls.pending:
        return False
    passed = {_place(call) for call in job.ranks[further.rank].pending if call.position < further.position}
    return all(_place(call) in passed for call in calls.pending)


def _place(call: RankCall) -> tuple[str, ...]:
    """Return the program location of a call, equal on ranks that run the same program in other groups."""
    return (*call.token, str(call.number))


def _overtaken(front: Wavefront) -> Blame | None:
    if not front.overtaken:
        return None
    return Blame("device", tuple(sorted(front.overtaken)), instances=tuple(front.overtaken.values()))


def _behind(job: JobCalls, front: Wavefront) -> Blame | None:
    behind = sorted(_overtaken_waiters(job, front))
    if not behind:
        return None
    instances = _instances(front, behind)
    suspects = _unseen_with(front, instances)
    return Blame("missing", tuple(behind), tuple(sorted(suspects)), instances)


def _circle(job: JobCalls, front: Wavefront, circle: set[int], expected: ExpectedCalls) -> Blame:
    heads = [front.heads[rank][0] for rank in sorted(circle)]
    instances = tuple({job.instance_of(call).id: job.instance_of(call) for call in heads}.values())
    odd = (
        _made_otherwise(front, circle)
        or _outvoted(heads, circle)
        or went_past(job, front, circle)
        or expected.deviating(heads)
    )
    if odd and len(odd) < len(circle):
        return Blame("order", tuple(sorted(odd)), instances=instances)
    return Blame("order", suspects=tuple(sorted(circle)), instances=instances)


def _made_otherwise(front: Wavefront, circle: set[int]) -> set[int]:
    """Return the ranks of a circle that wait in a group which most others made of other ranks.

    Its name counts what a process has made, so all ranks made it by one call of ``new_group``.
    """
    made: dict[str, dict[tuple[int, ...], set[int]]] = {}
    for rank, (call, *_) in front.heads.items():
        made.setdefault(call.group.made_as, {}).setdefault(call.group.ranks, set()).add(rank)
    return circle & set().union(*(outnumbered(sides.values()) for sides in made.values()))


def _outvoted(heads: Sequence[RankCall], circle: set[int]) -> set[int]:
    """Return the ranks that wait in another group than most, where each group has all of the circle's ranks.

    They called one where the others called another, as in a mismatch within a group.
    """
    if any(call.is_message or not circle.issubset(call.group.ranks) for call in heads):
        return set()
    sides: dict[tuple[object, ...], set[int]] = {}
    for call in heads:
        sides.setdefault((call.group, *call.token), set()).add(call.rank)
    return outnumbered(sides.values())


def _unmet(message: Instance) -> Blame:
    return Blame("messages", suspects=tuple(sorted(message.calls)), instances=(message,))


def _device(job: JobCalls, front: Wavefront, instance: Instance) -> Blame:
    calls, pending = list(instance.calls.values()), {call.rank for call in instance.pending}
    odd: set[int] = set()
    if any(call.state == "started" for call in instance.pending) and (blamed := _not_begun(job, instance)):
        return blamed
    if len(pending) < len(calls) and len(pending) <= len(calls) // 2:
        odd = pending
    elif len(behind := pending & front.awaited.keys()) <= len(calls) // 2:
        odd = behind
    if odd:
        return Blame("device", tuple(sorted(odd)), instances=(instance,))
    unseen = front.unseen if instance.id.group in job.unlisted else set()
    return Blame("unknown", suspects=tuple(sorted({*instance.calls, *unseen})), instances=(instance,))


def _not_begun(job: JobCalls, instance: Instance) -> Blame | None:
    """Return the ranks whose device has not started a collective that it could start.

    Returns:
        None if the devices of all pending ranks started it, or if device starts are not recorded.
    """
    begun = {call.rank for call in instance.pending if call.state == "started"}
    others = tuple(sorted({call.rank for call in instance.pending} - begun))
    if not others or not job.has_begins:
        return None
    if begun or len(others) == 1:
        return Blame("device", others, instances=(instance,))
    return Blame("device", suspects=others, instances=(instance,))

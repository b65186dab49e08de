"""Finds the ranks that cause a hang, by rules that are tried in a fixed order.

Each rule is a function, and a `Kind` has its name. First:

0. ``_torn_message``: both ends of a message that differ in size, if the backend aborted one of them for it.

If no rank waits in a recorded call:

1. ``_elsewhere``: ranks that ended while others are in ``new_group`` or at a store; ranks that a signal ended or that
   torch's own error names; otherwise ranks in other code than most.

If one of these two applies, no other rule is tried, as the rank that others wait for is not the cause:

2. ``_misdirected``: a send and a receive that name different peers.
3. ``_unlike_groups``: ranks in ``new_group`` while others wait in a group that they made.

Then the first of these rules that names culprits; if none does, the first that names suspects:

4. ``_extra``: the few ranks in a collective that most of the job does not have there.
5. ``_missing``: ranks that others wait for and that wait for nothing.
6. ``_mismatch``: ranks that called another op, size, root or dtype than most of their group.
7. ``_overtaken``: ranks whose call in flight has ended on other ranks.
8. ``_behind``: ranks in the same calls as a rank that waits for them and went on past them.
9. ``_circle``: ranks that wait for each other.
10. ``_unmet``: both ends of a message that do not match.
11. ``_device``: ranks whose device does not start or end a collective that all have issued.

If none of these applies:

12. ``_no_evidence``: ranks without a record. They are the last, as a rank may have come although its file is lost.

If two sides have equally many ranks, and earlier steps do not show which one is unusual, no rank is a culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dsexplore._internal.analysis.hangs.expected_calls import last_together
from dsexplore._internal.analysis.hangs.hang_evidence import HangEvidence
from dsexplore._internal.analysis.hangs.misdirected import misdirected
from dsexplore._internal.analysis.hangs.mismatches import Mismatch, mismatches, signature, torn_message
from dsexplore._internal.analysis.hangs.outvoted_ranks import stopped_unseen, went_past
from dsexplore._internal.analysis.hangs.rank_calls import Instance, JobCalls, RankCall
from dsexplore._internal.analysis.hangs.rank_places import culprits_by_place, outnumbered
from dsexplore._internal.analysis.hangs.unlike_groups import unlike_groups
from dsexplore._internal.analysis.hangs.wavefront import Wavefront

Kind = Literal[
    "none",
    "elsewhere",
    "misdirected",
    "unlike_groups",
    "extra",
    "missing",
    "mismatch",
    "overtaken",
    "behind",
    "circle",
    "unmet",
    "device",
    "no_evidence",
    "unknown",
]
"""The rule that found the culprits or suspects; ``none`` if nothing hangs, ``unknown`` if no rule applies."""


@dataclass(frozen=True)
class Blame:
    """The ranks to blame, and the evidence."""

    kind: Kind
    culprits: tuple[int, ...] = ()
    """The ranks that cause the hang; empty if the evidence does not show them."""
    suspects: tuple[int, ...] = ()
    """Without culprits, the ranks among which the cause is. With culprits, ranks without a record that may have come
    or not."""
    instances: tuple[Instance, ...] = ()
    """The collectives in which others wait for the culprits, or in which the ranks diverged."""
    mismatch: Mismatch | None = None
    """How the calls of the ranks differ; None if they do not."""


def blame(job: JobCalls, front: Wavefront, mismatched: Iterable[Mismatch] | None = None) -> Blame:
    """Return the culprits of a job that hangs.

    Args:
        job: the evidence of all ranks.
        front: the waiting ranks of the job.
        mismatched: the `mismatches` of the job; None to compute them.
    """
    torn = _torn_message(job)
    if torn is not None:
        return torn
    if not job.waiting:
        untold = tuple(sorted(rank for rank, calls in job.ranks.items() if not calls.tells_whether_it_waits))
        return _elsewhere(job) or (Blame("unknown", suspects=untold) if untold else Blame("none"))
    all_mismatches = mismatches(job) if mismatched is None else mismatched
    evidence = HangEvidence(job, front, [mismatch for mismatch in all_mismatches if mismatch.is_harmful])
    alone = _misdirected(evidence) or _unlike_groups(evidence)
    if alone is not None:
        return alone
    answers = []
    for rule in _RULES:
        for answer in rule(evidence):
            if answer.culprits:
                return answer
            answers.append(answer)
    if answers:
        return answers[0]
    earlier = [rank for rank in front.awaited if job.ranks[rank].waits_earlier]
    return _no_evidence(evidence) or Blame("unknown", suspects=_ascending({*front.heads, *earlier}))


def _ascending(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))


def _torn_message(job: JobCalls) -> Blame | None:
    """Suspect both ends of a message for whose size the backend aborted one of them."""
    message = torn_message(job)
    return None if message is None else Blame("unmet", suspects=_ascending(message.calls), instances=(message,))


def _elsewhere(job: JobCalls) -> Blame | None:
    """Blame ranks that are elsewhere in the program than those that wait for them."""
    found = culprits_by_place(job)
    return None if found is None else Blame("elsewhere", culprits=found.culprits, suspects=found.suspects)


def _misdirected(evidence: HangEvidence) -> Blame | None:
    """Blame the end of a message that names another peer than before; suspect both where neither was there before."""
    job = evidence.job
    missed = misdirected(job, [call for calls in evidence.front.heads.values() for call in calls])
    if missed is None:
        return None
    instances = (job.instance_of(missed.sent), job.instance_of(missed.received))
    if missed.culprit is None:
        suspects = _ascending((missed.sent.rank, missed.received.rank))
        return Blame("misdirected", suspects=suspects, instances=instances)
    return Blame("misdirected", culprits=(missed.culprit,), instances=instances)


def _unlike_groups(evidence: HangEvidence) -> Blame | None:
    """Blame the fewer of two sides: ranks that made a group of other ranks, or that went on while most still make it.

    Applies only where all idle ranks that others wait for are inside ``new_group``.
    """
    front = evidence.front
    unlike = unlike_groups(evidence.job, [calls[0] for calls in front.heads.values()], evidence.idle)
    if unlike is None:
        return None
    suspects = () if unlike.minority else _ascending({*unlike.makers, *(call.rank for call in unlike.calls)})
    return Blame(
        "unlike_groups", culprits=unlike.minority, suspects=suspects, instances=evidence.instances_of(unlike.calls)
    )


def _extra(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame the waiting ranks for one call too many.

    Applies where more ranks are missing than wait, not all of the missing may still come, and their earlier steps do
    not have the collective that the others wait in.
    """
    absent, waiting = {*evidence.died, *evidence.idle}, sorted(evidence.front.heads)
    may_come = bool(absent) and all(evidence.job.ranks[rank].stack for rank in absent)  # with a stack they still run
    if may_come or len(absent) <= len(waiting):
        return
    instances = (*evidence.instances_without(sorted(absent)), *evidence.died.values())
    calls = [next(iter(instance.calls.values())) for instance in instances]
    if not any(evidence.expected.is_expected(rank, call) for call in calls for rank in absent):
        yield Blame("extra", culprits=tuple(waiting), instances=instances)


def _missing(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame ranks that others wait for and that wait for nothing themselves.

    Something other than a collective stops such a rank: it left, slept or ran other code, or its process is gone or
    stopped in a call in which others wait. A missing rank need not be the only cause, so ranks that are wrong for
    another reason are named too.
    """
    job, front = evidence.job, evidence.front
    idle = sorted({*evidence.died, *evidence.idle})
    if not idle:
        return
    instances = (*evidence.instances_without(idle), *evidence.died.values())
    unseen = evidence.unseen_in(instances)
    culprits = {
        *idle,
        *(rank for mismatch in evidence.harmful for rank in mismatch.minority),  # a missing rank does not explain these
        *(rank for rank in unseen if job.ranks[rank].has_empty_file),  # it had no call in flight, so it did not come
        *_passed_ranks(evidence),  # their call did not stop the rank that is past them
        *stopped_unseen(job, front),  # all calls that they had to make before have ended on other ranks
        *front.overtaken,  # their call has ended on other ranks
    }
    first = next((mismatch for mismatch in evidence.harmful if mismatch.minority), None)
    yield Blame(
        "missing",
        culprits=_ascending(culprits),
        suspects=_ascending(unseen - culprits),
        instances=instances,
        mismatch=first,
    )


def _mismatch(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame the minority that made a different call under one sequence number; without one, ranks that left a pattern.

    If only the sums of an ``all_to_all``'s sizes differ, earlier steps cannot show which rank is wrong.
    """
    for mismatch in evidence.harmful:
        instance, culprits = mismatch.instance, set(mismatch.minority)
        calls = instance.calls.values()
        differ_in_sum = len(set(map(signature, calls))) == 1
        if not culprits and not differ_in_sum:
            before = last_together(evidence.job, instance)
            unusual = evidence.expected.unheard_of(calls) or evidence.expected.deviating(calls, before)
            culprits = set(unusual) if len(unusual) < len(instance.calls) else set()
        suspects = () if culprits else _ascending(rank for ranks in mismatch.classes for rank in ranks)
        yield Blame(
            "mismatch", culprits=_ascending(culprits), suspects=suspects, instances=(instance,), mismatch=mismatch
        )


def _overtaken(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame ranks whose call in flight has ended elsewhere: all ranks have come, so its device stopped it."""
    overtaken = evidence.front.overtaken
    if overtaken:
        yield Blame("overtaken", culprits=_ascending(overtaken), instances=tuple(overtaken.values()))


def _behind(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame ranks that were passed by a rank which waits for them, see `_passed_ranks`."""
    behind = sorted(_passed_ranks(evidence))
    if behind:
        instances = evidence.instances_without(behind)
        unseen = _ascending(evidence.unseen_in(instances))
        yield Blame("behind", culprits=tuple(behind), suspects=unseen, instances=instances)


def _passed_ranks(evidence: HangEvidence) -> set[int]:
    """Return the waiting ranks that were passed by a rank which now waits for them.

    The other rank has also issued all pending calls of such a rank, with equal numbers in groups of the same kind, and
    continued. So these calls do not block a rank, and something else stopped the passed one.
    """
    return {
        rank
        for rank, instances in evidence.front.awaited.items()
        for instance in instances
        if instance.id.pair is None and any(_is_passed(evidence.job, rank, call) for call in instance.pending)
    }


def _is_passed(job: JobCalls, rank: int, further: RankCall) -> bool:
    """Return True if all pending calls of `rank` are also in flight on the rank of `further`, before that call."""
    calls = job.ranks.get(rank)
    if calls is None or not calls.pending:
        return False
    passed = {_place(call) for call in job.ranks[further.rank].pending if call.position < further.position}
    return all(_place(call) in passed for call in calls.pending)


def _place(call: RankCall) -> tuple[str, ...]:
    """Return the program location of a call, equal on ranks that run the same program in other groups."""
    return (*call.token, str(call.number))


def _circle(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame some ranks of a circle, by the first of four comparisons that separates them from the others.

    They made a group of other ranks than most; they called another group than most, if all are in both; they called
    more or fewer collectives of a group before the next one than most; or their call differs from earlier steps.
    """
    job, front = evidence.job, evidence.front
    for circle in front.circles:
        heads = [front.heads[rank][0] for rank in sorted(circle)]
        different = (
            _made_otherwise(front, circle)
            or _outvoted(heads, circle)
            or went_past(job, front, circle)
            or evidence.expected.deviating(heads)
        )
        is_part = bool(different) and len(different) < len(circle)
        culprits, suspects = (different, ()) if is_part else ((), circle)
        yield Blame(
            "circle",
            culprits=_ascending(culprits),
            suspects=_ascending(suspects),
            instances=evidence.instances_of(heads),
        )


def _made_otherwise(front: Wavefront, circle: set[int]) -> set[int]:
    """Return the ranks of a circle that wait in a group which most others made of other ranks.

    Names of groups count the groups of a process, so groups of one name come from one call of ``new_group``.
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


def _unmet(evidence: HangEvidence) -> Iterator[Blame]:
    """Suspect both ranks of a message in which both wait: they called it differently."""
    for message in evidence.front.unmet:
        yield Blame("unmet", suspects=_ascending(message.calls), instances=(message,))


def _device(evidence: HangEvidence) -> Iterator[Blame]:
    """Blame ranks whose device has not started, or not ended, a collective that other devices have.

    Only collectives count that all ranks are in, or all ranks with a record. If all ranks are in it, a minority that
    has not issued the next call is blamed too.
    """
    for instance in evidence.front.together:
        if instance.id not in evidence.parted:
            yield _blame_devices(evidence, instance)
    for instance in evidence.front.for_unseen:
        blamed = _not_started(evidence.job, instance)
        if blamed is not None:
            yield blamed


def _blame_devices(evidence: HangEvidence, instance: Instance) -> Blame:
    """Return the blame for a collective that all ranks are in: the ranks whose devices differ from most."""
    front, pending = evidence.front, {call.rank for call in instance.pending}
    if any(call.state == "started" for call in instance.pending) and (blamed := _not_started(evidence.job, instance)):
        return blamed
    half = len(instance.calls) // 2
    not_ended = pending if len(pending) < len(instance.calls) else set()
    without_next = pending & front.awaited.keys()
    minority = next((ranks for ranks in (not_ended, without_next) if ranks and len(ranks) <= half), set())
    if minority:
        return Blame("device", culprits=_ascending(minority), instances=(instance,))
    unseen = front.unseen if instance.id.group in evidence.job.unlisted else set()
    return Blame("device", suspects=_ascending({*instance.calls, *unseen}), instances=(instance,))


def _not_started(job: JobCalls, instance: Instance) -> Blame | None:
    """Return the blame for ranks whose device has not started a collective that it could start.

    Returns:
        The blame; None if the devices of all pending ranks started it, or if device starts are not recorded.
    """
    started = {call.rank for call in instance.pending if call.state == "started"}
    others = _ascending({call.rank for call in instance.pending} - started)
    if not others or not job.has_starts:
        return None
    if started or len(others) == 1:
        return Blame("device", culprits=others, instances=(instance,))
    return Blame("device", suspects=others, instances=(instance,))


def _no_evidence(evidence: HangEvidence) -> Blame | None:
    """Blame ranks without a record, if all ranks with a record wait for them.

    Without times, a lost file and a device that stopped leave the same records as one rank that died. The rank is
    named, as one cause is likelier than two, and the sentence has both explanations. If more ranks lack a record than
    have one, they are only suspects, as their files are probably lost.
    """
    front = evidence.front
    if not front.for_unseen:
        return None
    unknown = sorted(front.unseen & front.awaited.keys())
    instances = evidence.instances_without(unknown)
    if len(unknown) > len(evidence.job.ranks) - len(front.unseen):
        return Blame("no_evidence", suspects=tuple(unknown), instances=instances)
    return Blame("no_evidence", culprits=_ascending({*unknown, *_passed_ranks(evidence)}), instances=instances)


_RULES: tuple[Callable[[HangEvidence], Iterator[Blame]], ...] = (
    _extra,
    _missing,
    _mismatch,
    _overtaken,
    _behind,
    _circle,
    _unmet,
    _device,
)

"""The ranks that a hang is due to, as far as the evidence says; `hang_report` has a word for each reason.

In this order:

1. *Missing*: ranks that others wait for and that wait for nothing themselves. In a program whose ranks call in one
   order, such a rank is stopped by something else than a collective: it left, it slept, it was in other code. Where
   they are most of the ranks, and their earlier steps do not have the collective that the others wait in, those others
   called one too many. Named with them are ranks without a record that nothing held up, and ranks that wait in nothing
   but what another rank has in flight too, which went on past it. Of other ranks without a record that are missing in
   the same collectives, one with an empty file is named, as it had nothing in flight to write; one without a file may
   have come, and is a suspect.
   So is a rank whose call in flight has ended on other ranks: what it waits in is not what holds it up.
2. *Mismatch*: ranks that called another op, size, root or dtype than the most of their group under one sequence number.
3. *Behind*: ranks that others wait for, and whose own calls in flight do not explain it: a rank that waits for them
   has the same calls in flight, and went on past them.
4. *Order*: ranks that wait for each other in a circle, or in both ends of a message that do not meet. Named are the
   ranks that did not call what they called before at that place, or that call more or fewer collectives of a group
   before the next one than most.
5. *Device*: all ranks are in one collective. Named are the ranks whose device has not begun it, or not ended it where
   others have, or that alone have not issued what follows.
6. *No evidence*: ranks that others wait for and of which nothing is known, where those others are all that is known to
   take part. They come last, as the file of a rank that did come may be lost: whatever does not end without it goes
   first. Where no times were taken, such a loss beside a device that stands still leaves the same records as one rank
   that died: the rank is named, as one cause is likelier than two, and the sentence has both explanations.

Where two sides have equally many ranks and the earlier steps do not say which of them is as usual, nobody is accused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dsexplore.analysis.hangs.expected_calls import ExpectedCalls
from dsexplore.analysis.hangs.mismatches import Mismatch, mismatches, signature
from dsexplore.analysis.hangs.rank_calls import GroupId, Instance, JobCalls, RankCall, RankCalls
from dsexplore.analysis.hangs.wavefront import Wavefront

# Ranks of which nothing is known, as they left no file or an empty one: which of them cannot be waiting for others.
#
# A rank that left no record may have called what others wait for, and wait itself, for a third one. Ranks run a
# program: what another rank called before the collective in which it waits for an unseen one, the unseen one had to
# call too, in its own groups. Where all of that has ended, as the other members of those groups recorded, nothing held
# it up.
#
# Worked example: ranks 0–3 reduce in the pairs (0, 1) and (2, 3), then in (0, 2) and (1, 3). Rank 0 waits for rank 2 in
# (0, 2), and rank 2 left nothing. Before that, rank 0 called its pair's all_reduce 7. Rank 3 says that all_reduce 7 of
# (2, 3) has ended: rank 2 came out of it, and did not come on to (0, 2).


def stopped_unseen(job: JobCalls, front: Wavefront) -> set[int]:
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


def _ended(job: JobCalls) -> dict[GroupId, int]:
    """Return {group: highest sequence number of a collective that completed on any rank}."""
    found: dict[GroupId, int] = {}
    for known in job.ranks.values():
        for call in known.calls:
            if not call.is_message and not call.is_pending:
                found[call.group] = max(found.get(call.group, -1), call.number)
    return found


def _groups_by_kind(job: JobCalls) -> dict[str, set[GroupId]]:
    found: dict[str, set[GroupId]] = defaultdict(set)
    for known in job.ranks.values():
        for call in known.calls:
            found[call.kind].add(call.group)
    return found


def _came_near(
    job: JobCalls, rank: int, instance: Instance, ended: dict[GroupId, int], of_kind: dict[str, set[GroupId]]
) -> bool:
    """Return True if an unseen rank passed all calls that some rank waiting in `instance` made before it."""
    return any(_passed_all(job, rank, waiting, instance, ended, of_kind) for waiting in instance.calls)


def _passed_all(
    job: JobCalls,
    rank: int,
    waiting: int,
    instance: Instance,
    ended: dict[GroupId, int],
    of_kind: dict[str, set[GroupId]],
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


# Ranks that left out a collective, or called one too many: told by how many the ranks of the job call.
#
# Worked example: ranks 0 and 1 reduce 32 times in their pair before all ranks reduce together. Rank 1 left one out, and
# waits in the collective of all ranks; rank 0 waits in the pair's 32nd for rank 1. Ranks 2 to 15, in pairs of the same
# kind, have called 32 too, so rank 1 is the odd one. Had they called 31, rank 0 would be.
#
# A dump of what is active alone does not say that they have. Yet each call is numbered among all that its rank
# recorded: the collective of all ranks is call 41 of ranks 0 and 2 to 15, and call 40 of rank 1.


def went_past(job: JobCalls, front: Wavefront, circle: set[int]) -> set[int]:
    """Return the ranks of a cycle that skipped a collective or issued an extra one, by majority vote of the ranks.

    Args:
        job: the evidence of all ranks.
        front: who waits for whom in this job.
        circle: ranks that wait for one another.
    """
    kinds = {call.group: call.kind for known in job.ranks.values() for call in known.calls}
    found: set[int] = set()
    for instance in {one.id: one for rank in circle for one in front.awaited.get(rank, ())}.values():
        kind = kinds[instance.id.group]
        for rank in circle.intersection(instance.absent):
            head = front.heads[rank][0]
            ahead = [call.rank for call in instance.calls.values() if _comes_before(call, job.instance_of(head))]
            if ahead:
                odd = _of_fewer_votes(_numbers_before(job, head, kind, kinds), rank, ahead[0])
                odd = recorded_otherwise(job, head, rank, ahead[0]) if odd is None else odd
                found |= set() if odd is None else {rank} if odd == rank else set(ahead)
    return found


def recorded_otherwise(job: JobCalls, place: RankCall, behind: int, ahead: int) -> int | None:
    """Return which of two ranks issued an odd number of calls before a collective, by vote of the ranks like them.

    Args:
        job: the evidence of all ranks.
        place: a call of that collective, or its counterpart in another group of the kind.
        behind: a rank that recorded fewer calls; the result is None if it did not.
        ahead: a rank that recorded more calls.
    """
    asked = job.ranks[behind].replicas | job.ranks[ahead].replicas | {behind, ahead}
    before = {
        call.rank: call.record
        for rank in asked & job.ranks.keys()
        for call in job.ranks[rank].calls
        if call.record is not None and (call.kind, call.number, call.is_message) == (place.kind, place.number, False)
    }
    if not {behind, ahead} <= before.keys() or before[behind] >= before[ahead]:
        return None
    return _of_fewer_votes(before, behind, ahead)


def _of_fewer_votes(numbers: Mapping[int, int], one: int, other: int) -> int | None:
    """Return which of two ranks has the number that fewer ranks share; None on a tie or if either number is unknown."""
    votes = Counter(numbers.values())
    mine, theirs = (votes[numbers[rank]] if rank in numbers else 0 for rank in (one, other))
    if not mine or not theirs or mine == theirs:
        return None
    return one if mine < theirs else other


def _comes_before(call: RankCall, instance: Instance) -> bool:
    """Return True if the rank of `call` issued it before its call of `instance`."""
    later = instance.calls.get(call.rank)
    return later is not None and call.position < later.position


def _numbers_before(job: JobCalls, head: RankCall, kind: str, kinds: dict[GroupId, str]) -> dict[int, int]:
    """Return {rank: number of collectives in its group of `kind` before its counterpart of `head`}.

    Ranks for which either call is not recorded are omitted.
    """
    found = {}
    for rank, known in job.ranks.items():
        at = next((call.position for call in known.calls if (call.kind, call.number) == (head.kind, head.number)), None)
        number = _number_before(known, at, kind, kinds) if at is not None else None
        if number is not None:
            found[rank] = number
    return found


def _number_before(known: RankCalls, at: int, kind: str, kinds: dict[GroupId, str]) -> int | None:
    own = [call for call in known.calls if call.kind == kind and not call.is_message]
    before = [call.number for call in own if call.position < at]
    if before:
        return max(before)
    if own:
        return min(call.number for call in own) - 1
    return next((number for group, number in known.highest.items() if kinds.get(group) == kind), None)


Kind = Literal["none", "missing", "extra", "mismatch", "no evidence", "order", "messages", "device", "unknown"]
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
        return Blame("none")
    expected = ExpectedCalls(job)
    harmful = [found for found in (mismatches(job) if mismatched is None else mismatched) if found.is_harmful]
    parted = {found.instance.id for found in harmful}
    attempts = (
        _missing(job, front, expected, harmful),
        *(_mismatch(job, found, expected) for found in harmful),
        _overtaken(front),
        _behind(job, front),
        *(_circle(job, front, circle, expected) for circle in front.circles),
        *(_unmet(instance) for instance in front.unmet),
        *(_device(job, front, instance) for instance in front.together if instance.id not in parted),
        *(_not_begun(job, instance) for instance in front.for_unseen),
    )
    answers = [found for found in attempts if found is not None] or _without_evidence(job, front)
    sure = next((found for found in answers if found.culprits), None)
    return sure or next(iter(answers), Blame("unknown", suspects=tuple(sorted(front.heads))))


def _missing(job: JobCalls, front: Wavefront, expected: ExpectedCalls, harmful: list[Mismatch]) -> Blame | None:
    idle = sorted(rank for rank in front.awaited if _is_idle(job, rank))
    if not idle:
        return None
    instances = _instances(front, idle)
    waiting = sorted(front.heads)
    if len(idle) > len(waiting) and not any(
        expected.is_expected(rank, next(iter(instance.calls.values()))) for instance in instances for rank in idle
    ):
        return Blame("extra", tuple(waiting), instances=instances)
    odd = {rank for found in harmful for rank in found.minority} - set(idle)
    first = next((found for found in harmful if found.minority), None)
    unseen = _unseen_with(front, instances)
    empty = {rank for rank in unseen if job.ranks[rank].has_empty_file}
    culprits = {*idle, *odd, *empty, *_left_behind(job, front), *stopped_unseen(job, front), *front.overtaken}
    suspects = unseen - culprits
    return Blame("missing", tuple(sorted(culprits)), tuple(sorted(suspects)), instances, mismatch=first)


def _unseen_with(front: Wavefront, instances: Iterable[Instance]) -> set[int]:
    """Return the ranks without a record that are absent from any of `instances`; they may have joined it or not."""
    return {rank for instance in instances for rank in instance.absent} & front.unseen


def _is_idle(job: JobCalls, rank: int) -> bool:
    known = job.ranks.get(rank)
    if known is None:
        return False
    if known.end is not None and not (known.end.how == "raised" and any(map(_has_failed, known.pending))):
        return True
    return known.has_left_evidence and not known.pending


def _has_failed(call: RankCall) -> bool:
    """Return True if a call raised, as when its peer is gone: that is why its rank ended."""
    return call.state == "failed"


def _instances(front: Wavefront, ranks: Iterable[int]) -> tuple[Instance, ...]:
    """Return the instances that `ranks` are missing from, first those that a rank waits in before any other."""
    found = {instance.id: instance for rank in ranks for instance in front.awaited.get(rank, ())}
    heads = {id(call) for calls in front.heads.values() for call in calls}
    order = sorted(found.values(), key=lambda one: not any(id(call) in heads for call in one.pending))
    return tuple(order)


def _mismatch(job: JobCalls, mismatch: Mismatch, expected: ExpectedCalls) -> Blame:
    culprits: Iterable[int] = mismatch.minority
    is_of_sums = len(set(map(signature, mismatch.instance.calls.values()))) == 1  # parts may differ, only their sum not
    if not culprits and not is_of_sums:
        calls = mismatch.instance.calls.values()
        odd = expected.unheard_of(calls) or expected.deviating(calls, _last_together(job, mismatch.instance))
        culprits = odd if len(odd) < len(mismatch.instance.calls) else ()
    everyone = tuple(sorted(mismatch.instance.calls))
    suspects = () if culprits else everyone
    return Blame("mismatch", tuple(sorted(culprits)), suspects, (mismatch.instance,), mismatch)


def _last_together(job: JobCalls, instance: Instance) -> dict[int, int]:
    """Return {rank: position after its last call in the same group before `instance`}, 0 where there is none."""
    before: dict[int, int] = {}
    for rank, call in instance.calls.items():
        earlier = [one.position for one in job.ranks[rank].calls if one.group == call.group and not one.is_message]
        before[rank] = max((position for position in earlier if position < call.position), default=-1) + 1
    return before


def _without_evidence(job: JobCalls, front: Wavefront) -> list[Blame]:
    unknown = tuple(sorted(front.unseen & front.awaited.keys()))
    if not front.for_unseen:
        return []
    known = len(job.ranks) - len(front.unseen)
    instances = _instances(front, unknown)
    if len(unknown) > known:
        return [Blame("no evidence", suspects=unknown, instances=instances)]
    return [Blame("no evidence", tuple(sorted({*unknown, *_left_behind(job, front)})), instances=instances)]


def _left_behind(job: JobCalls, front: Wavefront) -> set[int]:
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
    known = job.ranks.get(rank)
    if known is None or not known.pending:
        return False
    passed = {_place(call) for call in job.ranks[further.rank].pending if call.position < further.position}
    return all(_place(call) in passed for call in known.pending)


def _place(call: RankCall) -> tuple[str, ...]:
    """Return the program location of a call, equal on ranks that run the same program in other groups."""
    return (*call.token, str(call.number))


def _overtaken(front: Wavefront) -> Blame | None:
    if not front.overtaken:
        return None
    return Blame("device", tuple(sorted(front.overtaken)), instances=tuple(front.overtaken.values()))


def _behind(job: JobCalls, front: Wavefront) -> Blame | None:
    behind = sorted(_left_behind(job, front))
    if not behind:
        return None
    instances = _instances(front, behind)
    suspects = _unseen_with(front, instances)
    return Blame("missing", tuple(behind), tuple(sorted(suspects)), instances)


def _circle(job: JobCalls, front: Wavefront, circle: set[int], expected: ExpectedCalls) -> Blame:
    heads = [front.heads[rank][0] for rank in sorted(circle)]
    instances = tuple({job.instance_of(call).id: job.instance_of(call) for call in heads}.values())
    odd = went_past(job, front, circle) or expected.deviating(heads)
    if odd and len(odd) < len(circle):
        return Blame("order", tuple(sorted(odd)), instances=instances)
    return Blame("order", suspects=tuple(sorted(circle)), instances=instances)


def _unmet(message: Instance) -> Blame:
    return Blame("messages", suspects=tuple(sorted(message.calls)), instances=(message,))


def _device(job: JobCalls, front: Wavefront, instance: Instance) -> Blame:
    calls, pending = list(instance.calls.values()), {call.rank for call in instance.pending}
    odd: set[int] = set()
    if any(call.state == "started" for call in instance.pending) and (found := _not_begun(job, instance)):
        return found
    if len(pending) < len(calls) and len(pending) <= len(calls) // 2:
        odd = pending
    elif len(behind := pending & front.awaited.keys()) <= len(calls) // 2:
        odd = behind
    if odd:
        return Blame("device", tuple(sorted(odd)), instances=(instance,))
    return Blame("unknown", suspects=tuple(sorted(instance.calls)), instances=(instance,))


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

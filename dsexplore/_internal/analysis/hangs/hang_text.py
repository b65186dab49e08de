"""Writes the sentence of a hang report: which ranks wait where, where ranks diverged, and which ones are to blame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsexplore._internal.analysis.hangs.blame import Blame
from dsexplore._internal.analysis.hangs.call_text import (
    are_over,
    call_text,
    group_label,
    short_line,
    wait_verb,
)
from dsexplore._internal.analysis.hangs.mismatches import Mismatch
from dsexplore._internal.analysis.hangs.parting_text import (
    last_common,
    lines_text,
    membership_text,
    mismatch_text,
    odd_text,
    parted_after,
)
from dsexplore._internal.analysis.hangs.rank_calls import Instance, JobCalls, RankCall
from dsexplore._internal.analysis.hangs.rank_places import RankPlace, places_text
from dsexplore._internal.analysis.hangs.unlike_groups import makers
from dsexplore._internal.analysis.hangs.wavefront import Wavefront
from dsexplore._internal.trace.ends import ENDED_BLOCK
from dsexplore._internal.units import format_bytes, format_ranks

_MOST_ENDS, _MOST_NOTED = 3, 8
"""Number of ranks whose end or last call the sentence has, and of those in notes."""


def verdict(job: JobCalls, front: Wavefront, blame: Blame, parted: Sequence[Mismatch] = ()) -> str:
    """Return one sentence that states the cause of a hang.

    Args:
        job: the evidence of all ranks.
        front: the waiting ranks of the job.
        blame: the ranks to blame, and the rule that found them.
        parted: the first collective of each group that its ranks called differently.
    """
    if blame.kind == "none":
        ended = sum(len(rank.calls) for rank in job.ranks.values())
        return f"nothing hangs: no rank waits, all {ended:,} recorded calls ended"
    if not job.waiting and blame.kind == "unknown":
        return _untold_text(job, blame)
    if blame.kind == "elsewhere":
        return _ranks_outside_text(job, blame)
    if blame.kind in ("missing", "behind", "no_evidence"):
        return "; ".join([_missing_text(job, front, blame), *lines_text(blame, parted)])
    if blame.kind == "extra":
        return _extra_text(job, front, blame)
    if blame.kind == "unmet":
        return _unmet_text(job, blame)
    if blame.kind == "misdirected":
        return _misdirected_text(front, blame)
    if blame.kind == "mismatch" and blame.mismatch is not None:
        return mismatch_text(blame.mismatch, blame)
    if blame.kind in ("circle", "unlike_groups"):
        return _order_text(front, blame, lines_text(blame, parted))
    return _device_text(front, blame)


def _untold_text(job: JobCalls, blame: Blame) -> str:
    """Say that no recorded call waits, and which ranks left no record of calls."""
    recorded = [rank for rank in job.ranks if rank not in blame.suspects]
    ended = sum(len(job.ranks[rank].calls) for rank in recorded)
    of_recorded = f"all {ended:,} recorded calls of {format_ranks(recorded)} ended; " if recorded else ""
    who, it = format_ranks(blame.suspects), "it waits" if len(blame.suspects) == 1 else "they wait"
    return f"{of_recorded}{who} left no readable record of calls: the evidence does not say whether {it}"


def _ranks_outside_text(job: JobCalls, blame: Blame) -> str:
    """Say where the ranks are that are in no recorded call, and how the others ended."""
    places = {rank: RankPlace.of(calls.stack) for rank, calls in job.ranks.items() if calls.stack and calls.end is None}
    left = [rank for rank in job.ranks if job.ranks[rank].end is not None]
    unseen = [rank for rank in blame.suspects if not job.ranks[rank].has_evidence]
    since = f", and none began or ended for {job.no_progress_for}" if job.no_progress_for else ""
    ends = [_end_text(job, rank) for rank in left[:_MOST_ENDS]]
    absent = [f"{format_ranks(unseen)} left no record"] if unseen else []
    texts = [f"no collective is open{since}: {places_text(places, blame.culprits)}", *ends, *absent]
    if len(places) > 1 or left:
        texts.append(_whom_text(blame))
    return "; ".join(texts)


def _whom_text(blame: Blame) -> str:
    if not blame.culprits:
        return "the evidence does not say for whom they wait"
    return f"the others wait for {format_ranks(blame.culprits)}"


def _missing_text(job: JobCalls, front: Wavefront, blame: Blame) -> str:
    """Say which ranks did not come or have ended, who waits for them and where, and what they did last."""
    accused = blame.culprits or blame.suspects
    first = next((instance for instance in blame.instances if set(instance.absent) & set(accused)), blame.instances[0])
    waits_in = [call for call in first.pending if call.rank not in accused] or first.pending
    waiting = format_ranks(call.rank for call in waits_in)
    whom = "it" if len(accused) == 1 else "them"
    with_line = next((call for call in waits_in if call.source), waits_in[0])  # JSON dumps have no lines
    failed = ", which failed" if are_over(waits_in) else ""
    where = f"{call_text(with_line)}{_number(first)}{failed}{_others(front, [first], accused)}"
    waits = f"{waiting} {wait_verb(waits_in)} for {whom} in {where}"
    if blame.kind == "no_evidence":
        return _missing_record_text(job, blame, first, waits)
    ended = [rank for rank in accused if job.ranks[rank].end is not None]
    others = [rank for rank in accused if rank not in ended]
    ends = [_end_text(job, rank) for rank in ended[:_MOST_ENDS]]
    absent = [f"{format_ranks(others)} did not come"] if others else []
    lasts = [_last_text(job, rank) for rank in others[:_MOST_ENDS]]
    return "; ".join([f"{', '.join([*ends, *absent])}: {waits}", *lasts, *_suspects_text(blame)])


def _missing_record_text(job: JobCalls, blame: Blame, first: Instance, waits: str) -> str:
    """Say all that may have happened to ranks without a record, by the records of the others."""
    accused = blame.culprits or blame.suspects
    unseen = [rank for rank in accused if not job.ranks[rank].has_evidence]
    it = "it" if len(unseen) == 1 else "they"
    absent, no_file = f"{format_ranks(accused)} did not come", f"{waits}; {format_ranks(unseen)} left"
    if not blame.culprits:
        which = f"which does not say where {it} stopped nor, as {it} are most of the ranks, which of them stopped first"
        return f"{absent}: {no_file} no record, {which}"
    if all(job.ranks[rank].has_empty_file for rank in unseen):
        return f"{absent}: {no_file} nothing but an empty file, which does not say where {it} stopped"
    if all(call.state == "started" for call in first.pending):
        return f"{absent}: {no_file} no record, and the devices of all that wait have begun that call"
    lost = "its file is" if len(unseen) == 1 else "their files are"
    other = f"or only {lost} lost, and the device of a waiting rank has stalled"
    return f"{absent}, probably: {no_file} no record: {it} ended or stopped before that call, {other}"


def _suspects_text(blame: Blame) -> list[str]:
    if not blame.suspects:
        return []
    who = "it" if len(blame.suspects) == 1 else "they"
    return [f"{format_ranks(blame.suspects)} left no record, which does not say whether {who} came"]


def _number(instance: Instance) -> str:
    call = next(iter(instance.calls.values()))
    return "" if instance.id.pair is not None else f", collective {instance.id.number} of group {call.label}"


def _others(front: Wavefront, first: Iterable[Instance], accused: Iterable[int] = ()) -> str:
    """Return the part of a sentence on ranks that wait elsewhere; empty if there are none."""
    others = front.heads.keys() - {call.rank for instance in first for call in instance.pending} - set(accused)
    verb = wait_verb([front.heads[rank][0] for rank in others])
    return f"; {format_ranks(others)} {verb} elsewhere because of that" if others else ""


def _end_text(job: JobCalls, rank: int) -> str:
    end = job.ranks[rank].end
    return f"rank {rank} {end.text}" if end is not None else ""


def end_note(job: JobCalls, blame: Blame) -> list[str]:
    """Return notes on ranks that raised an exception but are not to blame; ranks often fail after another has."""
    raised = [
        rank
        for rank, calls in job.ranks.items()
        if calls.end is not None and calls.end.how == "raised" and rank not in blame.culprits
    ]
    return [_end_text(job, rank) for rank in raised[:_MOST_NOTED]]


def _last_text(job: JobCalls, rank: int) -> str:
    """Say what a rank did last: its place in the program, or its last call."""
    calls = job.ranks[rank]
    at = RankPlace.of(calls.stack).text if calls.stack else ""
    if calls.earlier is not None:
        if calls.earlier.end == ENDED_BLOCK:
            return f"rank {rank} had ended an earlier block, and began no later one"
        return f"rank {rank} was still in an earlier block{f', {at}' if at else ''}"
    if at:
        return f"rank {rank} was {at}"
    if not calls.has_evidence:
        return f"rank {rank} left no record"
    if not calls.calls:
        return f"rank {rank} has called nothing that its record kept"
    last = calls.calls[-1]
    return f"the last call of rank {rank} was {call_text(last)}, which {'is in flight' if last.is_pending else 'ended'}"


def _extra_text(job: JobCalls, front: Wavefront, blame: Blame) -> str:
    """Say which ranks wait in a call too many, and which ones did not make it."""
    absent = {rank for instance in blame.instances for rank in instance.absent}
    text = "; ".join(_waits_by_call(front, blame.culprits))
    return f"{text}; {format_ranks(absent)} did not call it, and had not called it before either"


def _waits_by_call(front: Wavefront, ranks: Iterable[int]) -> list[str]:
    """Return one text per call that ranks wait in: ``rank 1 waits in all_gather (…)``."""
    together: dict[tuple[object, ...], list[RankCall]] = {}
    for rank in sorted(ranks):
        for call in front.heads.get(rank, [])[:1]:
            together.setdefault((call.op, call.label, short_line(call.source), call.message_bytes), []).append(call)
    texts = []
    for calls in together.values():
        common = calls[0] if len({call.pair for call in calls}) == 1 else calls[0]._replace(pair=None)
        texts.append(f"{format_ranks(call.rank for call in calls)} {wait_verb(calls)} in {call_text(common)}")
    return texts


def _order_text(front: Wavefront, blame: Blame, lines: Sequence[str]) -> str:
    """Say in which calls ranks wait for one another, and where their programs diverged.

    Args:
        front: the waiting ranks of the job.
        blame: the ranks to blame, and the rule that found them.
        lines: the result of `lines_text`.
    """
    involved = {rank for instance in blame.instances for rank in instance.calls} & front.heads.keys()
    first, others = (blame.culprits, involved - set(blame.culprits)) if blame.culprits else ((), involved)
    making = makers(front.job)
    texts = [*_waits_by_call(front, first), *_waits_by_call(front, others)]
    texts += [places_text(making)] if making else []
    parted = blame.instances[0]
    heads = [front.heads[rank][0] for rank in sorted(involved)]
    if all(call.is_message for call in heads):
        texts.append(_ring_text(front, heads))
    elif lines:
        texts += lines
    elif made := membership_text(heads):
        texts.append(made)
    elif parted.id.pair is None and not making:
        texts.append(parted_after(last_common(parted, blame), group_label(parted)))
    return "; ".join([*texts, odd_text(blame)])


def _ring_text(front: Wavefront, heads: Sequence[RankCall]) -> str:
    """Return how messages wait in a circle: ``each sends first: 0→1→2→3→0``."""
    ops = {call.op for call in heads}
    how = {frozenset({"send"}): "each sends first", frozenset({"recv"}): "each receives first"}
    ranks = {call.rank for call in heads}
    ring = [min(ranks)]
    while len(ring) <= len(ranks):
        ring.append(min(front.waits_for.get(ring[-1], set()) & ranks, default=ring[0]))
        if ring[-1] in ring[:-1]:
            break
    return f"{how.get(frozenset(ops), 'each waits for the next')}: {'→'.join(map(str, ring))}"


def _unmet_text(job: JobCalls, blame: Blame) -> str:
    """Say that a send and a receive wait for each other but do not match, and why."""
    sent, received = sorted(blame.instances[0].calls.values(), key=lambda call: call.op, reverse=True)
    texts = [
        f"rank {call.rank} {f'{wait_verb([call])} in' if call.is_pending else 'called'} {call_text(call)}"
        for call in (sent, received)
    ]
    ended = [_end_text(job, rank) for rank in blame.suspects if job.ranks[rank].last_of_aborted]
    sizes = [call.message_bytes for call in (sent, received)]
    if sent.dtype != received.dtype and sent.dtype and received.dtype:
        why = f"by dtype ({sent.dtype} sent, {received.dtype} received)"
    elif all(sizes) and sizes[0] != sizes[1]:
        why = f"by size ({format_bytes(sizes[0])} sent, {format_bytes(sizes[1])} received)"
    else:
        why = "by tag, which the recorder does not keep, or by order"
    verb = wait_verb([sent, received])
    how = "the ends of one message differ" if ended else f"they {verb} for each other's message, and these differ"
    return "; ".join([*texts, f"{how} {why}", *ended, odd_text(blame)])


def _misdirected_text(front: Wavefront, blame: Blame) -> str:
    """Say which message each end waits for, and that the named peers have no such call."""
    calls = [call for instance in blame.instances for call in instance.pending]
    calls.sort(key=lambda call: call.rank not in blame.culprits)
    texts = [f"rank {call.rank} {wait_verb([call])} in {call_text(call)}" for call in calls]
    sent, received = sorted(calls, key=lambda call: call.op, reverse=True)
    assert sent.pair is not None
    assert received.pair is not None
    texts.append(
        f"the ends name different peers: rank {sent.pair[1]} does not receive from rank {sent.rank}, and "
        f"rank {received.pair[0]} does not send to rank {received.rank}"
    )
    return "; ".join([*texts, odd_text(blame)]) + _others(front, blame.instances)


def _device_text(front: Wavefront, blame: Blame) -> str:
    """Say which devices hold up a collective that all ranks called, or that the cause is unknown."""
    if not blame.instances:
        waits: Sequence[str] = _waits_by_call(front, front.heads)
        earlier = [rank for rank in blame.suspects if front.job.ranks[rank].waits_earlier]
        lasts = [_last_text(front.job, rank) for rank in earlier[:_MOST_ENDS]]
        return "; ".join([*waits[:4], *lasts, "the evidence does not say for whom"])
    instance = blame.instances[0]
    call = next(iter(instance.calls.values()))
    if set(blame.culprits) & front.overtaken.keys():
        return _overtaken_text(front, blame, instance, call)
    if not blame.culprits and instance.id.group in front.job.unlisted and front.unseen:
        return _unlisted_text(front, instance)
    came = instance.calls.keys() | (set(instance.id.group.ranks) - set(instance.absent))
    text = f"all of {format_ranks(came)} called {call_text(call)}{_number(instance)}, and it has not ended"
    if not blame.culprits:
        return text + ": the evidence does not say on which rank"
    states = {instance.calls[rank].state for rank in blame.culprits if rank in instance.calls}
    how = "has not begun on the device of" if states == {"scheduled"} and _has_begun(instance) else "is held up by"
    return f"{text}: it {how} {format_ranks(blame.culprits)}"


def _unlisted_text(front: Wavefront, instance: Instance) -> str:
    """Say which ranks wait in a group whose ranks no file lists, and which ranks left no record."""
    calls = [*instance.calls.values()]
    waits = _waits_by_call(front, instance.calls)
    are_empty = all(front.job.ranks[rank].has_empty_file for rank in front.unseen)
    left = "left nothing but an empty file" if are_empty else "left no record"
    return (
        f"{'; '.join(waits)}{_number(instance)}; {format_ranks(front.unseen)} {left}, and no file lists the ranks of "
        f"group {calls[0].label}: the evidence does not say for whom {'it waits' if len(calls) == 1 else 'they wait'}"
    )


def _overtaken_text(front: Wavefront, blame: Blame, instance: Instance, call: RankCall) -> str:
    """Say which ranks wait in a collective that has ended on others."""
    ended = [rank for rank in call.group.ranks if rank not in blame.culprits and front.has_ended(rank, instance)]
    calls = [front.heads[rank][0] for rank in blame.culprits]
    who = f"{format_ranks(blame.culprits)} {wait_verb(calls)}"
    blocked = "its device or its network stands" if len(blame.culprits) == 1 else "their devices or networks stand"
    return f"{who} in {call_text(call)}{_number(instance)}, which has ended on {format_ranks(ended)}: {blocked} still"


def _has_begun(instance: Instance) -> bool:
    return any(call.state == "started" for call in instance.calls.values())

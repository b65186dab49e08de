"""The sentence of a hang report: who waits where, where the ranks parted, and who is to blame."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from dsexplore.analysis.hangs.blame import Blame
from dsexplore.analysis.hangs.mismatches import Mismatch
from dsexplore.analysis.hangs.rank_calls import Call, Instance, Job
from dsexplore.analysis.hangs.wavefront import Wavefront
from dsexplore.units import format_bytes, format_ranks


def place(source: str) -> str:
    """The innermost line of a call, ``train.py:12``, without the folders of its file."""
    line = source.partition(" ← ")[0]
    return PurePath(line).name if line else ""


def call_text(call: Call) -> str:
    """A call in words, with its line, group and bytes: ``all_reduce (train.py:12, group dp, 4 MiB)``."""
    details = [place(call.source), f"group {call.label}"]
    if call.pair is not None:
        details.append(f"rank {call.pair[0]} → {call.pair[1]}")
    if call.message_bytes:
        details.append(format_bytes(call.message_bytes))
    return f"{call.op} ({', '.join(part for part in details if part)})"


def difference_text(found: Mismatch) -> str:
    """Return what the ranks made of a collective, as one line of a comparison of logs.

    Worked example: ``"collective 4 of group 0 differs: ranks 0–2 all_reduce SUM of 64 B float32 at train.py:7, rank 3
    made no such call"``.
    """
    sides = [f"{format_ranks(ranks)} {_side_text(found.instance, ranks)}" for ranks in found.classes]
    more = len(sides) - _MOST_SIDES
    shown = [*sides[:_MOST_SIDES], *([f"… {more} more"] if more > 0 else [])]
    return f"collective {found.instance.id.number} of group {_label(found.instance)} differs: {', '.join(shown)}"


def _side_text(instance: Instance, ranks: Sequence[int]) -> str:
    call = instance.calls.get(ranks[0])
    if call is None:
        return "made no such call"
    size = f"of {format_bytes(call.message_bytes)}" if call.message_bytes else ""
    root = f"root {call.root}" if call.root is not None else ""
    line = f"at {place(call.source)}" if call.source else ""
    return " ".join(part for part in (call.op, call.reduction, size, call.dtype, root, line) if part)


_MOST_SIDES = 4


def sentence(job: Job, front: Wavefront, found: Blame) -> str:
    """One sentence that names what the hang is due to."""
    if found.reason == "none":
        ended = sum(len(rank.calls) for rank in job.ranks.values())
        return f"nothing hangs: no rank waits, all {ended:,} recorded calls ended"
    if found.reason in ("missing", "no evidence"):
        return _missing_text(job, front, found)
    if found.reason == "extra":
        return _extra_text(job, front, found)
    if found.reason in ("mismatch", "order"):
        return _parted_text(job, front, found)
    return _device_text(front, found)


def _missing_text(job: Job, front: Wavefront, found: Blame) -> str:
    accused = found.culprits or found.suspects
    first = next((one for one in found.instances if set(one.absent) & set(accused)), found.instances[0])
    waiting = format_ranks(call.rank for call in first.pending)
    verb = "waits" if len(first.pending) == 1 else "wait"
    whom = "it" if len(accused) == 1 else "them"
    with_line = next((call for call in first.pending if call.source), first.pending[0])  # a JSON dump has no frames
    where = f"{call_text(with_line)}{_number(first)}{_others(front, first)}"
    waits = f"{waiting} {verb} for {whom} in {where}"
    if found.reason == "no evidence":
        return _without_record_text(job, found, first, waits)
    text = f"{format_ranks(accused)} did not come: {waits}"
    lasts = [_last_text(job, rank) for rank in accused[:3]]
    return "; ".join([text, *filter(None, lasts), *_suspects_text(found)])


def _without_record_text(job: Job, found: Blame, first: Instance, waits: str) -> str:
    """Of ranks without a record that others wait for: the explanations that the records of those others leave."""
    accused = found.culprits or found.suspects
    unseen = [rank for rank in accused if not job.ranks[rank].has_left_evidence]
    it, its = ("it", "its file") if len(unseen) == 1 else ("they", "their files")
    absent, left = f"{format_ranks(accused)} did not come", f"{waits}; {format_ranks(unseen)} left"
    if not found.culprits:
        which = f"which does not say where {it} stopped nor, as {it} are most of the ranks, which of them stopped first"
        return f"{absent}: {left} no record, {which}"
    if all(job.ranks[rank].has_empty_file for rank in unseen):
        return f"{absent}: {left} nothing but an empty file, which does not say where {it} stopped"
    if all(call.state == "started" for call in first.pending):
        return f"{absent}: {left} no record, and the devices of all that wait have begun that call"
    other = f"or, should {its} alone be lost, the device of one of those that wait stands still"
    return f"{absent}, as far as is known: {left} no record: {it} ended or stopped before that call, {other}"


def _suspects_text(found: Blame) -> list[str]:
    if not found.suspects:
        return []
    who = "it" if len(found.suspects) == 1 else "they"
    return [f"{format_ranks(found.suspects)} left no record, which does not say whether {who} came"]


def _number(instance: Instance) -> str:
    call = next(iter(instance.calls.values()))
    return "" if instance.id.pair is not None else f", collective {instance.id.number} of group {call.label}"


def _others(front: Wavefront, first: Instance) -> str:
    others = front.heads.keys() - {call.rank for call in first.pending}
    verb = "waits" if len(others) == 1 else "wait"
    return f"; {format_ranks(others)} {verb} elsewhere because of that" if others else ""


def _last_text(job: Job, rank: int) -> str:
    known = job.ranks[rank]
    if known.end is not None:
        return f"rank {rank} {known.end.text}"
    if known.stack:
        return f"rank {rank} was at {_stack_line(known.stack)}"
    if not known.has_left_evidence:
        return f"rank {rank} left no record"
    if not known.calls:
        return f"rank {rank} has called nothing that its record kept"
    last = known.calls[-1]
    return f"the last call of rank {rank} was {call_text(last)}, which {'is in flight' if last.is_pending else 'ended'}"


def _stack_line(stack: str) -> str:
    """The innermost line of a stack that is the program's own: of a notebook's cell if there is one."""
    lines = re.findall(r'File "([^"]*)", line (\d+)', stack)
    own = [line for line in lines if line[0].startswith("In[")] or [one for one in lines if _is_own(one[0])] or lines
    return f"{place(own[0][0])}:{own[0][1]}" if own else (stack.strip().splitlines() or ["an unknown line"])[0].strip()


def _is_own(file: str) -> bool:
    return not any(part in file for part in ("site-packages", "torch/", "/lib/python", "<frozen", "<string>"))


def _extra_text(job: Job, front: Wavefront, found: Blame) -> str:
    absent = {rank for instance in found.instances for rank in instance.absent}
    text = "; ".join(_waits_by_call(front, found.culprits))
    return f"{text}; {format_ranks(absent)} did not call it, and had not called it before either"


def _waits_by_call(front: Wavefront, ranks: Iterable[int]) -> list[str]:
    """A text for each call in which some of the ranks wait: ``rank 1 waits in all_gather (…)``."""
    together: dict[tuple[object, ...], list[Call]] = {}
    for rank in sorted(ranks):
        for call in front.heads.get(rank, [])[:1]:
            together.setdefault((call.op, call.label, place(call.source), call.message_bytes), []).append(call)
    return [
        f"{format_ranks(call.rank for call in calls)} {'waits' if len(calls) == 1 else 'wait'} in {call_text(calls[0])}"
        for calls in together.values()
    ]


def _parted_text(job: Job, front: Wavefront, found: Blame) -> str:
    parted = found.instances[0]
    involved = {rank for instance in found.instances for rank in instance.calls} & front.heads.keys()
    first, others = (found.culprits, involved - set(found.culprits)) if found.culprits else ((), involved)
    texts = [*_waits_by_call(front, first), *_waits_by_call(front, others)]
    if found.culprits and not set(found.culprits) & front.heads.keys():
        texts.insert(0, f"{format_ranks(found.culprits)} called {call_text(parted.calls[found.culprits[0]])}")
    after = _last_common(parted, found)
    texts.append(
        f"they parted after collective {after} of group {_label(parted)}"
        if after
        else f"they parted in the first collective of group {_label(parted)}"
    )
    if found.mismatch is not None and found.mismatch.field != "op":
        texts[-1] += f", by {found.mismatch.field}{_roots(found.mismatch)}"
    if not found.culprits:
        texts.append("the evidence does not say which of them is wrong")
    else:
        texts.append(
            f"{format_ranks(found.culprits)} {'is' if len(found.culprits) == 1 else 'are'} the odd one{_plural(found)}"
        )
    return "; ".join(texts)


def _roots(parted: Mismatch) -> str:
    """The root that each side named, where they differ in it: `` (rank 0 for ranks 0, 1, 3; rank 2 for rank 2)``."""
    if parted.field != "root":
        return ""
    sides = [(parted.instance.calls[ranks[0]].root, ranks) for ranks in parted.classes]
    return " (" + "; ".join(f"rank {root} for {format_ranks(ranks)}" for root, ranks in sides) + ")"


def _plural(found: Blame) -> str:
    return "" if len(found.culprits) == 1 else "s"


def _label(instance: Instance) -> str:
    return next(iter(instance.calls.values())).label


def _last_common(parted: Instance, found: Blame) -> int:
    """The number of the last collective of the group that all called alike."""
    for instance in found.instances:
        if instance.id.pair is None and set(instance.absent) & set(found.culprits):
            return instance.id.number - 1
    return max(parted.id.number - 1, 0)


def _device_text(front: Wavefront, found: Blame) -> str:
    if not found.instances:
        waits: Sequence[str] = _waits_by_call(front, front.heads)
        return "; ".join([*waits[:4], "the evidence does not say for whom"])
    instance = found.instances[0]
    call = next(iter(instance.calls.values()))
    text = f"all of {format_ranks(instance.calls)} called {call_text(call)}{_number(instance)}, and it has not ended"
    if not found.culprits:
        return text + ": the evidence does not say on which rank"
    states = {instance.calls[rank].state for rank in found.culprits if rank in instance.calls}
    how = "has not begun on the device of" if states == {"scheduled"} and _has_begun(instance) else "is held up by"
    return f"{text}: it {how} {format_ranks(found.culprits)}"


def _has_begun(instance: Instance) -> bool:
    return any(call.state == "started" for call in instance.calls.values())

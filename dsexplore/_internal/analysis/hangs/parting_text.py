"""Describes where the ranks of a group diverged: after which collective, how their calls differ, and who is odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsexplore._internal.analysis.hangs.blame import Blame
from dsexplore._internal.analysis.hangs.call_text import MAX_SIDES, call_text, group_label, short_line, wait_verb
from dsexplore._internal.analysis.hangs.mismatches import Mismatch, differing_parts
from dsexplore._internal.analysis.hangs.rank_calls import Instance, RankCall
from dsexplore._internal.units import format_ranks


def mismatch_text(parted: Mismatch, blame: Blame) -> str:
    """Say what each side called in which collective, those to blame first, and how the calls differ."""
    sides = sorted(parted.classes, key=lambda ranks: not set(ranks) <= set(blame.culprits))
    texts = [_called_text(parted.instance, ranks) for ranks in sides[:MAX_SIDES]]
    texts.append(parted_after(max(parted.instance.id.number - 1, 0), group_label(parted.instance)))
    if parted.field != "op":
        texts[-1] += f", by {parted.field}{_values_text(parted)}"
    return "; ".join([*texts, odd_text(blame)])


def _called_text(instance: Instance, ranks: Sequence[int]) -> str:
    """Say what ranks called in a collective, and if they wait in it: ``ranks 0, 2 wait in all_reduce (…)``."""
    calls = [instance.calls[rank] for rank in ranks]
    verb = f"{wait_verb(calls)} in" if all(call.is_pending for call in calls) else "called"
    return f"{format_ranks(ranks)} {verb} {call_text(calls[0])}"


def _values_text(parted: Mismatch) -> str:
    """Return the root, dtype or reduction of each side: `` (rank 0 for ranks 0, 1, 3; rank 2 for rank 2)``."""
    read: dict[str, Callable[[RankCall], str]] = {
        "root": lambda call: f"rank {call.root}",
        "dtype": lambda call: call.dtype or "unknown",
        "reduction": lambda call: call.reduction or "unknown",
    }
    if parted.field == "size":
        return _parts_text(parted.instance)
    if parted.field not in read:
        return ""
    sides = [(read[parted.field](parted.instance.calls[ranks[0]]), ranks) for ranks in parted.classes]
    return " (" + "; ".join(f"{value} for {format_ranks(ranks)}" for value, ranks in sides) + ")"


def _parts_text(instance: Instance) -> str:
    """Return the parts of an all_to_all that differ: `` (rank 1 sends 4 elements to rank 0, which expects 2)``."""
    parts = differing_parts(instance)
    texts = [
        f"rank {part.sender} sends {part.sent:,} elements to rank {part.receiver}, which expects {part.expected:,}"
        for part in parts[:MAX_SIDES]
    ]
    more = [f"… {len(parts) - MAX_SIDES} more"] if len(parts) > MAX_SIDES else []
    return f" ({'; '.join([*texts, *more])})" if texts else ""


def lines_text(blame: Blame, parted: Sequence[Mismatch]) -> list[str]:
    """Say from which lines ranks of a blamed group first called one op differently: one text, or none."""
    groups = {instance.id.group for instance in blame.instances}
    first = next(
        (mismatch for mismatch in parted if mismatch.field == "line" and mismatch.instance.id.group in groups), None
    )
    if first is None:
        return []
    sides = [f"{format_ranks(ranks)} at {short_line(first.instance.calls[ranks[0]].source)}" for ranks in first.classes]
    group = group_label(first.instance)
    return [f"they parted in collective {first.instance.id.number} of group {group}: {', '.join(sides)}"]


def membership_text(heads: Sequence[RankCall]) -> str:
    """Say which ranks each rank put into the group that it waits in; empty if all put in the same ones."""
    groups = {call.group for call in heads}
    if len(groups) == len({group.made_as for group in groups}):
        return ""
    sides = [
        f"{format_ranks(call.rank for call in heads if call.group == group)} made it of {format_ranks(group.ranks)}"
        for group in sorted(groups)
    ]
    return f"group {heads[0].group.made_as} is not the same on all of them: {', '.join(sides)}"


def last_common(parted: Instance, blame: Blame) -> int:
    """Return the number of the group's last collective that all ranks called in the same way."""
    for instance in blame.instances:
        if instance.id.pair is None and set(instance.absent) & set(blame.culprits):
            return instance.id.number - 1
    return max(parted.id.number - 1, 0)


def parted_after(number: int, label: str) -> str:
    """Say after which collective of a group its ranks diverged; number 0 means in its first one."""
    if number > 0:
        return f"they parted after collective {number} of group {label}"
    return f"they parted in the first collective of group {label}"


def odd_text(blame: Blame) -> str:
    """Say which ranks are the odd ones, or that the evidence does not show them."""
    if not blame.culprits:
        return "the evidence does not say which of them is wrong"
    are_odd = "is the odd one" if len(blame.culprits) == 1 else "are the odd ones"
    return f"{format_ranks(blame.culprits)} {are_odd}"

"""Describes calls in words: their line, what they send, and how the calls of one collective differ between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from dsexplore._internal.analysis.hangs.mismatches import Mismatch
from dsexplore._internal.analysis.hangs.rank_calls import Instance, RankCall
from dsexplore._internal.units import format_bytes, format_ranks

MAX_SIDES = 4
"""Maximum number of groups of ranks that one sentence distinguishes."""


def call_line(source: str) -> str:
    """Return the innermost line of a call: ``src/train.py:12``."""
    return source.partition(" ← ")[0]


def short_line(source: str) -> str:
    """Return the innermost line of a call without the folders of its file: ``train.py:12``."""
    return PurePath(call_line(source)).name


def group_label(instance: Instance) -> str:
    """Return the name of a collective's group, as its ranks call it."""
    return next(iter(instance.calls.values())).label


def call_text(call: RankCall) -> str:
    """Return a call in words, with its line, group and bytes: ``all_reduce (train.py:12, group dp, 4 MiB)``."""
    details = [short_line(call.source), f"group {call.label}"]
    if call.pair is not None:
        details.append(f"rank {call.pair[0]} → {call.pair[1]}")
    if call.message_bytes:
        details.append(format_bytes(call.message_bytes))
    return f"{call.op} ({', '.join(detail for detail in details if detail)})"


def are_over(calls: Sequence[RankCall]) -> bool:
    """Return True if all these calls have failed, so that no rank waits in them."""
    return all(call.state == "failed" for call in calls)


def wait_verb(calls: Sequence[RankCall]) -> str:
    """Return the verb for the ranks of these calls, one call per rank: waits, wait, or waited if all failed."""
    if are_over(calls):
        return "waited"
    return "waits" if len(calls) == 1 else "wait"


def difference_text(mismatch: Mismatch) -> str:
    """Describe how the calls of a collective differ between ranks, as one line of a comparison of logs.

    Example: ``"collective 4 of group 0 differs: ranks 0–2 all_reduce SUM of 64 B float32 at train.py:7, rank 3 made no
        such call"``.
    """
    sides = [f"{format_ranks(ranks)} {_side_text(mismatch.instance, ranks)}" for ranks in mismatch.classes]
    more = len(sides) - MAX_SIDES
    shown = [*sides[:MAX_SIDES], *([f"… {more} more"] if more > 0 else [])]
    group = group_label(mismatch.instance)
    return f"collective {mismatch.instance.id.number} of group {group} differs: {', '.join(shown)}"


def _side_text(instance: Instance, ranks: Sequence[int]) -> str:
    """Describe the call that these ranks made in a collective: ``all_reduce SUM of 64 B float32 at train.py:7``."""
    call = instance.calls.get(ranks[0])
    if call is None:
        return "made no such call"
    size = f"of {format_bytes(call.message_bytes)}" if call.message_bytes else ""
    root = f"root {call.root}" if call.root is not None else ""
    line = f"at {short_line(call.source)}" if call.source else ""
    return " ".join(part for part in (call.op, call.reduction, size, call.dtype, root, line) if part)

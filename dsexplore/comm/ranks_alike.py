"""Ranks, and what each of them has, as text that stays short whatever their number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST = 4


def alike(values: Mapping[int, Any], text: Callable[[Any], str] = str) -> str:
    """The value of each rank as text: ranks with the same value together, the value of most ranks first.

    Worked example: ``{0: 4, 1: 4, 2: 4, 3: 5}`` → ``"ranks 0–2 4, rank 3 5"``.
    """
    by_value: dict[Any, list[int]] = defaultdict(list)
    for rank, value in values.items():
        by_value[value].append(rank)
    found = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
    parts = [f"{ranks_text(ranks)} {text(value)}" for value, ranks in found[:_MOST]]
    return ", ".join(parts) + (f", … {len(found) - _MOST} more" if len(found) > _MOST else "")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as text: ``"rank 3"``, ``"ranks 0–2, 5"``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(first) if first == last else f"{first}–{last}" for first, last in runs[:_MOST]]
    more = ", …" if len(runs) > _MOST else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(shown)}{more}"

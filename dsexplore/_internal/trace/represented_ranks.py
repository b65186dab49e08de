"""Sets of ranks as compact text, for traces in which one rank represents others that do the same.

Worked example: 0, 1, 2, 3, 8, 16, 24 is written ``0-3, 8-24/8``: from 0 to 3, and every eighth from 8 to 24.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

_PART = re.compile(r"(\d+)(?:-(\d+)(?:/([1-9]\d*))?)?")
_FEWEST = 3
"""Number of evenly spaced ranks from which they are written as one range with a step."""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as text, in ascending order."""
    remaining = sorted(ranks)
    parts: list[str] = []
    start = 0
    while start < len(remaining):
        end = start + 1
        step = remaining[end] - remaining[start] if end < len(remaining) else 1
        while end < len(remaining) and remaining[end] - remaining[end - 1] == step:
            end += 1
        if end - start < _FEWEST and step > 1:
            end = start + 1
        parts.append(_part(remaining[start], remaining[end - 1], step))
        start = end
    return ", ".join(parts)


def _part(first: int, last: int, step: int) -> str:
    """Return one range as text: ``3``, ``0-3`` or ``8-24/8``."""
    if first == last:
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last}/{step}"


def ranks_in(text: str) -> list[int]:
    """Return the ranks that `text` names.

    Raises:
        ValueError: `text` is not a list of ranks.
    """
    return list(chain.from_iterable(_ranges(text)))


def count_in(text: str) -> int:
    """Return the number of ranks that `text` names, without listing them.

    Raises:
        ValueError: `text` is not a list of ranks.
    """
    return sum(map(len, _ranges(text)))


def bounds_in(text: str) -> Iterator[int]:
    """Yield the first and the last rank of each range that `text` names.

    Raises:
        ValueError: `text` is not a list of ranks.
    """
    for ranks in _ranges(text):
        if ranks:
            yield ranks[0]
            yield ranks[-1]


def _ranges(text: str) -> list[range]:
    ranges = []
    for part in text.split(", "):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is neither a rank nor a range of ranks")
        first, last, step = match.groups()
        ranges.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return ranges


def joined(parts: Sequence[tuple[Sequence[int], Sequence[str]]]) -> tuple[str, ...]:
    """Return the ranks that each rank of several traces represents, in the order of ranks; empty if only itself.

    Args:
        parts: ranks and `TraceInfo.stands_for` of each trace.
    """
    if not any(texts for _, texts in parts):
        return ()
    text_of: dict[int, str] = {}
    for ranks, texts in parts:
        text_of.update(zip(ranks, texts or map(str, ranks), strict=True))
    return tuple(text_of[rank] for rank in sorted(text_of))


def weights(ranks: Sequence[int], stands_for: Sequence[str]) -> Mapping[int, int]:
    """Return {rank: number of ranks that it represents, itself included}."""
    return dict(zip(ranks, map(count_in, stands_for), strict=True)) if stands_for else dict.fromkeys(ranks, 1)

"""How mesh axes split one dim of a tensor: sizes in closed form, index ranges on demand.

A cut follows ``torch.chunk``: of ``size`` indices each of ``parts`` coordinates gets ``ceil(size / parts)``, the last
one that gets any gets the rest, and those after it get none. A strided cut first splits the dim into ``pieces`` in the
same way, and then every piece into ``parts``: coordinate i holds the i-th part of each piece. (torch 2.9 differs if the
dim is not divisible by ``pieces`` × ``parts``.)

Worked example: 10 indices, 4 parts, 1 piece → 0:3, 3:6, 6:9, 9:10. 8 indices, 2 parts, 2 pieces → coordinate 0 holds
0:2 and 4:6, coordinate 1 holds 2:4 and 6:8.

Nothing here loops over the coordinates of an axis, so the cost does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Range = tuple[int, int]
"""Indices of a dim: the first, and the end (exclusive)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Split of one dim by one mesh axis."""

    parts: int
    """Number of coordinates of the axis."""
    pieces: int = 1
    """Number of pieces into which the dim is split first; above 1 for a strided shard."""


def part_size(size: Any, cut: Cut, coordinate: Any) -> Any:
    """Return the number of `size` indices that a coordinate holds; numbers, or numpy arrays that broadcast."""
    piece = -(-size // cut.pieces)
    whole = size // np.maximum(piece, 1)
    return whole * _chunk_size(piece, cut.parts, coordinate) + _chunk_size(size - whole * piece, cut.parts, coordinate)


def _chunk_size(size: Any, parts: int, coordinate: Any) -> Any:
    chunk = -(-size // parts)
    return np.clip(size - chunk * coordinate, 0, chunk)


def borders(size: int, cut: Cut) -> set[int]:
    """Return the coordinates at which `part_size` may change; between two of them it is constant.

    Worked example: 10 indices in 8 parts are five chunks of 2 and three of 0: ``{5}``.
    """
    piece = -(-size // cut.pieces)
    rest = size - (size // piece) * piece if piece else 0
    result: set[int] = set()
    for cut_size in (piece, rest):
        chunk = -(-cut_size // cut.parts)
        if chunk:
            result |= {cut_size // chunk, -(-cut_size // chunk)}
    return {border for border in result if 0 < border < cut.parts}


def nested_borders(size: int, cuts: Sequence[Cut]) -> list[set[int]]:
    """Return the `borders` of each axis, for several axes that split one dim in turn.

    They hold for all coordinates of the other axes.
    """
    sizes, result = {size}, []
    for cut in cuts:
        here = set().union(*(borders(length, cut) for length in sizes))
        at = np.array([0, *sorted(here)])
        sizes = {int(part) for length in sizes for part in part_size(length, cut, at)}
        result.append(here)
    return result


def held_ranges(size: int, cuts: Iterable[Cut], coordinates: Iterable[int]) -> list[Range]:
    """Return the index ranges of a dim that one rank holds, ascending, as in its local tensor.

    Args:
        size: indices of the dim.
        cuts: the axes that split it, in mesh order.
        coordinates: the rank's coordinate on each of those axes.
    """
    held = [(0, size)]
    for cut, coordinate in zip(cuts, coordinates, strict=True):
        local = sum(stop - start for start, stop in held)
        held = _positions(held, _part_ranges(local, cut, coordinate))
    return held


def _part_ranges(size: int, cut: Cut, coordinate: int) -> list[Range]:
    piece = -(-size // cut.pieces)
    ranges = []
    for first in range(0, size, piece or 1):
        length = min(piece, size - first)
        chunk = -(-length // cut.parts)
        start, stop = min(chunk * coordinate, length), min(chunk * (coordinate + 1), length)
        if stop > start:
            ranges.append((first + start, first + stop))
    return ranges


def _positions(held: list[Range], wanted: list[Range]) -> list[Range]:
    """Map positions within the held ranges, counted over all of them, to index ranges; adjacent ranges are joined."""
    ranges: list[Range] = []
    position, source = 0, iter(held)
    low, high = next(source, (0, 0))
    for start, stop in wanted:
        while start < stop:
            while start - position >= high - low:
                position += high - low
                low, high = next(source)
            first = low + start - position
            last = min(high, first + stop - start)
            if ranges and ranges[-1][1] == first:
                ranges[-1] = ranges[-1][0], last
            else:
                ranges.append((first, last))
            start += last - first
    return ranges


def ranges_text(ranges: Sequence[Range], most: int = 4) -> str:
    """Return ranges as text, ``"0:2, 4:6"``; ``"–"`` for none; of more than `most` the first ones and their number."""
    if not ranges:
        return "–"
    text = ", ".join(f"{start}:{stop}" for start, stop in ranges[:most])
    return text if len(ranges) <= most else f"{text}, … ({len(ranges):,} ranges)"

"""Compute how mesh axes split one dim of a tensor: sizes in closed form, index ranges on demand.

A cut follows ``torch.chunk``: each coordinate gets ``ceil(size / parts)`` indices, until there are fewer left or none.
A strided cut first splits the dim into ``pieces`` in the same way, and then every piece into ``parts``: coordinate i
holds the i-th part of each piece. (torch 2.9 differs if the dim is not divisible by ``pieces`` × ``parts``.)

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
"""First index of a range, and the index after its last one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Split of one dim by one mesh axis."""

    parts: int
    """Number of coordinates of the axis."""
    pieces: int = 1
    """Number of pieces into which the dim is split first; above 1 for a strided shard."""


def part_size(size: Any, cut: Cut, coordinate: Any) -> Any:
    """Return the number of indices that a coordinate holds of `size`; both are numbers, or arrays that broadcast."""
    piece = -(-size // cut.pieces)
    whole = size // np.maximum(piece, 1)
    return whole * _chunk_size(piece, cut.parts, coordinate) + _chunk_size(size - whole * piece, cut.parts, coordinate)


def _chunk_size(size: Any, parts: int, coordinate: Any) -> Any:
    """Return the size of a coordinate's chunk, as ``torch.chunk`` makes it."""
    chunk = -(-size // parts)
    return np.clip(size - chunk * coordinate, 0, chunk)


def borders(size: int, cut: Cut) -> set[int]:
    """Return the coordinates at which `part_size` may change; between two of them it is constant.

    Worked example: 10 indices in 8 parts are five chunks of 2 and three of 0: ``{5}``.
    """
    piece = -(-size // cut.pieces)
    last_piece = size % piece if piece else 0
    result: set[int] = set()
    for cut_size in (piece, last_piece):
        chunk = -(-cut_size // cut.parts)
        if chunk:
            result |= {cut_size // chunk, -(-cut_size // chunk)}
    return {border for border in result if 0 < border < cut.parts}


def nested_borders(size: int, cuts: Sequence[Cut]) -> list[set[int]]:
    """Return the `borders` of each axis, for several axes that split one dim in turn.

    They include the borders for all coordinates of the other axes.
    """
    sizes = {size}
    result = []
    for cut in cuts:
        borders_of_axis = set().union(*(borders(length, cut) for length in sizes))
        coordinates = np.array([0, *sorted(borders_of_axis)])
        sizes = {int(part) for length in sizes for part in part_size(length, cut, coordinates)}
        result.append(borders_of_axis)
    return result


def held_ranges(size: int, cuts: Iterable[Cut], coordinates: Iterable[int]) -> list[Range]:
    """Return the index ranges of a dim that one rank holds, ascending, as in its local tensor.

    Args:
        size: number of indices of the dim.
        cuts: cuts of the axes that split the dim, in mesh order.
        coordinates: coordinate of the rank on each of these axes.
    """
    held = [(0, size)]
    for cut, coordinate in zip(cuts, coordinates, strict=True):
        local = sum(stop - start for start, stop in held)
        held = _positions(held, _part_ranges(local, cut, coordinate))
    return held


def _part_ranges(size: int, cut: Cut, coordinate: int) -> list[Range]:
    """Return the ranges of a coordinate in a dim that one axis splits; one per piece."""
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
    """Map ranges of positions, counted over all held ranges, to ranges of indices; adjacent ranges are joined."""
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
    """Return ranges as text, ``"0:2, 4:6"``, or ``"–"`` without any; beyond `most`, the first ones and the number."""
    if not ranges:
        return "–"
    text = ", ".join(f"{start}:{stop}" for start, stop in ranges[:most])
    return text if len(ranges) <= most else f"{text}, … ({len(ranges):,} ranges)"

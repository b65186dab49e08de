"""`DifferenceMap`: where in a tensor the ranks' values differ, as a small table of cells with the shards' outlines.

Two dims of the tensor are shown: sharded ones, and then the last ones. A cell has the largest difference of the
elements that it covers, over all other dims and over all ranks that hold them.

Worked example: an output of 8 × 16 × 32, sharded along dim 1 over four ranks, is a map of dims 1 and 2 with 16 × 32
cells and an outline for each rank: around rows 0 to 3 for rank 0, around rows 4 to 7 for rank 1, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_values import Compared, Part, replicas

MOST_ROWS, MOST_COLUMNS = 24, 64


@dataclass(frozen=True)
class HeldBlock:
    """A block of a tensor that some ranks hold, in cells of a map."""

    rows: tuple[float, float]
    """First row, and the row after the last one."""
    columns: tuple[float, float]
    """First column, and the column after the last one."""
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class DifferenceMap:
    """The differences of the ranks' values from the reference's, by place in a tensor."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dims: tuple[int, int]
    """Dims that are shown, down and across; the first is -1 for a tensor of one dim."""
    errors: tuple[tuple[float, ...], ...]
    """Rows of cells: the largest difference, relative to the tensor's root mean square; NaN where no rank holds an
    element."""
    allowed: float
    """Largest difference that rounding may make, relative to the tensor's root mean square."""
    blocks: tuple[HeldBlock, ...]
    """A block for each set of replicas; ranks that hold several ranges of a dim have a block for each range."""


def difference_map(entry: Compared) -> DifferenceMap | None:
    """Return the map of a compared tensor; None if it has no elements, one element, or is not compared by value."""
    whole = entry.whole if entry.whole.dim() else entry.whole.view(1)
    if not entry.parts or not whole.numel() or not entry.scale or not entry.whole.dim():
        return None
    dims = _shown_dims(whole, entry.parts)
    worst = torch.full(whole.shape, math.nan, dtype=torch.float64)
    for part in entry.parts:
        if part.value.shape != part.expected.shape:
            return None
        factor = 1.0 if entry.is_right else part.factor
        error = (part.value - part.expected * factor).abs().nan_to_num(nan=math.inf, posinf=math.inf) / entry.scale
        at = torch.meshgrid(*part.indices, indexing="ij")
        worst[at] = torch.fmax(worst[at], error)
    table = _reduce_other_dims(worst, dims)
    height, width = table.shape
    row_count, column_count = min(height, MOST_ROWS), min(width, MOST_COLUMNS)
    rows = torch.stack([_most(table[start:end], 0) for start, end in _bins(height, row_count)])
    cells = torch.stack([_most(rows[:, start:end], 1) for start, end in _bins(width, column_count)], 1)
    return DifferenceMap(
        shape=tuple(entry.whole.shape),
        dims=dims,
        errors=tuple(tuple(row) for row in cells.tolist()),
        allowed=entry.allowed / entry.scale,
        blocks=tuple(_blocks(entry.parts, dims, scales=(row_count / height, column_count / width))),
    )


def _shown_dims(whole: Tensor, parts: Sequence[Part]) -> tuple[int, int]:
    """Return two dims in ascending order: sharded ones first, then the last ones; (-1, 0) for a tensor of one dim."""
    if whole.dim() == 1:
        return -1, 0
    sharded = [dim for dim in range(whole.dim()) if any(len(part.indices[dim]) < whole.shape[dim] for part in parts)]
    others = [dim for dim in reversed(range(whole.dim())) if dim not in sharded]
    first, second = sorted([*sharded, *others][:2])
    return first, second


def _reduce_other_dims(worst: Tensor, dims: tuple[int, int]) -> Tensor:
    """Return the largest differences over all other dims, as a table of the two dims."""
    if dims[0] < 0:
        return worst.view(1, -1)
    rows_first = worst.movedim(dims, (0, 1)).flatten(2) if worst.dim() > 2 else worst[..., None]
    return _most(rows_first, 2)


def _most(values: Tensor, dim: int) -> Tensor:
    """Return the largest values along a dim, ignoring NaN; NaN where all are NaN."""
    largest = values.nan_to_num(nan=-1.0, posinf=math.inf).amax(dim)
    return torch.where(largest < 0, math.nan, largest)


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    """Return start and end of `count` ranges of nearly equal length that cover `size` positions."""
    return [(size * at // count, size * (at + 1) // count) for at in range(count)]


def _blocks(parts: Sequence[Part], dims: tuple[int, int], scales: tuple[float, float]) -> list[HeldBlock]:
    """Return the blocks that ranks hold; `scales` are cells per element, down and across."""
    ranks_of_block: dict[tuple[tuple[float, float], tuple[float, float]], set[int]] = {}
    for group in replicas(parts):
        ranks = {part.holder.rank for part in group}
        indices = group[0].indices
        row_ranges = [(0, 1)] if dims[0] < 0 else _ranges(indices[dims[0]])
        for rows in row_ranges:
            for columns in _ranges(indices[dims[1]]):
                place = (
                    (rows[0] * scales[0], rows[1] * scales[0]),
                    (columns[0] * scales[1], columns[1] * scales[1]),
                )
                ranks_of_block.setdefault(place, set()).update(ranks)
    return [HeldBlock(rows, columns, tuple(sorted(ranks))) for (rows, columns), ranks in sorted(ranks_of_block.items())]


def _ranges(index: Tensor) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers in an index, in ascending order."""
    ordered = index.sort().values
    if not len(ordered):
        return []
    ends = (ordered.diff() > 1).nonzero().flatten().tolist()
    starts = [0, *(end + 1 for end in ends)]
    return [
        (int(ordered[at]), int(ordered[end]) + 1) for at, end in zip(starts, [*ends, len(ordered) - 1], strict=True)
    ]

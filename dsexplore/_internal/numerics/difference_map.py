"""`DifferenceMap`: where in a tensor the ranks' values differ, as a small table of cells with the shards' outlines.

Two dims of the tensor are shown: those that ranks cut, else the last one and the one before. Cells hold the largest
difference over what they cover, over all other dims and over all ranks that hold it.

Worked example: an output of 8 × 16 × 32 cut in its dim 1 by four ranks is a map of dims 1 and 2, 16 × 32 cells, with
an outline around rows 0 to 3, which rank 0 holds, around 4 to 7, and so on.
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
    """What some ranks hold of a tensor, in cells of a map; ends are exclusive."""

    rows: tuple[float, float]
    columns: tuple[float, float]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class DifferenceMap:
    """Where in a tensor the numbers of ranks differ from the reference's."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    dims: tuple[int, int]
    """Dims that are shown, down and across; the first is -1 for a tensor of one dim."""
    errors: tuple[tuple[float, ...], ...]
    """A row of cells each: the largest difference relative to the tensor's root mean square; NaN where nothing is
    held."""
    allowed: float
    """What rounding may do, relative to the same, over the whole tensor."""
    blocks: tuple[HeldBlock, ...]
    """What each set of replicas holds; a rank that holds several stretches of a dim has a block of each."""


def difference_map(entry: Compared) -> DifferenceMap | None:
    """Return the map of a tensor that was compared; None where there is nothing to draw."""
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
    sizes = table.shape
    cells = min(sizes[0], MOST_ROWS), min(sizes[1], MOST_COLUMNS)
    rows = [_most(table[start:end], 0) for start, end in _bins(sizes[0], cells[0])]
    joined = torch.stack(rows)
    columns = torch.stack([_most(joined[:, start:end], 1) for start, end in _bins(sizes[1], cells[1])], 1)
    scales = cells[0] / sizes[0], cells[1] / sizes[1]
    return DifferenceMap(
        tuple(entry.whole.shape),
        dims,
        tuple(tuple(row) for row in columns.tolist()),
        entry.allowed / entry.scale,
        tuple(_blocks(entry.parts, dims, scales)),
    )


def _shown_dims(whole: Tensor, parts: Sequence[Part]) -> tuple[int, int]:
    if whole.dim() == 1:
        return -1, 0
    cut = [dim for dim in range(whole.dim()) if any(len(part.indices[dim]) < whole.shape[dim] for part in parts)]
    rest = [dim for dim in (whole.dim() - 1, *range(whole.dim() - 2, -1, -1)) if dim not in cut]
    first, second = sorted([*cut, *rest][:2])
    return first, second


def _reduce_other_dims(worst: Tensor, dims: tuple[int, int]) -> Tensor:
    if dims[0] < 0:
        return worst.view(1, -1)
    rows_first = worst.movedim(dims, (0, 1)).flatten(2) if worst.dim() > 2 else worst[..., None]
    return _most(rows_first, 2)


def _most(values: Tensor, dim: int) -> Tensor:
    """Return the largest values along a dim, without those that are NaN; NaN where all are."""
    largest = values.nan_to_num(nan=-1.0, posinf=math.inf).amax(dim)
    return torch.where(largest < 0, math.nan, largest)


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    return [(size * at // count, size * (at + 1) // count) for at in range(count)]


def _blocks(parts: Sequence[Part], dims: tuple[int, int], scales: tuple[float, float]) -> list[HeldBlock]:
    ranks_of_block: dict[tuple[tuple[float, float], tuple[float, float]], set[int]] = {}
    for group in replicas(parts):
        ranks = {part.holder.rank for part in group}
        indices = group[0].indices
        down = [(0, 1)] if dims[0] < 0 else _stretches(indices[dims[0]])
        for rows in down:
            for columns in _stretches(indices[dims[1]]):
                place = (
                    (rows[0] * scales[0], rows[1] * scales[0]),
                    (columns[0] * scales[1], columns[1] * scales[1]),
                )
                ranks_of_block.setdefault(place, set()).update(ranks)
    return [HeldBlock(rows, columns, tuple(sorted(ranks))) for (rows, columns), ranks in sorted(ranks_of_block.items())]


def _stretches(index: Tensor) -> list[tuple[int, int]]:
    """Return the ranges that make up an index, in ascending order."""
    ordered = index.sort().values
    if not len(ordered):
        return []
    ends = (ordered.diff() > 1).nonzero().flatten().tolist()
    starts = [0, *(end + 1 for end in ends)]
    return [
        (int(ordered[at]), int(ordered[end]) + 1) for at, end in zip(starts, [*ends, len(ordered) - 1], strict=True)
    ]

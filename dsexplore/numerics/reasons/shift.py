"""What is right at other positions: another rank's chunk, or a position earlier or later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part
from dsexplore.numerics.reasons.match import Match, is_near
from dsexplore.numerics.reasons.moved_slices import moved_slices, runs_text

FARTHEST = 3
"""Positions by which a sequence is looked at as shifted within a rank."""


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim along which ranks hold neighboring slices of the reference from another position on."""
    for dim, matched in moved_slices(parts, entry):
        if dim == entry.whole.dim() - 1 and dim:
            continue  # features have no positions
        misplaced = [(part, indices) for part, indices in matched if not torch.equal(indices, part.indices[dim])]
        if misplaced and all(_is_run(indices, entry.whole.shape[dim]) for _, indices in misplaced):
            part, indices = misplaced[0]
            return _match(
                f"rank {part.holder.rank} has positions {runs_text(indices)} of dim {dim} where "
                f"{runs_text(part.indices[dim])} belong"
            )
    for dim in range(entry.whole.dim() - 1):
        for by in [sign * far for far in range(1, FARTHEST + 1) for sign in (1, -1)]:
            if all(_is_shifted(part, dim, by, entry) for part in parts):
                return _match(f"positions of dim {dim} are shifted by {by}")
    return None


def _match(looks_like: str) -> Match:
    change = (
        "give each rank its own chunk: of a batch by a DistributedSampler with its rank; of a sequence add rank × "
        "length of a chunk to positions that count from 0"
    )
    return Match("shift", looks_like, change)


def _is_run(indices: Tensor, size: int) -> bool:
    return bool((indices.diff() % size == 1).all())


def _is_shifted(part: Part, dim: int, by: int, entry: Compared) -> bool:
    size = part.value.shape[dim]
    if size <= 2 * abs(by) or part.value.shape != part.expected.shape:
        return False
    kept = size - abs(by)
    value = part.value.narrow(dim, max(by, 0), kept)
    expected = part.expected.narrow(dim, max(-by, 0), kept)
    return is_near(value, expected * part.factor, entry, part.factor) and bool(expected.any())

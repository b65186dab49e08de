"""Right slices of the reference at wrong places of a dim: in another order, or shifted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part
from dsexplore.numerics.initial_weights import matching_indices
from dsexplore.numerics.part_layouts import block
from dsexplore.numerics.reasons.match import Match, is_near, runs_text

_TOLERANCE = 1e-8


def _matched_slices(parts: Sequence[Part], entry: Compared) -> Iterator[tuple[int, list[tuple[Part, Tensor]]]]:
    """Yield each dim along which every part consists of the reference's slices, with the indices of these."""
    for dim in range(entry.whole.dim()):
        if entry.whole.shape[dim] < 2:
            continue
        matched = []
        for part in parts:
            if part.value.shape != part.expected.shape:
                return
            others = [torch.arange(entry.whole.shape[at]) if at == dim else i for at, i in enumerate(part.indices)]
            among = block(entry.whole, tuple(others))
            indices = matching_indices(part.value / part.factor, among, dim, _TOLERANCE)
            if indices is None:
                break
            matched.append((part, indices))
        else:
            yield dim, matched


def permutation(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim along which the ranks hold the reference's slices in another order."""
    for dim, matched in _matched_slices(parts, entry):
        misplaced = [(part, indices) for part, indices in matched if not torch.equal(indices, part.indices[dim])]
        if not misplaced:
            continue
        part, indices = misplaced[0]
        is_last = dim == entry.whole.dim() - 1
        what = "columns" if is_last else "rows"
        looks = (
            f"the {what} are right in another order: rank {part.holder.rank} has {runs_text(indices)} of dim {dim} "
            f"where {runs_text(part.indices[dim])} belongs"
        )
        change = (
            "cut each of the parts that are joined in this dim (as query, key and value), then join what a rank has "
            "of each, or cut the weight that it is multiplied with in the same order"
            if is_last
            else "cut the dim in the order in which it is joined later"
        )
        return Match("permutation", looks, change)
    return None


_FARTHEST = 3
"""Positions by which a sequence is looked at as shifted within a rank."""


def shift(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim along which ranks hold neighboring slices of the reference from another position on."""
    for dim, matched in _matched_slices(parts, entry):
        if dim == entry.whole.dim() - 1 and dim:
            continue  # features have no positions
        misplaced = [(part, indices) for part, indices in matched if not torch.equal(indices, part.indices[dim])]
        if misplaced and all(_is_run(indices, entry.whole.shape[dim]) for _, indices in misplaced):
            part, indices = misplaced[0]
            return _shift_match(
                f"rank {part.holder.rank} has positions {runs_text(indices)} of dim {dim} where "
                f"{runs_text(part.indices[dim])} belong"
            )
    for dim in range(entry.whole.dim() - 1):
        for by in [sign * far for far in range(1, _FARTHEST + 1) for sign in (1, -1)]:
            if all(_is_shifted(part, dim, by, entry) for part in parts):
                return _shift_match(f"positions of dim {dim} are shifted by {by}")
    return None


def _shift_match(looks_like: str) -> Match:
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

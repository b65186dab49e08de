"""The right rows, columns or heads, in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part
from dsexplore.numerics.reasons.match import Match
from dsexplore.numerics.reasons.moved_slices import moved_slices, runs_text


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim along which the ranks hold the reference's slices in another order."""
    for dim, matched in moved_slices(parts, entry):
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

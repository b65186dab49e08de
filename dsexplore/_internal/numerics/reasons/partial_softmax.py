"""Recognize a softmax over each rank's part of the vocabulary: the sum of exponentials is not reduced."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part
from dsexplore._internal.numerics.part_layouts import varying_axes
from dsexplore._internal.numerics.reasons.match import Match

FEWEST = 4
"""Number of columns of a rank from which the multiple of a row is known; the column of the target has another one."""
_TOLERANCE = 1e-6
CHANGE = (
    "all_reduce the largest logit and the sum of exponentials over {axis} before dividing, as "
    "torch.distributed.tensor.parallel.loss_parallel does"
)


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for gradients of logits in which each row is a multiple of the reference's, except for one column.

    A softmax over a rank's own columns is too large by the sum of all exponentials over the sum of its own. The
    reciprocals of these multiples, added over the ranks that share a row, are the same for all rows.
    """
    if entry.phase != "backward" or entry.whole.dim() < 2:
        return None
    groups: dict[tuple[tuple[int, ...], ...], list[Part]] = {}
    for part in parts:
        if part.value.shape != part.expected.shape or not FEWEST <= part.value.shape[-1] < entry.whole.shape[-1]:
            return None
        groups.setdefault(tuple(tuple(index.tolist()) for index in part.indices[:-1]), []).append(part)
    shares = []
    for group in groups.values():
        multiples = [_multiple_of_rows(part) for part in group]
        sums = [multiple for multiple in multiples if multiple is not None]
        if len(sums) < len(group) or sum(part.value.shape[-1] for part in group) != entry.whole.shape[-1]:
            return None
        if all(float(rows.max() - rows.min()) <= _TOLERANCE * float(rows.max()) for rows in sums):
            return None
        shares.append(torch.stack([rows.reciprocal() for rows in sums]).sum(0))
    share = torch.cat(shares)
    if float(share.max() - share.min()) > _TOLERANCE * float(share.max()):
        return None
    axis = " × ".join(varying_axes(part.holder for part in next(iter(groups.values()))))
    looks = f"in each row a rank divides by the exponentials of its own columns: their sum over {axis} is missing"
    return Match("missing reduction", looks, CHANGE.format(axis=axis))


def _multiple_of_rows(part: Part) -> Tensor | None:
    """Return the positive multiple of each row that all columns but one have; None if a row has none."""
    value, expected = part.value.flatten(0, -2), part.expected.flatten(0, -2)
    ratios = value / expected
    multiple = ratios.median(-1).values
    differing = (ratios - multiple[:, None]).abs() > _TOLERANCE * multiple.abs()[:, None]
    if not bool(torch.isfinite(ratios).all()) or bool((differing.sum(-1) > 1).any()) or not bool((multiple > 0).all()):
        return None
    return multiple

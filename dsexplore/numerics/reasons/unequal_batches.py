"""Ranks with batches of different sizes are weighted alike."""

from __future__ import annotations

from collections.abc import Sequence

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part
from dsexplore.numerics.reasons.match import Match, is_close

CHANGE = (
    "weight each rank by its share: divide the sum of all losses by the number of elements on all ranks (all_reduced)"
)


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for gradients of outputs that are right on each rank but for a factor: one over its number of rows."""
    if entry.phase != "backward" or any(part.error > entry.allowed * abs(part.factor) for part in parts):
        return None
    shown = [part for part in parts if part.expected.numel() and bool(part.expected.any())]
    if len(shown) < 2 or all(is_close(part.factor, shown[0].factor) for part in shown):
        return None
    counts = [rows_with_gradient(part) for part in shown]
    products = [part.factor * count for part, count in zip(shown, counts, strict=True)]
    if not all(is_close(product, products[0]) for product in products):
        return None
    sizes = ", ".join(f"rank {part.holder.rank} {count}" for part, count in zip(shown, counts, strict=True))
    looks = f"ranks have means over different numbers of rows ({sizes}), weighted alike"
    return Match("unequal batches", looks, CHANGE)


def rows_with_gradient(part: Part) -> int:
    """Return how many rows of a part, along its last dim, have a gradient in the reference."""
    rows = part.expected.flatten(0, -2) if part.expected.dim() > 1 else part.expected.unsqueeze(-1)
    return int(rows.any(dim=-1).sum())

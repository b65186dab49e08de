"""Gradients of earlier steps are still in those of this one."""

from __future__ import annotations

from collections.abc import Sequence

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part
from dsexplore.numerics.part_layouts import block
from dsexplore.numerics.reasons.match import Match, is_near


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for the sum of the reference's gradients of the steps before."""
    if entry.phase != "gradient" or not entry.record.step:
        return None
    total, first = entry.whole, entry.record.step
    while first:
        first -= 1
        before = [earlier for earlier in comparison.of("gradient", first) if earlier.record.name == entry.record.name]
        if not before or before[0].whole.shape != total.shape:
            return None
        total = total + before[0].whole
        if all(is_near(part.value, block(total, part.indices), entry) for part in parts):
            looks = f"it is the sum of the reference's of steps {first} to {entry.record.step}"
            return Match("stale gradients", looks, "call optimizer.zero_grad() in each step, after optimizer.step()")
    return None

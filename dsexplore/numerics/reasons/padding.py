"""Positions that the reference omits are counted in."""

from __future__ import annotations

from collections.abc import Sequence

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part, factor_between
from dsexplore.numerics.reasons.factor import common_factor
from dsexplore.numerics.reasons.match import Match, is_close, is_near

CHANGE = "leave padding out of the loss and of the number that it is divided by, as with ignore_index"


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for gradients at rows where the reference has none, or for a mean that counts these rows."""
    if entry.phase == "backward":
        return _with_gradient_of_padding(parts, entry)
    if entry.phase not in ("gradient", "optimizer"):
        return None
    factor = common_factor(parts, entry)
    share = _share_of_rows(comparison, entry.record.step)
    if factor is None or share is None or not is_close(factor, share):
        return None
    return Match(
        "padding", f"it is {factor:.3g} of the reference's, the share of positions that are no padding", CHANGE
    )


def _with_gradient_of_padding(parts: Sequence[Part], entry: Compared) -> Match | None:
    count = 0
    for part in parts:
        if part.value.shape != part.expected.shape or part.value.dim() < 2:
            return None
        value, expected = part.value.flatten(0, -2), part.expected.flatten(0, -2)
        padding = ~expected.any(dim=-1)
        count += int((value[padding].any(dim=-1)).sum())
        factor = factor_between(value[~padding], expected[~padding])
        if not is_near(value[~padding], expected[~padding] * factor, entry, factor):
            return None
    if not count:
        return None
    return Match("padding", f"{count} rows have a gradient that the reference leaves out", CHANGE)


def _share_of_rows(comparison: Comparison, step: int) -> float | None:
    """Return which share of the rows of the model's output has a gradient; None where all have one."""
    outputs = [entry for entry in comparison.of("backward", step) if entry.whole.dim() > 1]
    if not outputs:
        return None
    rows = outputs[0].whole.flatten(0, -2).any(dim=-1)
    share = float(rows.double().mean())
    return share if 0 < share < 1 else None

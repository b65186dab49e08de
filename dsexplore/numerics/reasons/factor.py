"""All values are n times or 1/n of what is right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

from dsexplore.mesh import Mesh
from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part, factor_between
from dsexplore.numerics.reasons.match import Match, is_close, is_near

MOST = 4096


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for one factor of all ranks that is n or 1/n."""
    factor = common_factor(parts, entry)
    if factor is None:
        return None
    times = round(max(factor, 1 / factor)) if factor > 0 else 0
    if not 2 <= times <= MOST or not is_close(max(factor, 1 / factor), times):
        return None
    axes = axes_of_size(comparison.mesh, times)
    of = f", as many as ranks of {axes}" if axes else ""
    if factor > 1:
        return Match(
            "factor",
            f"it is {times} times the reference's{of}",
            f"take the mean where it is summed: divide by {times}, in the loss or in the reduction",
        )
    return Match(
        "factor",
        f"it is 1/{times} of the reference's{of}",
        f"divide by {times} once: sum where it is averaged a second time, or scale the loss by {times}",
    )


def common_factor(parts: Sequence[Part], entry: Compared) -> float | None:
    """Return the factor by which all parts differ from the reference; None where they differ otherwise."""
    factors = []
    for part in parts:
        if part.value.shape != part.expected.shape:
            return None
        if not part.expected.numel() or not bool(part.expected.any()):
            continue
        factor = factor_between(part.value, part.expected)
        if not is_near(part.value, part.expected * factor, entry, factor):
            return None
        factors.append(factor)
    return factors[0] if factors and all(is_close(factor, factors[0]) for factor in factors) else None


def axes_of_size(mesh: Mesh, size: int) -> str:
    """Return the axes of a mesh whose ranks are so many: ``tp``, or ``dp × tp``; empty for none."""
    axes = dict(zip(mesh.axes, mesh.shape, strict=True))
    for count in range(1, len(axes) + 1):
        for chosen in combinations(axes, count):
            if prod(axes[axis] for axis in chosen) == size:
                return " × ".join(chosen)
    return ""

"""Recognize values that are n times or 1/n of the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

from dsexplore._internal.mesh import Mesh
from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part, factor_between
from dsexplore._internal.numerics.reasons.match import Match, is_close, is_near

MOST = 4096
"""Largest factor that is taken for a number of ranks."""
MOST_SCALE = 2**24
"""Largest factor of a loss scale; factors above `MOST` must be powers of two."""


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for one factor, n or 1/n, of the values of all ranks, or of the bias that a module adds to each row."""
    factor = common_factor(parts, entry)
    if factor is None:
        return _match_bias(parts, entry, comparison)
    times = round(max(factor, 1 / factor)) if factor > 0 else 0
    if not 2 <= times <= MOST_SCALE or not is_close(max(factor, 1 / factor), times):
        return None
    if times > MOST:
        is_scale = entry.phase in ("gradient", "optimizer") and factor > 1 and times & (times - 1) == 0
        change = "unscale gradients before the optimizer reads them, as GradScaler.unscale_ and GradScaler.step do"
        if not is_scale:
            return None
        return Match("factor", f"it is {times:,} times the reference's, a scale of the loss", change)
    axes = axes_of_size(comparison.mesh, times)
    number_of_ranks = f", as many as ranks of {axes}" if axes else ""
    if factor > 1:
        return Match(
            "factor",
            f"it is {times} times the reference's{number_of_ranks}",
            f"take the mean where it is summed: divide by {times}, in the loss or in the reduction",
        )
    return Match(
        "factor",
        f"it is 1/{times} of the reference's{number_of_ranks}",
        f"divide by {times} once: sum where it is averaged a second time, or scale the loss by {times}",
    )


def _match_bias(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a bias that is n times in a module's output, because each rank added it before a sum over ranks."""
    factors = set()
    name = f"{entry.record.module}.bias".removeprefix(".")
    for part in parts:
        start = comparison.ranks[part.holder.rank].start if part.holder.rank < len(comparison.ranks) else {}
        bias = start.get(name)
        if entry.phase != "forward" or bias is None or part.value.shape != part.expected.shape:
            return None
        if bias.shape != part.value.shape[-1:] or not bool(bias.any()):
            return None
        added = (part.value - part.expected).flatten(0, -2) if part.value.dim() > 1 else part.value - part.expected
        more = factor_between(added.mean(0) if added.dim() > 1 else added, bias.double())
        if not is_near(part.value, part.expected + more * bias.double(), entry) or not is_close(more, round(more)):
            return None
        factors.add(round(more) + 1)
    times = factors.pop() if len(factors) == 1 else 0
    axes = axes_of_size(comparison.mesh, times) if times > 1 else ""
    looks = f"its bias is added {times} times, as many as ranks of {axes}"
    return Match("factor", looks, "add the bias once, after the all_reduce") if axes else None


def common_factor(parts: Sequence[Part], entry: Compared) -> float | None:
    """Return the factor between all parts and the reference; None if no single factor explains the difference."""
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


def loss_scale(comparison: Comparison, step: int) -> float:
    """Return the factor between a rank's loss and the reference's: that of the first gradient that has one, else 1.

    Worked example: ``dp=2`` shards the batch, and each rank takes the mean over its own rows. Then gradients of outputs
    are twice the reference's.
    """
    factors = (common_factor(entry.parts, entry) for entry in comparison.of("backward", step))
    return next((factor for factor in factors if factor is not None), 1.0)


def axes_of_size(mesh: Mesh, size: int) -> str:
    """Return the axes of a mesh that have `size` ranks: ``tp``, ``dp or tp``, or ``dp × tp``; empty if none have."""
    axes = dict(zip(mesh.axes, mesh.shape, strict=True))
    for count in range(1, len(axes) + 1):
        fitting = [chosen for chosen in combinations(axes, count) if prod(axes[axis] for axis in chosen) == size]
        if fitting:
            return " or ".join(" × ".join(chosen) for chosen in fitting)
    return ""

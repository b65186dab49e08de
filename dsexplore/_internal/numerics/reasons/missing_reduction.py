"""Recognize a missing reduction: the sum or the mean of the ranks' values is right."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

import torch

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part, factor_between, replicas
from dsexplore._internal.numerics.part_layouts import varying_axes
from dsexplore._internal.numerics.reasons.factor import loss_scale
from dsexplore._internal.numerics.reasons.match import Match, is_close, is_near


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for axes over which the sum or the mean of the ranks' values is right."""
    groups = replicas(parts)
    if any(len(group) < 2 for group in groups):
        return None
    axes = varying_axes(part.holder for part in groups[0])
    scale = loss_scale(comparison, entry.record.step) if entry.phase == "backward" else 1.0
    for count in range(1, len(axes) + 1):
        for chosen in combinations(axes, count):
            factor = factor_of_sum(parts, chosen, entry)
            ranks = len(next(_gathered(groups[0], chosen)))
            for kind, right in (("sum", scale), ("mean", scale * ranks), ("sum", 1.0), ("mean", float(ranks))):
                if factor is not None and is_close(factor, right):
                    return _match(kind, chosen, entry)
    return None


def factor_of_sum(parts: Sequence[Part], axes: Collection[str], entry: Compared) -> float | None:
    """Return the factor between the sum of replicas over these axes and the reference; None if it is not a multiple."""
    factors = [_factor(summed, entry) for group in replicas(parts) for summed in _gathered(group, axes)]
    comparable = [factor for factor in factors if factor is not None]
    is_common = len(comparable) == len(factors) and all(is_close(factor, comparable[0]) for factor in comparable)
    return comparable[0] if comparable and is_common else None


def _gathered(group: Sequence[Part], axes: Collection[str]) -> Iterator[list[Part]]:
    """Yield the parts of a group that differ only in their coordinates on these axes."""
    by_others: dict[tuple[int, ...], list[Part]] = {}
    for part in group:
        others = tuple(place for axis, place in part.holder.coordinates.items() if axis not in axes)
        by_others.setdefault(others, []).append(part)
    yield from by_others.values()


def _factor(parts: Sequence[Part], entry: Compared) -> float | None:
    """Return the factor between the sum of parts and the reference; None if there is none, or all parts are equal."""
    if len(parts) < 2 or any(part.value.shape != part.expected.shape for part in parts):
        return None
    values = torch.stack([part.value for part in parts])
    if sum(bool(value.any()) for value in values) < 2:
        return None  # one rank has everything, so something else than a sum is missing on the others
    if all(is_near(part.value, parts[0].value, entry) for part in parts):
        return None
    total, expected = values.sum(0), parts[0].expected
    factor = factor_between(total, expected)
    return factor if is_near(total, expected * factor, entry, factor) else None


def _match(kind: str, axes: Sequence[str], entry: Compared) -> Match:
    """Return the match for a missing sum or mean over these axes."""
    over = " × ".join("microbatches" if axis == "call" else axis for axis in axes)
    looks = f"each rank has its part: the {kind} over {over} is right"
    what = "its gradients" if entry.phase == "backward" else "it"
    if entry.phase == "gradient":
        what = "gradients"
    if entry.phase == "optimizer":
        what = "gradients, before the optimizer reads them"
    op = "all_reduce" if kind == "sum" else "all_reduce (with the mean)"
    return Match("missing reduction", looks, f"{op} {what} over {over}, or let DTensor or DDP do so", tuple(axes))

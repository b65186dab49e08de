"""Each rank has its part, and nothing reduces them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part, factor_between, replicas
from dsexplore.numerics.part_layouts import varying_axes
from dsexplore.numerics.reasons.match import Match, is_close, is_near


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for axes over which the sum or the mean of the ranks' values is right."""
    groups = replicas(parts)
    if any(len(group) < 2 for group in groups):
        return None
    axes = varying_axes(part.holder for part in groups[0])
    for count in range(1, len(axes) + 1):
        for chosen in combinations(axes, count):
            kinds = {_reduced(summed, entry) for group in groups for summed in _gathered(group, chosen)}
            if len(kinds) == 1 and (kind := kinds.pop()):
                return _match(kind, chosen, entry)
    return None


def _gathered(group: Sequence[Part], axes: Sequence[str]) -> Iterator[list[Part]]:
    """Yield the parts of a group that differ in their coordinates on these axes alone."""
    by_rest: dict[tuple[int, ...], list[Part]] = {}
    for part in group:
        rest = tuple(place for axis, place in part.holder.coordinates.items() if axis not in axes)
        by_rest.setdefault(rest, []).append(part)
    yield from by_rest.values()


def _reduced(parts: Sequence[Part], entry: Compared) -> str:
    """Return ``sum`` or ``mean`` where that of the values is right; empty where neither is, or all are the same."""
    if len(parts) < 2 or any(part.value.shape != part.expected.shape for part in parts):
        return ""
    values = torch.stack([part.value for part in parts])
    if all(is_near(part.value, parts[0].value, entry) for part in parts):
        return ""
    total, expected = values.sum(0), parts[0].expected
    factor = factor_between(total, expected)
    if not is_near(total, expected * factor, entry, factor):
        return ""
    return "sum" if is_close(factor, 1) else "mean" if is_close(factor, len(parts)) else ""


def _match(kind: str, axes: Sequence[str], entry: Compared) -> Match:
    over = " × ".join("microbatches" if axis == "call" else axis for axis in axes)
    looks = f"each rank has its part: the {kind} over {over} is right"
    what = "its gradients" if entry.phase == "backward" else "it"
    if entry.phase == "gradient":
        what = "gradients"
    if entry.phase == "optimizer":
        what = "gradients, before the optimizer reads them"
    op = "all_reduce" if kind == "sum" else "all_reduce (with the mean)"
    return Match("missing reduction", looks, f"{op} {what} over {over}, or let DTensor or DDP do so", tuple(axes))

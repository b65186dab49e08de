"""Ranks that should drop the same elements drop others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part, replicas
from dsexplore.numerics.reasons.match import Match, is_near

FEWEST, LEAST_SHARE = 16, 0.01
"""Elements that a tensor has, and share of them that are dropped, from which on zeros are taken for draws."""
CHANGE = (
    "draw it with the same generator state on ranks that hold the same values (as in torch.distributed.tensor's random "
    "ops), and with others where the values differ"
)


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for values that agree wherever neither the reference nor the rank has dropped them."""
    wrong = [part for part in parts if part.error > entry.allowed]
    if not wrong or not all(_differs_in_zeros(part, entry) for part in wrong):
        return None
    return Match("dropout", "other elements are dropped; those that are kept are right", CHANGE)


def _differs_in_zeros(part: Part, entry: Compared) -> bool:
    value, expected = part.value, part.expected
    if value.shape != expected.shape or value.numel() < FEWEST:
        return False
    zeros, of_reference = value == 0, expected == 0
    kept = ~(zeros | of_reference)
    shares = float(zeros.double().mean()), float(of_reference.double().mean())
    return min(shares) >= LEAST_SHARE and bool(kept.any()) and is_near(value[kept], expected[kept], entry)


def different_draws(comparison: Comparison) -> Iterator[tuple[Compared, tuple[int, ...], Match]]:
    """Yield replicated outputs of dropout whose replicas dropped different elements, with the ranks."""
    drawn = {(draw.module, draw.call, record.rank): draw.zeros for record in comparison.draws for draw in record.draws}
    for entry in comparison.of("forward", 0):
        for group in replicas(entry.parts):
            zeros = {
                part.holder.rank: drawn.get((entry.record.module, part.holder.call, part.holder.rank)) for part in group
            }
            draws = {rank: draw for rank, draw in zeros.items() if draw is not None}
            first = next(iter(draws.values()), None)
            if first is None or all(torch.equal(first, draw) for draw in draws.values()):
                continue
            ranks = tuple(sorted(draws))
            looks = "these ranks hold the same activation, and drop different elements of it"
            yield entry, ranks, Match("dropout", looks, CHANGE)
            break

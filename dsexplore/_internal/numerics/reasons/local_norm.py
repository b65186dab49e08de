"""Recognize gradients that are clipped, or updates that are scaled, by the norm of one rank's part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part, factor_between
from dsexplore._internal.numerics.part_layouts import block, rms
from dsexplore._internal.numerics.reasons.match import Match, is_close, is_near

CHANGE = (
    "clip by the norm of all gradients: sum the squares of the parts over the ranks that hold different ones, and "
    "count replicas once (torch.nn.utils.clip_grad_norm_ does so for DTensors)"
)


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for one factor of all gradients of each rank, if the reference's gradients are clipped."""
    if entry.phase == "optimizer":
        return _match_update(parts, entry)
    if entry.phase != "gradient":
        return None
    entries = comparison.of("gradient", entry.record.step)
    norm = _norm_of_reference(entries)
    if not _is_round(norm):
        return None
    factors = {rank: _factor(rank, entries) for rank in {part.holder.rank for part in parts}}
    comparable = {rank: factor for rank, factor in factors.items() if factor is not None}
    if not comparable:
        return _clipped_first(entries, comparison, entry.record.step, norm)
    if len(comparable) < len(factors):
        return None
    shown = ", ".join(f"{factor:.3g} on rank {rank}" for rank, factor in sorted(comparable.items())[:4])
    return Match(
        "local norm",
        f"all gradients of a rank have one factor ({shown}), and the reference's are clipped to {norm:.2g}",
        CHANGE,
    )


def _clipped_first(entries: Sequence[Compared], comparison: Comparison, step: int, norm: float) -> Match | None:
    """Look for gradients that are equal on all ranks and shorter than the reference's, after a right backward.

    Gradients that each rank has clipped have the same length, and their mean is shorter than that.
    """
    backward = comparison.of("backward", step)
    if any(entry.is_right for entry in entries if entry.scale > entry.allowed) or not backward:
        return None
    if not all(entry.is_right for entry in backward):
        return None
    squares = 0.0
    for entry in entries:
        first = entry.parts[0]
        if any(
            part.value.shape != entry.whole.shape or not is_near(part.value, first.value, entry) for part in entry.parts
        ):
            return None
        squares += float((first.value**2).sum())
    if not 0.0 < math.sqrt(squares) < norm:
        return None
    looks = (
        f"the reference's gradients are clipped to {norm:.2g}, and those of all ranks have norm "
        f"{math.sqrt(squares):.2g}: as the mean of gradients that each rank has clipped by its own norm"
    )
    return Match("local norm", looks, "reduce gradients over the ranks first, then clip by the norm of all")


def _match_update(parts: Sequence[Part], entry: Compared) -> Match | None:
    """Look for updates that each rank scales by norms of its shard, and the reference by norms of the parameter.

    LARS and LAMB scale by the norm of the parameter over that of the update, Adafactor by the norm of the update.
    """
    before = entry.record.value.double() - entry.whole
    by_update, by_both = [], []
    for part in parts:
        if part.value.shape != part.expected.shape or not part.expected.numel() or not bool(part.expected.any()):
            return None
        factor = factor_between(part.value, part.expected)
        if not is_near(part.value, part.expected * factor, entry, factor):
            return None
        of_update = rms(entry.whole) / rms(part.expected)
        of_parameter = rms(block(before, part.indices)) / rms(before) if bool(before.any()) else 0.0
        by_update.append((factor, of_update))
        by_both.append((factor, of_update * of_parameter))
    if all(is_close(factor, by_update[0][0]) for factor, _ in by_update):
        return None
    for norms, pairs in (("the update", by_update), ("the parameter and of the update", by_both)):
        if all(is_close(factor, expected) for factor, expected in pairs):
            shown = ", ".join(
                f"{pair[0]:.3g} on rank {part.holder.rank}" for pair, part in zip(pairs[:4], parts, strict=False)
            )
            looks = f"a rank's shard has one factor ({shown}), by the norm of its part of {norms}"
            change = (
                "take the norms of whole parameters: sum the squares of the shards over the ranks that hold them, or "
                "let the optimizer compute with DTensors"
            )
            return Match("local norm", looks, change)
    return None


def _factor(rank: int, entries: Sequence[Compared]) -> float | None:
    """Return the common factor of all gradients of a rank; None if there is none."""
    products = squares = 0.0
    parts = [(part, entry) for entry in entries for part in entry.parts if part.holder.rank == rank]
    for part, _ in parts:
        if part.value.shape != part.expected.shape:
            return None
        squares += float((part.expected**2).sum())
        products += float((part.expected * part.value).sum())
    factor = products / squares if squares else 1.0
    fits = all(is_near(part.value, part.expected * factor, entry, factor) for part, entry in parts)
    return factor if fits else None


def _norm_of_reference(entries: Sequence[Compared]) -> float:
    """Return the norm of all gradients of the reference; equal ones are of a tied parameter, and count once."""
    distinct: list[Tensor] = []
    for entry in entries:
        if not any(torch.equal(entry.whole, gradient) for gradient in distinct):
            distinct.append(entry.whole)
    return math.sqrt(sum(float((gradient**2).sum()) for gradient in distinct))


def _is_round(norm: float) -> bool:
    """Return True if a norm has two digits, up to the small constant that clipping adds."""
    rounded = float(f"{norm:.2g}")
    return norm > 0 and abs(norm - rounded) <= 2e-4 * rounded

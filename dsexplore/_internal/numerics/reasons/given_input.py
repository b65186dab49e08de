"""Recognize linear layers with a wrong input, which is computed back from the output: permuted, partial or scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part
from dsexplore._internal.numerics.part_layouts import block, rms
from dsexplore._internal.numerics.reasons import factor, misplaced_slices, missing_reduction
from dsexplore._internal.numerics.reasons.match import Match, is_near

MOST_INPUTS = 1024
"""Largest number of inputs of a layer whose weight is inverted."""


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Try other rules on the input of a linear layer whose whole output each rank has.

    If the weight has at least as many rows as columns, in float64 the input follows from output, weight and bias.
    """
    inputs = _input_entry(parts, entry, comparison)
    if inputs is None:
        return None
    for other in (missing_reduction.rule, misplaced_slices.shift, misplaced_slices.permutation, factor.rule):
        match = other(inputs.parts, inputs, comparison)
        if match is not None:
            return replace(match, looks_like=f"in its input, computed back by its weight, {match.looks_like}")
    return None


def _input_entry(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Compared | None:
    """Return the inputs of a linear layer as an entry; None if they do not follow from its outputs."""
    if entry.phase != "forward" or entry.record.name != "output" or entry.whole.dim() < 2:
        return None
    weight = _parameter_before_step(comparison, entry, "weight")
    if weight is None or weight.dim() != 2 or weight.shape[0] != entry.whole.shape[-1]:
        return None
    if not MOST_INPUTS >= weight.shape[1] <= weight.shape[0] or any(
        part.value.shape != part.expected.shape or part.value.shape[-1] != len(weight) for part in parts
    ):
        return None
    bias = _parameter_before_step(comparison, entry, "bias")
    added = bias if bias is not None else weight.new_zeros(len(weight))
    inverse = torch.linalg.pinv(weight)
    whole = (entry.whole - added) @ inverse.T
    if not is_near(whole @ weight.T + added, entry.whole, entry):
        return None
    columns = torch.arange(weight.shape[1])
    shards = []
    for part in parts:
        value = (part.value - added) @ inverse.T
        if not is_near(value @ weight.T + added, part.value, entry):
            return None
        indices = (*part.indices[:-1], columns)
        expected = block(whole, indices)
        shards.append(Part(part.holder, value, indices, expected, factor=1.0, error=rms(value - expected)))
    allowed = entry.allowed * max(float(torch.linalg.matrix_norm(inverse, 2)), 1.0)
    return Compared(record=entry.record, whole=whole, parts=shards, allowed=allowed, scale=rms(whole))


def _parameter_before_step(comparison: Comparison, entry: Compared, name: str) -> Tensor | None:
    """Return a parameter of the entry's module in the reference, as it was before the step."""
    name = f"{entry.record.module}.{name}".removeprefix(".")
    for other in comparison.entries:
        if other.phase == "optimizer" and other.record.step == entry.record.step and other.record.name == name:
            return other.record.value.double() - other.whole
    return None

"""Where numbers part first: in the gradient of an output, or in those of parameters that are reduced later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared
from dsexplore._internal.numerics.first_difference import FirstDifference, first_difference
from dsexplore._internal.numerics.numeric_records import Phase
from tests.numerics.compared import comparison_of, entry_of, values

MESH = "dp=2,tp=2"
WHOLE, WEIGHT = values(4, 6), values(6, 3)
SCALE = 2.0
"""Of gradients of outputs: each rank of dp takes the mean over its half of the batch."""


def entry(phase: Phase, module: str, name: str, whole: Tensor, parts: list[Tensor], *sources: str) -> Compared:
    compared = entry_of(whole, parts, MESH, phase)
    return replace(compared, record=replace(compared.record, module=module, name=name, sources=sources or None))


def of_ranks(whole: Tensor, scale: float = 1.0) -> list[Tensor]:
    return [part * scale for part in whole.chunk(2) for _ in range(2)]


def in_parts(whole: Tensor, *, rows: bool = True) -> list[Tensor]:
    """Return values whose sum over tp is right, in the scale of the loss where dp cuts the rows."""
    parts = []
    for seed, right in enumerate(whole.chunk(2) if rows else (whole, whole)):
        mine = values(*right.shape, seed=7 + (seed if rows else 0))
        parts += [mine, (SCALE if rows else 1.0) * right - mine]
    return parts


def difference(*, norm_is_right: bool) -> FirstDifference | None:
    """Compare keys of which each rank of tp has a part, computed of a norm whose gradient is reduced or is not."""
    entries = [
        entry("forward", "norm", "output", WHOLE, of_ranks(WHOLE)),
        entry("forward", "keys", "output", WHOLE, of_ranks(WHOLE), "norm"),
        entry("forward", "head", "output", WHOLE, of_ranks(WHOLE), "keys"),
        entry("backward", "head", "output", WHOLE, of_ranks(WHOLE, SCALE)),
        entry("backward", "keys", "output", WHOLE, in_parts(WHOLE)),
        entry("backward", "norm", "output", WHOLE, of_ranks(WHOLE, SCALE) if norm_is_right else in_parts(WHOLE)),
        entry("gradient", "keys", "keys.weight", WEIGHT, in_parts(WEIGHT, rows=False)),
        entry("gradient", "head", "head.weight", WEIGHT, [WEIGHT] * 4),
        entry("optimizer", "keys", "keys.weight", WEIGHT, in_parts(WEIGHT, rows=False)),
    ]
    comparison: Comparison = comparison_of(MESH, *entries)
    return first_difference(comparison)


@pytest.mark.parametrize("norm_is_right", [True, False])
def test_parts_that_are_reduced_before_what_they_are_computed_of_do_not_count(norm_is_right: bool) -> None:
    found = difference(norm_is_right=norm_is_right)
    assert found is not None
    assert found.match is not None
    assert (found.phase, found.module) == (("gradient", "keys") if norm_is_right else ("backward", "keys"))
    assert (found.match.reason, found.match.axes) == ("missing reduction", ("tp",))
    assert "the sum over tp is right" in found.match.looks_like

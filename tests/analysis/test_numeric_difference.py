"""`NumericDifference`: where two recorded runs part, rank by rank and as whole tensors."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from dsexplore._internal.analysis.numeric_difference import NumericDifference
from dsexplore._internal.trace import schema

NAMED = {"rank": 0, "step": 0, "seq": 0, "phase": "forward", "module": "Llama.layers.0", "name": "output", "call": 0}
VALUES = {"count": 64, "norm": 8.0, "mean": 0.5, "min": -2.0, "max": 2.0, "projection": 1.5, "hash": 7}
ROW = {**NAMED, "dtype": "float32", "placements": "", **VALUES}


def run(*rows: dict[str, Any]) -> pl.DataFrame:
    """Summaries of one tensor each, in program order."""
    return pl.DataFrame([{**ROW, "seq": seq, **row} for seq, row in enumerate(rows)], schema=schema.NUMERICS)


def difference(before: pl.DataFrame, after: pl.DataFrame) -> NumericDifference:
    return NumericDifference(before, after)


def test_equal_runs_have_the_same_bits() -> None:
    found = difference(run({}, {"rank": 1}), run({}, {"rank": 1}))
    assert (found.same, found.same_bits, found.first) == (True, True, None)
    assert found.verdict() == "The same bits: all summaries of 1 tensor agree on each rank."


@pytest.mark.parametrize(
    ("change", "looks"),
    [
        ({"norm": 16.0, "hash": 9}, "norm 8 in A, 16 in B, 2 times as much"),
        ({"norm": 2.0, "hash": 9}, "norm 8 in A, 2 in B, 1/4 of it"),
        ({"norm": 8.1, "hash": 9}, "norm 8 in A, 8.1 in B"),
        ({"mean": 0.6, "hash": 9}, "norm 8 in A, 8 in B"),
        ({"projection": 1.6}, "the same values in another order"),
    ],
)
def test_the_first_tensor_is_named_with_its_rank_and_what_it_looks_like(change: dict[str, Any], looks: str) -> None:
    tail = {"module": "Llama.layers.1", "norm": 3.0, "hash": 1}
    before, after = run({}, {"rank": 1}, tail), run({}, {"rank": 1, **change}, {**tail, "norm": 9.0})
    found = difference(before, after)
    assert not found.same
    assert (
        found.verdict() == f"The values first differ in forward of step 0, layers.0, in its output on rank 1: {looks}."
    )


def test_rounding_is_no_difference_but_is_said() -> None:
    found = difference(run({}), run({"norm": 8.0 + 8e-6, "hash": 8}))
    assert found.same
    assert not found.same_bits
    assert found.verdict().startswith("The same but for rounding: bits differ first in forward of step 0, layers.0")


@pytest.mark.parametrize(("norm", "same"), [(1.0001e-4, True), (3e-4, False)])
def test_what_cancellation_leaves_is_judged_by_the_largest_values_of_the_phase(norm: float, same: bool) -> None:
    large = {"phase": "gradient", "module": "Llama.norm", "name": "weight"}
    small = {**large, "module": "Llama.layers.1", "norm": 1e-4, "mean": 0.0}
    assert difference(run(large, small), run(large, {**small, "norm": norm, "hash": 8})).same is same


@pytest.mark.parametrize(
    "parts",
    [
        [{"rank": rank, "count": 16, "norm": 4.0} for rank in range(4)],  # a quarter each: 4 × 16 is 64
        [{"rank": rank} for rank in range(4)],  # copies
        [{"rank": rank, "count": 32, "norm": 32.0**0.5} for rank in range(4)],  # halves, held twice
        [{"call": call, "count": 16, "norm": 4.0} for call in range(4)],  # microbatches
    ],
)
def test_other_plans_are_compared_by_whole_tensors(parts: list[dict[str, Any]]) -> None:
    assert difference(run({}), run(*parts)).same
    wrong = run(*({**part, "norm": 2 * part.get("norm", 8.0)} for part in parts))
    found = difference(run({}), wrong)
    assert not found.same
    assert "2 times as much" in found.verdict()
    assert "on rank" not in found.verdict()


def test_a_part_of_a_sum_inside_a_module_that_is_right_is_no_difference() -> None:
    inner = [{"module": "Llama.mlp.down", "rank": rank, "norm": 3.0} for rank in (0, 1)]
    whole = [{"module": "Llama.mlp", "rank": rank} for rank in (0, 1)]
    before = run({"module": "Llama.mlp.down"}, {"module": "Llama.mlp"})
    assert difference(before, run(*inner, *whole)).same
    assert not difference(before, run(*inner, *({**one, "norm": 3.0} for one in whole))).same

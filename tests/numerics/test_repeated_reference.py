"""References that compute something else in each run, those that do not, and those that amplify rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.numerics.numeric_records import Draw, NumericRecord, RunRecord
from dsexplore._internal.numerics.repeated_reference import (
    SAME,
    changed_draw,
    changed_weights,
    repeated,
    report_of_draws,
    report_of_reference,
)
from tests.numerics.compared import values

WHOLE = values(4, 6)


def run(*outputs: Tensor, weight: Tensor = WHOLE) -> RunRecord:
    records = [NumericRecord(0, "forward", f"layers.{at}", "output", 0, (), value) for at, value in enumerate(outputs)]
    return RunRecord(model="Net", records=records, start={"layers.0.weight": weight})


def are_same(first: RunRecord, second: RunRecord) -> list[bool]:
    return [row.is_same for row in repeated(first, second, SAME)]


def test_a_run_repeats_itself_also_in_what_is_no_number() -> None:
    odd = WHOLE.clone()
    odd[0, 0], odd[1, 1] = torch.nan, torch.inf
    assert are_same(run(WHOLE, odd), run(WHOLE, odd.clone())) == [True, True]
    assert are_same(run(WHOLE, odd), run(WHOLE, WHOLE)) == [True, False]


@pytest.mark.parametrize(("error", "same"), [(1e-13, True), (1e-3, False)])
def test_the_first_tensor_that_changes_is_found(error: float, same: bool) -> None:
    noise = WHOLE + error * values(4, 6, seed=2)
    assert are_same(run(WHOLE, WHOLE), run(WHOLE, noise)) == [True, same]


def test_what_is_zero_up_to_rounding_does_not_change() -> None:
    tiny = 1e-17 * values(4, 6, seed=2)
    assert are_same(run(WHOLE, tiny), run(WHOLE, -tiny)) == [True, True]


def test_another_shape_or_fewer_calls_are_a_change() -> None:
    assert are_same(run(WHOLE), run(WHOLE[:2])) == [False]
    assert are_same(run(WHOLE, WHOLE), run(WHOLE)) == [True, False]


def test_the_report_names_the_place_and_no_rank_and_no_fault_of_the_plan() -> None:
    first, second = run(WHOLE, WHOLE), run(WHOLE, 2 * WHOLE)
    report = report_of_reference(first, list(repeated(first, second, SAME)), None, parse_mesh("tp=2"))
    assert (report.same, report.module, report.phase, report.ranks, report.reason) == (
        *(False, "layers.1", "forward"),
        *((), None),
    )
    assert report.verdict().startswith(
        "The reference itself differs between two runs: in forward of step 0 the output of Net.layers.1 differs by 100"
    )
    assert report.to_frame()["same"].to_list() == [True, False]
    assert "num-wrong" in report._repr_mimebundle_()["text/html"].partition("</style>")[2]


def test_initial_weights_that_change_are_named_first() -> None:
    first, second = run(WHOLE), run(2 * WHOLE, weight=2 * WHOLE)
    assert changed_weights(first, run(WHOLE)) is None
    name = changed_weights(first, second)
    assert name == "layers.0.weight"
    report = report_of_reference(first, list(repeated(first, second, SAME)), name, parse_mesh("tp=2"))
    assert "its initial layers.0.weight differs" in report.verdict()
    assert report.module == "layers.0"


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_that_change_are_named(seed: int) -> None:
    def drawn(by: int) -> RunRecord:
        values_drawn = values(64, seed=by) > 0
        return replace(run(WHOLE), draws=[Draw(0, "drop", 0, "dropout", values_drawn, False, False)])

    draw = changed_draw(drawn(0), drawn(seed))
    assert (draw is not None) == bool(seed)
    if draw is not None:
        first = run(WHOLE)
        frame = report_of_reference(first, list(repeated(first, run(WHOLE), SAME)), "w", parse_mesh("tp=2")).to_frame()
        report = report_of_draws(first, draw, frame, parse_mesh("tp=2"))
        assert "dropout in Net.drop draws other elements" in report.verdict()

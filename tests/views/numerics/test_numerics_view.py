"""The view of a comparison of numbers: sentence, ranks, and the place opened, in plain HTML."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from dsexplore._internal.display import plain_text
from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared
from dsexplore._internal.numerics.first_difference import FirstDifference, first_difference
from dsexplore._internal.numerics.numeric_records import Phase, RunRecord
from dsexplore._internal.numerics.numerics_report import NumericsReport, report_of
from dsexplore._internal.views.numerics.module_errors import error_tree
from tests.numerics.compared import comparison_of, entry_of, values

WHOLE = values(4, 8, 6)


def report(error: float, module: str = "layers.0.mlp<b>") -> NumericsReport:
    """Return the report of a model whose module is wrong by a relative error, on one of two ranks, and all that comes
    after it."""
    noise = WHOLE + error * values(4, 8, 6, seed=2)
    rows: list[tuple[Phase, str, str, tuple[str, ...], torch.Tensor]] = [
        ("forward", "layers.0.norm", "output", ("", "layers.0"), WHOLE),
        ("forward", module, "output", ("", "layers.0"), noise),
        ("forward", "layers.0", "output", ("",), noise),
        ("forward", "", "output", (), noise),
        ("gradient", module, f"{module}.weight", (), noise),
    ]
    entries = [of(phase, name, label, inside, other) for phase, name, label, inside, other in rows]
    comparison: Comparison = comparison_of("tp=2", *entries)
    comparison.ranks.append(RunRecord(model="Net"))
    return report_of(comparison, first_difference(comparison), ())


def of(phase: Phase, module: str, name: str, inside: tuple[str, ...], other: torch.Tensor) -> Compared:
    entry = entry_of(WHOLE, [WHOLE, other], "tp=2", phase)
    record = replace(entry.record, module=module, name=name, inside=inside)
    return replace(entry, record=record)


def test_the_first_place_is_said_and_open() -> None:
    shown = report(0.1)
    page = shown._repr_mimebundle_()["text/html"]
    assert shown.module == "layers.0.mlp<b>"
    assert '<p class="verdict">The numbers first differ in forward of step 0' in page
    assert "reason unknown" in page
    assert len(re.findall("<details[^>]* open", page)) >= 2  # the model, and what holds the module
    assert re.search(r'num-first">.*?mlp', page)
    assert "mlp<b>" not in page
    assert '<span>0</span><span class="bad">1!</span>' in page


def test_the_text_lists_what_differs() -> None:
    lines = plain_text(report(0.1)).splitlines()
    assert lines[0] == report(0.1).verdict()
    assert lines[1].startswith("  forward of layers.0.mlp<b>: 9")


def test_the_same_numbers_are_said_and_nothing_is_marked() -> None:
    shown = report(1e-13)
    page = shown._repr_mimebundle_()["text/html"]
    assert shown.same
    assert (
        '<p class="verdict">The same numbers: on tp=2, Net computes in 1 step what it computes on one process.</p>'
        in page
    )
    assert "num-wrong" not in page.partition("</style>")[2]
    assert "Ranks that differ" not in page


@pytest.mark.parametrize("error", [1e-13, 0.1, 1e9, float("nan"), float("inf")])
def test_marks_stay_on_the_scale_and_pages_are_the_same_twice(error: float) -> None:
    first, second = (report(error)._repr_mimebundle_()["text/html"] for _ in range(2))
    assert first == second
    assert "<script" not in first
    assert all(0 <= float(place) <= 100 for place in re.findall(r"left:min\(([\d.e+-]+)%", first))


def test_the_tensor_is_drawn_where_it_differs_with_the_ranks_that_hold_it() -> None:
    page = report(0.1)._repr_mimebundle_()["text/html"]
    picture = page.partition('<div class="dif"')[2].partition("</div>")[0]
    assert "<path" in picture
    assert ">ranks 0, 1<" in picture
    assert 'class="dif"' not in report(1e-13)._repr_mimebundle_()["text/html"]


def test_parts_of_a_sum_before_the_place_are_not_marked_as_wrong() -> None:
    before = of("backward", "layers.0.norm", "output", ("", "layers.0"), values(4, 8, 6, seed=3))
    wrong = of("gradient", "layers.0.mlp", "layers.0.mlp.weight", (), 2 * WHOLE)
    entries = [of("forward", "layers.0.norm", "output", (), WHOLE), before, wrong]
    comparison: Comparison = comparison_of("tp=2", *entries)
    shown = report_of(
        comparison, FirstDifference("gradient", "layers.0.mlp", wrong.record.name, 0, (1,), None, 1.0), ()
    )
    tree = error_tree(shown, 0)
    norm, mlp = tree.children[0].children[0].children
    assert (norm.cells["backward"].is_wrong, norm.cells["backward"].is_part) == (False, True)
    assert mlp.cells["gradient"].is_wrong
    assert tree.worst("gradient") == mlp.cells["gradient"]
    page = shown._repr_mimebundle_()["text/html"].partition("</style>")[2]
    assert page.count("num-here") == 1
    assert "partial sums" in page

"""The view of a `NumericDifference`."""

from __future__ import annotations

from dsexplore._internal.views.numerics.numeric_difference_view import NumericDifferenceView
from tests.analysis.test_numeric_difference import difference, run


def test_shows_the_sentence_and_the_first_tensors_that_differ() -> None:
    rows = [{"module": f"Llama.<{layer}>"} for layer in range(30)]
    found = difference(run(*rows), run(*({**row, "norm": 9.0, "hash": 1} for row in rows)))
    view = NumericDifferenceView(found)
    assert view.text() == found.verdict()
    page = view.html()
    assert page.count("<tr") == 21
    assert "10 more" in page
    assert "<0>" not in page


def test_equal_runs_have_no_table() -> None:
    assert "<table" not in NumericDifferenceView(difference(run({}), run({}))).html()

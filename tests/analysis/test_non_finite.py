"""The first NaN or infinity: its module, its ranks, and the sentence of two runs that names it.

Modules: ``analysis/numeric_difference.py``.
"""

from __future__ import annotations

import pytest

from dsexplore._internal.analysis.numeric_difference import first_non_finite
from tests.analysis.test_numeric_difference import difference, run


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinity")])
def test_the_first_value_that_is_not_finite_is_named_with_module_and_rank(value: float, word: str) -> None:
    wrong = {"max": value, "norm": value, "hash": 1}
    after = run({}, {"rank": 1}, {"module": "Llama.layers.1"}, {"module": "Llama.layers.1", "rank": 1, **wrong})
    first = first_non_finite(after)
    assert first is not None
    assert (first.module, first.phase, first.ranks, first.value) == ("Llama.layers.1", "forward", (1,), word)
    assert f"B: The first {word} is in forward of step 0, Llama.layers.1" in difference(run({}), after).lines()[1]
    assert first_non_finite(run({})) is None

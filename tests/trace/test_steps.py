"""Which step an event counts to in figures per step."""

import polars as pl
import pytest

from dsexplore._internal.trace.steps import in_steps


def _events(*rows):
    return pl.DataFrame(rows, schema=["rank", "step", "phase"], orient="row")


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        pytest.param([(0, 0, "backward"), (0, 1, "backward"), (0, 2, "other")], [0, 1, 1], id="what follows the last"),
        pytest.param([(0, 0, "other"), (0, 1, "backward"), (0, 2, "backward")], [0, 1, 2], id="what comes before"),
        pytest.param([(0, 0, "other"), (0, 1, "other")], [0, 1], id="nothing in a model"),
        pytest.param([(0, 0, "backward"), (0, 1, "other"), (0, 2, "other")], [0, 1, 2], id="steps of another kind"),
        pytest.param(
            [(0, 0, "backward"), (0, 1, "other"), (1, 0, "backward"), (1, 1, "backward"), (1, 2, "other")],
            [0, 0, 0, 1, 1],
            id="each rank by itself",
        ),
        pytest.param(
            [(0, 0, "backward"), (0, 1, "other"), (0, 2, "no-grad forward")], [0, 0], id="an evaluation after"
        ),
        pytest.param([(0, 0, "start-up"), (0, 0, "forward")], [0], id="start-up"),
        pytest.param([(0, 3, "start-up")], [], id="no step"),
    ],
)
def test_in_steps(rows, steps):
    assert in_steps(_events(*rows))["step"].to_list() == steps

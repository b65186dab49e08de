"""Student's interval of a few ratios, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest

from dsexplore._internal.aio.sweeps.statistics import ratio_interval


@pytest.mark.parametrize(
    ("logs", "mean", "half"),
    [
        ([1.0, 3.0], 2.0, 12.71 * math.sqrt(2 / 1 / 2)),
        ([0.0, 0.0, 2.0, 2.0], 1.0, 3.18 * math.sqrt(4 / 3 / 4)),
        ([0.0, 3.0, 3.0, 3.0, 6.0], 3.0, 2.78 * math.sqrt(18 / 4 / 5)),
        ([0.0, 2.0] * 16, 1.0, 1.96 * math.sqrt(32 / 31 / 32)),
    ],
)
def test_ends_of_the_interval(logs: list[float], mean: float, half: float) -> None:
    interval = ratio_interval([math.exp(log) for log in logs])
    assert interval.value == pytest.approx(math.exp(mean))
    assert interval.low == pytest.approx(math.exp(mean - half))
    assert interval.high == pytest.approx(math.exp(mean + half))
    assert interval.n == len(logs)

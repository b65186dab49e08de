"""Interpolation between measured points, straight in the logarithms."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Interpolate linearly in log-log space at x; outside the points return the end value.

    ``interpolated([1, 4], [10, 40], 2)`` is 20.
    """
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect.bisect_right(xs, x)
    left = right - 1
    share = math.log(x / xs[left]) / math.log(xs[right] / xs[left])
    return ys[left] * math.pow(ys[right] / ys[left], share)

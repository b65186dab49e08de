"""Whether a benchmark's noisy ratio reaches its goal."""

from __future__ import annotations

import math

from dsexplore._internal.aio.sweeps.statistics import Interval


def verdict(ratio: Interval, *, least: float = 0.0, most: float = math.inf) -> str:
    """``met`` where a ratio lies within the goal's bounds, ``tied`` where only its interval reaches them."""
    if least <= ratio.value <= most:
        return "met"
    return "tied" if ratio.high >= least and ratio.low <= most else "MISSED"

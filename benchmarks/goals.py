"""Whether what a benchmark measured or predicted reaches its goal."""

from __future__ import annotations

import math

from dsexplore._internal.aio.sweeps.statistics import Interval


def verdict(ratio: Interval, *, least: float = 0.0, most: float = math.inf) -> str:
    """``met`` where a ratio lies within the goal's bounds, ``tied`` where only its interval reaches them."""
    if least <= ratio.value <= most:
        return "met"
    return "tied" if ratio.high >= least and ratio.low <= most else "MISSED"


def beside_goal(what: str, value: float, count: int, *, least: float = -math.inf, most: float = math.inf) -> str:
    """Format a figure of so many rows with its goal: ``"median error of steps: 4 % of 85, goal ≤ 10 %, met"``."""
    goal = f"≤ {most:.0%}" if most < math.inf else f"≥ {least:.0%}"
    return f"{what}: {value:.0%} of {count:,}, goal {goal}, {'met' if least <= value <= most else 'MISSED'}"

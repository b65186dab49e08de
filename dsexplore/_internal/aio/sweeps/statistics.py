"""Statistics of noisy rates: ratios with their intervals, quantiles and medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; 1.96 beyond.
_T95 = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13]
_T95 += [2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04]


MATTERS = 0.05
"""Relative difference below which two settings are tied, and a gain is too small to leave the default."""
_WIDEST = 9.0
"""Relative width, high / low − 1, from which an interval is not shown: its ends are ten times apart."""


class Interval(NamedTuple):
    """A mean ratio with its 95 % interval."""

    value: float
    """Geometric mean of the ratios."""
    low: float
    high: float
    n: int
    """Number of ratios."""

    @property
    def width(self) -> float:
        """Relative width of the interval, high / low − 1; infinite for fewer than two ratios."""
        return self.high / self.low - 1 if self.low > 0 else math.inf

    @property
    def is_narrow(self) -> bool:
        """True if the ends of the interval are less than ten times apart."""
        return self.width < _WIDEST

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.value:.3f} (n {self.n})"
        if not self.is_narrow:
            return f"{self.value:.3f} (n {self.n}, scatters too much)"
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f}, n {self.n})"


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of positive ratios, with the interval of Student's t on their logarithms.

    Example: ``ratio_interval([2.0, 2.0])`` is 2.0 (2.0–2.0, n 2). A single ratio has the interval 0 to infinity.
    """
    n = len(ratios)
    if n == 0:
        raise ValueError("an interval needs at least one ratio")
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / n
    if n == 1:
        return Interval(ratios[0], low=0.0, high=math.inf, n=1)
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n)
    half = spread * (_T95[n - 2] if n - 1 <= len(_T95) else 1.96)
    return Interval(math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), n=n)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a fraction `share` of the sorted values is; at most the largest value."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the median of the values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

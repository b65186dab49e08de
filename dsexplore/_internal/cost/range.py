"""`Range`: a predicted quantity as three numbers, because no prediction here is better than its known error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import IntEnum

from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_seconds

UNITS = ("s", "B", "")
"""Units that a range can have: seconds, bytes, and none for ratios."""


class Estimate(IntEnum):
    """One of the three numbers of a range: the index of a quantity among its low, expected and high values."""

    LOW = 0
    EXPECTED = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted quantity: what is expected, and between what it lies four times out of five.

    Ranges add end by end, as errors of one model go the same way: ``Range(1, 2, 3) + Range(1, 1, 1)`` is
    ``Range(2, 3, 4)``. A plain number counts as a range without width. ``<`` and ``sorted`` compare what is
    expected; `overlaps` says whether two ranges cannot be distinguished.

    Attributes:
        low: lower end.
        expected: the prediction.
        high: upper end.
        unit: ``"s"`` for seconds, ``"B"`` for bytes, ``""`` for a ratio.
        why: what makes the range as wide as it is; empty if nothing is known of that. A sum has that of its widest
            part. Ranges that differ in it alone are equal.
    """

    low: float
    expected: float
    high: float
    unit: str = "s"
    why: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise UsageError(f"unit {self.unit!r} is not known: give one of {', '.join(map(repr, UNITS))}")
        if not (self.low <= self.expected <= self.high and math.isfinite(self.low) and math.isfinite(self.high)):
            raise UsageError(
                f"low {self.low}, expected {self.expected}, high {self.high} are no range: "
                "give three finite numbers in ascending order"
            )

    @classmethod
    def exactly(cls, value: float, unit: str = "s") -> Range:
        """Build a range of zero width."""
        return cls(low=value, expected=value, high=value, unit=unit)

    @classmethod
    def within(cls, expected: float, below: float, above: float, unit: str = "s", why: str = "") -> Range:
        """Build the range from ``expected × (1 − below)`` to ``expected × (1 + above)``."""
        return cls(low=expected * (1 - below), expected=expected, high=expected * (1 + above), unit=unit, why=why)

    def _other(self, other: Range | float) -> Range:
        if not isinstance(other, Range):
            return Range.exactly(float(other), self.unit)
        if other.unit != self.unit:
            raise UsageError(f"a range in {self.unit!r} and one in {other.unit!r} cannot be combined: convert one")
        return other

    def __add__(self, other: Range | float) -> Range:
        other = self._other(other)
        ends = self.low + other.low, self.expected + other.expected, self.high + other.high
        return Range(*ends, unit=self.unit, why=(other if other.width > self.width else self).why)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Range:
        if factor < 0:
            raise UsageError(f"factor {factor} is negative: a range is scaled by 0 or more")
        return replace(self, low=self.low * factor, expected=self.expected * factor, high=self.high * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Range:
        return self * (1 / divisor)

    def __lt__(self, other: Range | float) -> bool:
        return self.expected < self._other(other).expected

    def __le__(self, other: Range | float) -> bool:
        return self.expected <= self._other(other).expected

    def __gt__(self, other: Range | float) -> bool:
        return self.expected > self._other(other).expected

    def __ge__(self, other: Range | float) -> bool:
        return self.expected >= self._other(other).expected

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def width(self) -> float:
        """Distance from the lower to the upper end, in `unit`."""
        return self.high - self.low

    def overlaps(self, other: Range) -> bool:
        """Return True if the ranges have a value in common."""
        other = self._other(other)
        return self.low <= other.high and other.low <= self.high

    def at_most(self, other: Range) -> Range:
        """Return the elementwise minimum of two ranges."""
        other = self._other(other)
        ends = min(self.low, other.low), min(self.expected, other.expected), min(self.high, other.high)
        return Range(*ends, self.unit, (other if other.high < self.high else self).why)

    def __str__(self) -> str:
        """Format the expected value and the range with fitting units: ``"1.25 ms (1.1 ms to 1.4 ms)"``."""
        text = {"s": format_seconds, "B": format_bytes, "": "{:.3g}".format}[self.unit]
        if self.low == self.high:
            return text(self.expected)
        return f"{text(self.expected)} ({text(self.low)} to {text(self.high)})"

"""What makes the range of a predicted step as wide as it is: the part whose low and high ends are farthest apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import polars as pl

from dsexplore._internal.cost.step.stream_simulation import SimulatedStep
from dsexplore._internal.units import format_seconds, format_share

_KERNELS: Mapping[str, tuple[str, str]] = {
    "matmul": (
        "matrix products",
        "what they reach of the stated FLOP/s depends on their shapes, the clocks and the limit of power",
    ),
    "attention": ("attention", "versions of torch and its libraries have kernels of different speed"),
    "memory": (
        "kernels that move bytes",
        "those whose bytes a cache holds are faster, those with scattered ones slower",
    ),
    "idle": ("waiting for the CPU", "how long it takes to launch a kernel differs more between machines than all else"),
}
"""{kind of span: what it is, and why its seconds are not known better}."""


@dataclass(frozen=True)
class RangeCause:
    """A part of a step, and what it adds to the width of the step's range.

    Attributes:
        what: what takes the time.
        low: seconds of the step that it takes at the low end.
        expected: those that are expected.
        high: those at the high end.
        share: of the width of the step's range; negative if it takes less where all else takes more.
        why: its seconds are not known better.
    """

    what: str
    low: float
    expected: float
    high: float
    share: float
    why: str

    @property
    def sentence(self) -> str:
        """Part, its share of the width, its seconds at both ends, and why these are far apart."""
        ends = f"{format_seconds(self.low)} to {format_seconds(self.high)}"
        return f"{self.what} ({format_share(self.share, 1.0)} of the width, {ends}): {self.why}"


def range_causes(low: SimulatedStep, expected: SimulatedStep, high: SimulatedStep) -> list[RangeCause]:
    """Return the parts of a rank's step, the one that adds most to the width of its range first.

    All parts are at their low ends, or at their high ends, at the same time, so the seconds of the parts sum to the
    step, and their widths to that of its range. Waiting for other stages is left out: it lasts as long as their work,
    whose ranges have the same causes.

    Args:
        low: the step with all times at their low ends.
        expected: with the expected ones.
        high: at their high ends.
    """
    ends = [_seconds_of_step(played) for played in (low, expected, high)]
    parts = {
        part: [seconds.get(part, 0.0) for seconds in ends] for part in dict.fromkeys(key for end in ends for key in end)
    }
    width = sum(seconds[2] - seconds[0] for seconds in parts.values())
    if width <= 0:
        return []
    causes = [
        RangeCause(what, low=low_end, expected=middle, high=high_end, share=(high_end - low_end) / width, why=why)
        for (what, why), (low_end, middle, high_end) in parts.items()
    ]
    return sorted(causes, key=lambda cause: -cause.share)


def _seconds_of_step(played: SimulatedStep) -> dict[tuple[str, str], float]:
    """Return {(what, why): seconds} of the compute stream, which runs or waits at any time."""
    seconds_of: dict[tuple[str, str], float] = {}
    for (kind, axis, op, why), seconds in played.seconds_by_reason.items():
        if kind == "communication" or (kind == "exposed" and op == "recv"):
            continue
        if kind == "exposed":
            part = f"exposed {op} of {axis}" if axis else f"exposed {op}", why
        else:
            part = _KERNELS.get(kind, (kind, ""))
        seconds_of[part] = seconds_of.get(part, 0.0) + seconds
    return seconds_of


def as_frame(causes: list[RangeCause]) -> pl.DataFrame:
    """Return a row per cause."""
    seconds = dict.fromkeys(("low", "expected", "high", "share"), pl.Float64)
    return pl.DataFrame(
        [astuple(cause) for cause in causes], schema={"what": pl.String, **seconds, "why": pl.String}, orient="row"
    )

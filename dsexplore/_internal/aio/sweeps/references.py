"""Rates that a sweep measures besides its settings: of other programs, a ring of memory, and other kinds of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.statistics import MATTERS, Interval, median, ratio_interval
from dsexplore._internal.units import format_rate

MEMORIES = ("huge pages", "ordinary pages")
"""Names of the references that compare kinds of memory, with our own engine."""
PINNED = "pinned memory"
"""Name of the reference on memory that torch pins, if there is a GPU."""
_TIE = 0.01
"""Relative loss on DeepSpeed's handle up to which a setting is recommended."""
_HOW = (
    "Tensors of this package's new_cpu_locked_tensor have them, and torch's own with THP_MEM_ALLOC_ENABLE=1 in the "
    "environment; DeepSpeed's do not."
)
_HOW_PINNED = "torch.empty(…, pin_memory=True) pins it, as DeepSpeed's pin_memory does for states in host memory."


@dataclass(frozen=True, slots=True)
class Reference:
    """Rates that another program, or our engine on other memory, reached on the same file."""

    name: str
    """``ring``, ``fio``, ``deepspeed``, or one of `MEMORIES` and `PINNED`."""
    operation: str
    """``read`` or ``write``."""
    config: AioConfig
    """Setting that was measured."""
    rates: tuple[float, ...]
    """Bytes per second of each run."""
    note: str
    """How it was measured."""

    @property
    def rate(self) -> float:
        """Median bytes per second of the runs."""
        return median(self.rates)


def memory_lines(references: Sequence[Reference], operations: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each kind of memory and direction that is surely faster than ordinary pages, and its use."""
    huge_pages, ordinary_pages = MEMORIES
    for name, subject, how in ((huge_pages, "Huge pages {}", _HOW), (PINNED, "Pinned memory {}s", _HOW_PINNED)):
        is_faster = False
        for operation in operations:
            runs = {reference.name: reference.rates for reference in references if reference.operation == operation}
            if name not in runs or ordinary_pages not in runs:
                continue
            gain = _gain(runs[name], runs[ordinary_pages])
            if gain.value >= 1 + MATTERS and gain.low > 1:
                is_faster = True
                rates = f"{format_rate(median(runs[name]))}, not {format_rate(median(runs[ordinary_pages]))}"
                yield f"{subject.format(operation)} {gain.value:.2g} times as fast as ordinary pages: {rates}."
        if is_faster:
            yield how


def advice_lines(
    references: Sequence[Reference], operations: Sequence[str], chosen: AioConfig, default: AioConfig
) -> Iterator[str]:
    """Yield the gain of the recommended setting on DeepSpeed's own handle, if it was measured."""
    for operation, gain in _deepspeed_gains(references, operations, chosen, default):
        yield f"On DeepSpeed's own handle, this setting's {operation} rate is {gain} × the default's."


def slower_elsewhere(
    references: Sequence[Reference], operations: Sequence[str], chosen: AioConfig, default: AioConfig
) -> str:
    """Return a sentence if DeepSpeed's handle is slower with a setting than with the default; else an empty text."""
    gains = [gain.value for _, gain in _deepspeed_gains(references, operations, chosen, default)]
    mean = ratio_interval(gains).value if gains else 1.0
    if mean >= 1 - _TIE:
        return ""
    return f"{chosen} is faster here, but {(1 - mean) * 100:.1f} % slower on DeepSpeed's own handle"


def _deepspeed_gains(
    references: Sequence[Reference], operations: Sequence[str], chosen: AioConfig, default: AioConfig
) -> Iterator[tuple[str, Interval]]:
    """Yield (direction, rate of a setting relative to the default's) of DeepSpeed's handle."""
    for operation in operations:
        runs = {r.config: r.rates for r in references if (r.name, r.operation) == ("deepspeed", operation)}
        if chosen != default and chosen in runs and default in runs:
            yield operation, _gain(runs[chosen], runs[default])


def _gain(rates: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the mean ratio of rates that were measured in turn with others."""
    return ratio_interval([rate / other for rate, other in zip(rates, others, strict=True)])

"""Rates measured beside a sweep: of other programs, of a ring of memory, and of pages of another size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.statistics import MATTERS, Interval, median, ratio_interval
from dsexplore._internal.units import format_rate

MEMORIES = ("huge pages", "ordinary pages")
"""Names of the references that are our own engine on tensors of either kind."""
PINNED = "pinned memory"
"""Name of the reference on memory that torch pins, where there is a GPU."""
_TIE = 0.01
"""Relative difference on DeepSpeed's handle that is no reason against a setting."""
_HOW = (
    "Tensors of this package's new_cpu_locked_tensor have them, and torch's own with THP_MEM_ALLOC_ENABLE=1 in the "
    "environment; DeepSpeed's do not."
)
_HOW_PINNED = "torch.empty(…, pin_memory=True) pins it, as DeepSpeed's pin_memory does for states in host memory."


@dataclass(frozen=True, slots=True)
class Reference:
    """Rates that another program, or our engine on a ring of memory, reached on the same file."""

    name: str
    operation: str
    config: AioConfig
    rates: tuple[float, ...]
    """Bytes per second of each run."""
    note: str

    @property
    def rate(self) -> float:
        """Median of the runs, bytes per second."""
        return median(self.rates)


def memory_lines(references: Sequence[Reference], operations: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each memory and direction that is surely faster than ordinary pages, and how to get it."""
    for name, words, how in ((MEMORIES[0], "Huge pages {}", _HOW), (PINNED, "Pinned memory {}s", _HOW_PINNED)):
        is_faster = False
        for operation in operations:
            runs = {r.name: r.rates for r in references if r.operation == operation}
            if name not in runs or MEMORIES[1] not in runs:
                continue
            faster, ordinary = runs[name], runs[MEMORIES[1]]
            gain = _gain(faster, ordinary)
            if gain.value >= 1 + MATTERS and gain.low > 1:
                is_faster = True
                rates = f"{format_rate(median(faster))}, not {format_rate(median(ordinary))}"
                yield f"{words.format(operation)} {gain.value:.2g} times as fast as ordinary pages: {rates}."
        if is_faster:
            yield how


def advice_lines(
    references: Sequence[Reference], operations: Sequence[str], chosen: AioConfig, default: AioConfig
) -> Iterator[str]:
    """Yield what the recommended setting gains on DeepSpeed's own handle, if both were run in turn."""
    for operation, gain in _deepspeed_gains(references, operations, chosen, default):
        yield f"On DeepSpeed's own handle, this setting's {operation} rate is {gain} × the default's."


def slower_elsewhere(
    references: Sequence[Reference], operations: Sequence[str], chosen: AioConfig, default: AioConfig
) -> str:
    """Return why a setting is not recommended though it is faster here: DeepSpeed's handle is slower with it."""
    gains = [gain.value for _, gain in _deepspeed_gains(references, operations, chosen, default)]
    together = ratio_interval(gains).value if gains else 1.0
    if together >= 1 - _TIE:
        return ""
    return f"{chosen} is faster here, but {(1 - together) * 100:.1f} % slower on DeepSpeed's own handle"


def _deepspeed_gains(
    references: Sequence[Reference], operations: Sequence[str], chosen: AioConfig, default: AioConfig
) -> Iterator[tuple[str, Interval]]:
    """Yield (direction, rate of a setting relative to the default's) of DeepSpeed's handle."""
    for operation in operations if chosen != default else ():
        runs = {r.config: r.rates for r in references if (r.name, r.operation) == ("deepspeed", operation)}
        if chosen in runs and default in runs:
            yield operation, _gain(runs[chosen], runs[default])


def _gain(rates: Sequence[float], others: Sequence[float]) -> Interval:
    return ratio_interval([rate / other for rate, other in zip(rates, others, strict=True)])

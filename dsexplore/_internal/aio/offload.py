"""Predict what a training step takes longer if states are kept on a disk, from a model's sharding and a sweep.

The optimizer's states are read before its step and written after it, and nothing hides that time. Parameters are read
in forward and again in backward, while modules compute, and written once they are updated. Example: 8.03e9 parameters
on one node with 12 bytes of states each, 7 GB/s read and 5.5 GB/s written: 96.4 GB / 7 + 96.4 GB / 5.5 = 31.3 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.rank_groups import blocks_of
from dsexplore._internal.units import format_count, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    import polars

    from dsexplore._internal.sharding.layout import Sharding


@dataclass(frozen=True)
class Swap:
    """Bytes that one node moves in a step for one kind of state, and their seconds."""

    what: str
    """``optimizer states`` or ``parameters``."""
    read: float
    """Bytes read in a step."""
    written: float
    """Bytes written in a step."""
    read_seconds: float
    """Seconds to read them."""
    write_seconds: float
    """Seconds to write them."""
    exposed: float
    """Seconds that the step becomes longer."""

    @property
    def seconds(self) -> float:
        """Seconds that the disk is busy."""
        return self.read_seconds + self.write_seconds


@dataclass(frozen=True)
class OffloadCost(Result):
    """Predicted time that states on a disk add to a step; made by ``dsexplore.sharding(...).offload(disk)``."""

    title: str
    """Class of the model."""
    disk: Disk
    """Disk that was measured."""
    read_rate: float
    """Bytes per second of reads with the recommended setting."""
    write_rate: float
    """Bytes per second of writes with the recommended setting."""
    node_parameters: int
    """Number of trained parameters on one node."""
    ranks: int
    """Number of ranks."""
    swaps: tuple[Swap, ...]
    """Bytes moved in a step, by kind of state."""
    step_seconds: float | None
    """Seconds of a step without a disk; None if not given."""
    tokens: int | None
    """Tokens of a step on one node; None if not given."""
    notes: tuple[str, ...]
    """Assumptions, as sentences."""

    def __repr__(self) -> str:
        return f"<OffloadCost of {self.title}: {format_seconds(self.exposed)} per step on {self.disk.label}>"

    @property
    def exposed(self) -> float:
        """Seconds that a step becomes longer."""
        return sum(swap.exposed for swap in self.swaps)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of one node, with the step's own time if it is known; None if no tokens were given."""
        if self.tokens is None:
            return None
        return self.tokens / (self.exposed + (self.step_seconds or 0.0))

    def verdict(self) -> str:
        """Return how much longer a step takes, and the tokens per second that the disk allows."""
        states = " and ".join(swap.what for swap in self.swaps)
        text = f"Swapping {states} makes a step {format_seconds(self.exposed)} longer"
        if self.step_seconds:
            total = self.step_seconds + self.exposed
            text += f": {format_share(self.exposed, total)} of the {format_seconds(total)} that it then takes"
        if self.tokens_per_second is None:
            return f"{text}."
        feeds = "the node trains" if self.step_seconds else "this disk feeds at most"
        return f"{text}; {feeds} {format_count(round(self.tokens_per_second), 'token')}/s."

    def lines(self) -> list[str]:
        """Return the verdict, the disk's rates, what would shorten the step, and the assumptions, as sentences."""
        rates = f"The disk reads {format_rate(self.read_rate)} and writes {format_rate(self.write_rate)}."
        return [self.verdict(), rates, *self._changes(), *self.notes]

    def _changes(self) -> Iterator[str]:
        """Yield how many disks or tokens it takes to make the wait short, if it is long."""
        if self.step_seconds and self.exposed > 0.1 * self.step_seconds:
            times = self.exposed / (0.1 * self.step_seconds)
            more = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
            yield (
                f"For a tenth of the step's own time, it takes {more} times the disks or nodes, or as many times "
                "the tokens per optimizer step (gradient accumulation)."
            )

    def to_frame(self) -> polars.DataFrame:
        """Return a row per kind of state.

        Columns: ``what``; ``read`` and ``written``, bytes of one node per step; ``read_seconds`` and
        ``write_seconds``, seconds to move them; ``exposed``, seconds that the step becomes longer.
        """
        import polars as pl

        return pl.DataFrame([asdict(swap) for swap in self.swaps])


_SWEEP_SECONDS = 30
_NOTE = (
    "Predicted: the ranks of a node share the disk, each node has its own, reads and writes follow one another, and "
    "the optimizer's swap is hidden by nothing."
)


def offload_cost(
    sharding: Sharding,
    disk: str | os.PathLike[str] | SweepResult,
    bytes_per_parameter: float,
    parameters: bool,
    ranks_per_node: int,
    step_seconds: float | None,
    tokens: int | None,
) -> OffloadCost:
    """Predict swaps as `Sharding.offload` documents it."""
    _check(bytes_per_parameter, ranks_per_node, step_seconds, tokens)
    result = disk if isinstance(disk, SweepResult) else _swept(disk)
    rates = read_rate, write_rate = _rates(result)
    ranks_of_disk = min(ranks_per_node, sharding.mesh.size)
    numel, nbytes = (ranks_of_disk * count for count in _largest_rank(sharding))
    states = numel * bytes_per_parameter
    swaps = [_swap("optimizer states", read=states, written=states, rates=rates)]
    notes = [f"Counted are {bytes_per_parameter:g} bytes of states per parameter that is trained."]
    if parameters:
        hidden = 0.0 if step_seconds is None else step_seconds
        swaps.append(_swap("parameters", read=2 * nbytes, written=nbytes, rates=rates, hidden=hidden))
        notes.append("Parameters are read twice, in forward and in backward, while modules compute, and written once.")
    notes.append(_NOTE)
    return OffloadCost(
        title=sharding.title,
        disk=result.disk,
        read_rate=read_rate,
        write_rate=write_rate,
        node_parameters=round(numel),
        ranks=sharding.mesh.size,
        swaps=tuple(swaps),
        step_seconds=step_seconds,
        tokens=tokens,
        notes=tuple(notes),
    )


def _swap(what: str, *, read: float, written: float, rates: tuple[float, float], hidden: float = 0.0) -> Swap:
    """Return a swap of bytes at rates of reading and writing; `hidden` seconds of its reads overlap computation."""
    read_seconds, write_seconds = read / rates[0], written / rates[1]
    return Swap(
        what=what,
        read=read,
        written=written,
        read_seconds=read_seconds,
        write_seconds=write_seconds,
        exposed=max(read_seconds - hidden, 0.0) + write_seconds,
    )


def _check(bytes_per_parameter: float, ranks_per_node: int, step_seconds: float | None, tokens: int | None) -> None:
    """Raise UsageError for a number that is out of range."""
    if not bytes_per_parameter > 0:
        raise UsageError(f"bytes_per_parameter {bytes_per_parameter:g}: give the bytes of states, such as 12")
    if ranks_per_node < 1:
        raise UsageError(f"ranks_per_node {ranks_per_node} is not a number of ranks: give 1 or more")
    if step_seconds is not None and not step_seconds > 0:
        raise UsageError(f"step_seconds {step_seconds:g} is not a duration: give the seconds of a step without a disk")
    if tokens is not None and tokens < 1:
        raise UsageError(f"tokens {tokens} is not a number of tokens: give those of a step on one node")


def _swept(folder: str | os.PathLike[str]) -> SweepResult:
    from dsexplore._internal.aio.sweeps.sweeping import sweep

    return sweep(folder, seconds=_SWEEP_SECONDS)


def _rates(result: SweepResult) -> tuple[float, float]:
    """Return the median bytes per second of reads and of writes with the setting that the sweep recommends."""
    config = result.best().config
    rates = []
    for operation in ("read", "write"):
        samples = [measured.sample for measured in result.deciding]
        measured_rates = [s.rate for s in samples if (s.operation, s.config) == (operation, config)]
        if not measured_rates:
            raise UsageError(f"this sweep has no {operation}s: sweep a directory, which is read and written")
        rates.append(median(measured_rates))
    return rates[0], rates[1]


def _largest_rank(sharding: Sharding) -> tuple[float, float]:
    """Return the largest number of trained parameters, and of bytes of parameters, that a rank holds."""
    blocks = blocks_of(sharding.mesh, sharding.tensors)
    numel, nbytes = np.zeros(blocks.shape), np.zeros(blocks.shape)
    for tensor in sharding.tensors:
        local = blocks.local_numel(tensor)
        nbytes = nbytes + local * tensor.dtype.itemsize
        if tensor.requires_grad:
            numel = numel + local
    if not numel.any():
        raise UsageError("no parameter is trained, so an optimizer has no states to swap")
    return float(numel.max()), float(nbytes.max())

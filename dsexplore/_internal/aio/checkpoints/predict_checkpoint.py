"""Predict the bytes and seconds of a model's checkpoints from its sharding and from a disk's measured rates.

Assumptions: a process takes time for a checkpoint, for each tensor and for each byte, as it did when the disk was
measured. The ranks of a node share the disk; together they are as many times faster as they are ranks, up to the
fastest rate that was measured. Each node has its own disk. Example: 8 ranks with 1 GB each, 0.5 GB/s of one process,
3 GB/s at most, 0.1 s for files and tensors: 0.1 s + 8 GB / 3 GB/s = 2.8 s.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dsexplore._internal.aio.checkpoints.checkpoint_rates import (
    ASYNCHRONOUS,
    TORCH_SAVE,
    CheckpointRates,
    MethodRates,
    checkpoint_rates,
)
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.rank_groups import blocks_of
from dsexplore._internal.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    import polars

    from dsexplore._internal.sharding.layout import Sharding
    from dsexplore._internal.sharding.memory import Assumptions
    from dsexplore._internal.sharding.tensor import PlacedTensor


@dataclass(frozen=True)
class MethodCost:
    """Seconds of one checkpoint by one method."""

    name: str
    writers: str
    """``rank 0`` or ``every rank``."""
    save: float
    """Seconds until every byte is on the disk, with fsync."""
    load: float
    """Seconds to load from a cold disk."""
    stall: float
    """Seconds until the next step can begin."""
    every: float
    """Shortest seconds between two checkpoints with which stalls take no more than the allowed fraction of the time."""


@dataclass(frozen=True)
class CheckpointCost(Result):
    """Predicted bytes and seconds of a model's checkpoints; made by ``dsexplore.sharding(...).checkpoint(disk)``."""

    title: str
    """Class of the model."""
    disk: Disk
    """Disk that was measured."""
    nbytes: int
    """Bytes of one checkpoint, of all ranks."""
    rank_bytes: int
    """Largest number of bytes that a rank writes for one checkpoint."""
    ranks: int
    """Number of ranks."""
    ranks_per_node: int
    """Number of ranks that share a disk."""
    overhead: float
    """Fraction of the time that steps may wait for checkpoints."""
    step_seconds: float | None
    """Seconds of a training step; None if not given."""
    methods: tuple[MethodCost, ...]
    """Seconds of each method."""
    notes: tuple[str, ...]
    """Assumptions, and what was not measured, as sentences."""

    def __repr__(self) -> str:
        return f"<CheckpointCost of {self.title}: {format_bytes(self.nbytes)} on {self.disk.label}>"

    @property
    def best(self) -> MethodCost:
        """Method that can be afforded most often; of equal methods, the one that is durable first."""
        return min(self.methods, key=lambda method: (method.every, method.save))

    def verdict(self) -> str:
        """Return which method to save with, and how often a checkpoint can be afforded."""
        best = self.best
        later = "" if best.save <= best.stall else f" and is on the disk after {format_seconds(best.save)}"
        stall = format_seconds(best.stall)
        return f"Save with {best.name}: it holds a step for {stall}{later}; affordable every {self.interval(best)}."

    def interval(self, method: MethodCost) -> str:
        """Return the shortest time between two checkpoints as text, in steps too if the time of a step is known."""
        if not self.step_seconds:
            return format_seconds(method.every)
        steps = max(-(-method.every // self.step_seconds), 1)
        return f"{format_count(int(steps), 'step')} ({format_seconds(method.every)})"

    def lines(self) -> list[str]:
        """Return the verdict, the bytes, and the assumptions, as sentences."""
        size = (
            f"A checkpoint has {format_bytes(self.nbytes)} in all, {format_bytes(self.rank_bytes)} of each rank at "
            f"most; steps may wait for {format_share(self.overhead, 1)} of the time."
        )
        return [self.verdict(), size, *self.notes]

    def to_frame(self) -> polars.DataFrame:
        """Return a row per method.

        Columns: ``method``; ``writers``, ``rank 0`` or ``every rank``; ``save`` and ``load``, seconds until all is on
        the disk and until it is loaded from a cold disk; ``stall``, seconds until the next step can begin; ``every``,
        shortest seconds between two checkpoints.
        """
        import polars as pl

        return pl.DataFrame([asdict(method) for method in self.methods]).rename({"name": "method"})


_NOTE = (
    "Predicted from rates that one process reached on this disk: the ranks of a node share it, each node has its own, "
    "gathering for rank 0 and sending after a load are not counted, nor what asynchronous writing takes from steps."
)


def checkpoint_cost(
    sharding: Sharding,
    disk: str | os.PathLike[str] | CheckpointRates,
    assumed: Assumptions,
    ranks_per_node: int,
    overhead: float,
    step_seconds: float | None,
) -> CheckpointCost:
    """Predict checkpoints as `Sharding.checkpoint` documents it."""
    if ranks_per_node < 1:
        raise UsageError(f"ranks_per_node {ranks_per_node} is not a number of ranks: give 1 or more")
    if not 0 < overhead <= 1:
        raise UsageError(f"overhead {overhead:g} is not a fraction of the time: give a number above 0, such as 0.01")
    if step_seconds is not None and not step_seconds > 0:
        raise UsageError(f"step_seconds {step_seconds:g} is not a duration: give the seconds of a training step")
    rates = disk if isinstance(disk, CheckpointRates) else checkpoint_rates(disk)
    whole = _Share(
        sum(tensor.nbytes * _factor(tensor, assumed) for tensor in sharding.tensors),
        sum(_saved_tensors(tensor, assumed) for tensor in sharding.tensors),
    )
    written, held = _shares_of_ranks(sharding, assumed)
    processes = min(ranks_per_node, sharding.mesh.size)
    return CheckpointCost(
        title=sharding.title,
        disk=rates.disk,
        nbytes=round(whole.nbytes),
        rank_bytes=math.ceil(written.nbytes),
        ranks=sharding.mesh.size,
        ranks_per_node=ranks_per_node,
        overhead=overhead,
        step_seconds=step_seconds,
        methods=tuple(
            _cost(method, rates, whole=whole, written=written, held=held, processes=processes, overhead=overhead)
            for method in rates.methods
        ),
        notes=(_states(assumed), _NOTE, *rates.notes),
    )


def _states(assumed: Assumptions) -> str:
    """Return a sentence on which tensors are counted."""
    if not assumed.states:
        return "Counted are the parameters."
    dtype = "" if assumed.state_dtype is None else f" in {str(assumed.state_dtype).removeprefix('torch.')}"
    return f"Counted are the parameters and the {assumed.states} states per parameter of {assumed.optimizer}{dtype}."


def _factor(tensor: PlacedTensor, assumed: Assumptions) -> float:
    """Return the bytes of a tensor with its optimizer's states, per byte of the tensor."""
    if not tensor.requires_grad:
        return 1.0
    state_dtype = tensor.dtype if assumed.state_dtype is None else assumed.state_dtype
    return 1 + assumed.states * state_dtype.itemsize / tensor.dtype.itemsize


def _saved_tensors(tensor: PlacedTensor, assumed: Assumptions) -> int:
    """Return the number of tensors that are saved for one tensor of the model: itself and its optimizer's states."""
    return 1 + assumed.states if tensor.requires_grad else 1


class _Share(NamedTuple):
    """The part of a checkpoint that one process saves or loads."""

    nbytes: float
    tensors: float
    """Number of tensors; a fraction if ranks share the work."""


def _shares_of_ranks(sharding: Sharding, assumed: Assumptions) -> tuple[_Share, _Share]:
    """Return the largest share that a rank writes, if ranks with copies divide the work, and the largest it holds."""
    if not sharding.tensors:
        raise UsageError("there are no tensors, so a checkpoint holds nothing")
    blocks = blocks_of(sharding.mesh, sharding.tensors)
    written, held, pieces_written, pieces_held = (np.zeros(blocks.shape) for _ in range(4))
    for tensor in sharding.tensors:
        numel = blocks.local_numel(tensor)
        local = numel * (tensor.dtype.itemsize * _factor(tensor, assumed))
        pieces = (numel > 0) * _saved_tensors(tensor, assumed)
        copies = tensor.copies if tensor.placements else sharding.mesh.size
        held, written = held + local, written + local / copies
        pieces_held, pieces_written = pieces_held + pieces, pieces_written + pieces / copies
    return (
        _Share(float(written.max()), float(pieces_written.max())),
        _Share(float(held.max()), float(pieces_held.max())),
    )


def _cost(
    method: MethodRates,
    rates: CheckpointRates,
    *,
    whole: _Share,
    written: _Share,
    held: _Share,
    processes: int,
    overhead: float,
) -> MethodCost:
    """Return the predicted seconds of one method.

    Args:
        method: measured rates of the method.
        rates: measured rates of the disk.
        whole: the whole checkpoint, which rank 0 writes with ``torch.save``.
        written: the largest share that a rank writes with the other methods.
        held: the largest share that a rank loads.
        processes: number of ranks that share a disk.
        overhead: fraction of the time that steps may wait.
    """
    if method.name == TORCH_SAVE:
        alone = method.seconds(*whole)
        return MethodCost(
            method.name,
            writers="rank 0",
            save=alone.durable,
            load=alone.load,
            stall=alone.durable,
            every=alone.durable / overhead,
        )
    write_rate = min(processes * method.write_rate, rates.write_limit)
    read_rate = min(processes * method.read_rate, rates.read_limit)
    save = method.overhead(written.tensors).durable + written.nbytes * processes / write_rate
    load = method.overhead(held.tensors).load + held.nbytes * processes / read_rate
    if method.name != ASYNCHRONOUS:
        return MethodCost(method.name, writers="every rank", save=save, load=load, stall=save, every=save / overhead)
    stall = method.seconds(*written).stall
    return MethodCost(
        method.name,
        writers="every rank",
        save=max(save, stall),
        load=load,
        stall=stall,
        every=max(stall / overhead, save),
    )

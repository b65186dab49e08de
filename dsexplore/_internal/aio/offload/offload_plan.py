"""Predict what states on a disk take of a step, from where a model's parameters lie and a sweep of the disk.

The optimizer's states are read before its step and written after it, with nothing to hide behind. Parameters are read
in forward and again in backward, while modules compute, and written once they are updated. Example: 8.03e9 parameters
on one node, 12 bytes of states each, 7 GB/s read and 5.5 GB/s written: 96.4 GB / 7 + 96.4 GB / 5.5 = 31.3 s.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dsexplore._internal.aio.offload.offload_cost import OffloadCost, Swap
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.rank_groups import blocks_of

if TYPE_CHECKING:
    from dsexplore._internal.sharding.layout import Sharding

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
    read_rate, write_rate = _rates(result)
    together = min(ranks_per_node, sharding.mesh.size)
    numel, nbytes = (together * count for count in _largest_rank(sharding))
    states = numel * bytes_per_parameter
    read, written = states / read_rate, states / write_rate
    swaps = [
        Swap(
            what="optimizer states",
            read=states,
            written=states,
            read_seconds=read,
            write_seconds=written,
            exposed=read + written,
        )
    ]
    notes = [f"Counted are {bytes_per_parameter:g} bytes of states per parameter that is trained."]
    if parameters:
        reading, writing = 2 * nbytes / read_rate, nbytes / write_rate
        exposed = max(reading - (step_seconds or 0.0), 0.0) + writing
        swaps.append(
            Swap(
                what="parameters",
                read=2 * nbytes,
                written=nbytes,
                read_seconds=reading,
                write_seconds=writing,
                exposed=exposed,
            )
        )
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


def _check(bytes_per_parameter: float, ranks_per_node: int, step_seconds: float | None, tokens: int | None) -> None:
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
        given = [m.sample.rate for m in result.deciding if (m.sample.operation, m.sample.config) == (operation, config)]
        if not given:
            raise UsageError(f"this sweep has no {operation}s: sweep a directory, which is read and written")
        rates.append(median(given))
    return rates[0], rates[1]


def _largest_rank(sharding: Sharding) -> tuple[float, float]:
    """Return the trained parameters, and the bytes of all parameters, of the rank that holds most."""
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

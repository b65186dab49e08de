"""Predict a model's checkpoint from where its tensors lie and from a disk's measured rates.

What is assumed: a process saves and loads in proportion to bytes, as it did when the disk was measured; the ranks of a
node share the disk, and together are as fast as so many of them, up to the fastest rate that was measured; each node
has a disk of its own. Example: 8 ranks of 1 GB each, 0.5 GB/s of one process, 3 GB/s at most: 8 GB / 3 GB/s = 2.7 s.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from dsexplore.aio.checkpoints.checkpoint_cost import CheckpointCost, MethodCost
from dsexplore.aio.checkpoints.checkpoint_rates import (
    ASYNCHRONOUS,
    TORCH_SAVE,
    CheckpointRates,
    MethodRates,
    checkpoint_rates,
)
from dsexplore.errors import UsageError
from dsexplore.sharding.rank_groups import blocks_of

if TYPE_CHECKING:
    from dsexplore.sharding.layout import Sharding
    from dsexplore.sharding.memory import Assumptions
    from dsexplore.sharding.tensor import PlacedTensor

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
        raise UsageError(f"ranks_per_node {ranks_per_node} is no number of ranks: give 1 or more")
    if not 0 < overhead <= 1:
        raise UsageError(f"overhead {overhead:g} is no fraction of the time: give a number above 0, such as 0.01")
    if step_seconds is not None and not step_seconds > 0:
        raise UsageError(f"step_seconds {step_seconds:g} is no duration: give the seconds of a training step")
    rates = disk if isinstance(disk, CheckpointRates) else checkpoint_rates(disk)
    total = round(sum(tensor.nbytes * _factor(tensor, assumed) for tensor in sharding.tensors))
    written, held = _bytes_of_ranks(sharding, assumed)
    together = min(ranks_per_node, sharding.mesh.size)
    methods = [_cost(each, rates, total, written, held, together, overhead) for each in rates.methods]
    return CheckpointCost(
        sharding.title,
        rates.disk,
        total,
        math.ceil(written),
        sharding.mesh.size,
        ranks_per_node,
        overhead,
        step_seconds,
        methods,
        [_states(assumed), _NOTE, *rates.notes],
    )


def _states(assumed: Assumptions) -> str:
    if not assumed.states:
        return "Counted are the parameters."
    dtype = "" if assumed.state_dtype is None else f" in {str(assumed.state_dtype).removeprefix('torch.')}"
    return f"Counted are the parameters and the {assumed.states} states per parameter of {assumed.optimizer}{dtype}."


def _factor(tensor: PlacedTensor, assumed: Assumptions) -> float:
    """Return the bytes of a tensor with its optimizer's states, per byte of the tensor."""
    if not tensor.requires_grad:
        return 1.0
    itemsize = tensor.dtype.itemsize
    return 1 + assumed.states * (itemsize if assumed.state_dtype is None else assumed.state_dtype.itemsize) / itemsize


def _bytes_of_ranks(sharding: Sharding, assumed: Assumptions) -> tuple[float, float]:
    """Return the bytes that the rank with most of them writes, where copies share the work, and that it holds."""
    if not sharding.tensors:
        raise UsageError("there are no tensors, so a checkpoint holds nothing")
    blocks = blocks_of(sharding.mesh, sharding.tensors)
    written, held = np.zeros(blocks.shape), np.zeros(blocks.shape)
    for tensor in sharding.tensors:
        local = blocks.local_numel(tensor) * (tensor.dtype.itemsize * _factor(tensor, assumed))
        copies = tensor.copies if tensor.placements else sharding.mesh.size
        held, written = held + local, written + local / copies
    return float(written.max()), float(held.max())


def _cost(
    method: MethodRates,
    rates: CheckpointRates,
    total: float,
    written: float,
    held: float,
    together: int,
    overhead: float,
) -> MethodCost:
    if method.name == TORCH_SAVE:
        alone = method.seconds(total)
        return MethodCost(method.name, "rank 0", alone.durable, alone.load, alone.durable, alone.durable / overhead)
    save = written * together / min(together * method.write_rate, rates.write_limit)
    load = held * together / min(together * method.read_rate, rates.read_limit)
    if method.name != ASYNCHRONOUS:
        return MethodCost(method.name, "every rank", save, load, save, save / overhead)
    stall = method.seconds(written).stall
    return MethodCost(method.name, "every rank", max(save, stall), load, stall, max(stall / overhead, save))

"""Predict a model's checkpoint from where its tensors lie and from a disk's measured rates.

What is assumed: a process takes time for a checkpoint, for each tensor and for each byte, as it did when the disk was
measured; the ranks of a node share the disk, and together are as fast as so many of them, up to the fastest rate that
was measured; each node has a disk of its own. Example: 8 ranks of 1 GB each, 0.5 GB/s of one process, 3 GB/s at most,
0.1 s for files and tensors: 0.1 s + 8 GB / 3 GB/s = 2.8 s.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dsexplore._internal.aio.checkpoints.checkpoint_rates import (
    ASYNCHRONOUS,
    TORCH_SAVE,
    CheckpointRates,
    MethodRates,
    checkpoint_rates,
)
from dsexplore._internal.aio.checkpoints.checkpoint_result import CheckpointCost, MethodCost
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.rank_groups import blocks_of

if TYPE_CHECKING:
    from dsexplore._internal.sharding.layout import Sharding
    from dsexplore._internal.sharding.memory import Assumptions
    from dsexplore._internal.sharding.tensor import PlacedTensor

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
    together = min(ranks_per_node, sharding.mesh.size)
    return CheckpointCost(
        title=sharding.title,
        disk=rates.disk,
        nbytes=round(whole.nbytes),
        rank_bytes=math.ceil(written.nbytes),
        ranks=sharding.mesh.size,
        ranks_per_node=ranks_per_node,
        overhead=overhead,
        step_seconds=step_seconds,
        methods=tuple(_cost(method, rates, whole, written, held, together, overhead) for method in rates.methods),
        notes=(_states(assumed), _NOTE, *rates.notes),
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


def _saved_tensors(tensor: PlacedTensor, assumed: Assumptions) -> int:
    """Return the number of tensors that are saved for one of the model."""
    return 1 + assumed.states if tensor.requires_grad else 1


class _Share(NamedTuple):
    """What one process saves or loads."""

    nbytes: float
    tensors: float


def _shares_of_ranks(sharding: Sharding, assumed: Assumptions) -> tuple[_Share, _Share]:
    """Return the most that a rank writes, where copies share the work, and that it holds."""
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
    whole: _Share,
    written: _Share,
    held: _Share,
    together: int,
    overhead: float,
) -> MethodCost:
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
    save = method.overhead(written.tensors).durable + written.nbytes * together / min(
        together * method.write_rate, rates.write_limit
    )
    load = method.overhead(held.tensors).load + held.nbytes * together / min(
        together * method.read_rate, rates.read_limit
    )
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

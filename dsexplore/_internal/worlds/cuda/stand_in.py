"""`cuda_stand_in`: the block in which ``cuda`` means the CPU; and `TABLE`, all patches that it installs.

Import it only when a program uses ``cuda``: it imports parts of ``torch.cuda`` that nothing else needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import uninterrupted
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patches, install_all
from dsexplore._internal.worlds.cuda import (
    autocast,
    device_marks,
    distributed_on_cuda,
    export,
    function_mode,
    gpu_kernels,
    gpu_sensors,
    gradients,
    profilers,
    refused,
    rng,
    sent_tensors,
    tensor_construction,
    torch_cuda,
    torch_load,
)
from dsexplore._internal.worlds.cuda import tensor_functions as tensor_functions  # it registers with the function mode
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.cuda.function_mode import StandInMode
from dsexplore._internal.worlds.cuda.gpu import Gpu, read_gpu
from dsexplore._internal.worlds.remarks import Remarks

TABLE: tuple[Entry, ...] = (
    *device_marks.PATCHES,
    *torch_cuda.PATCHES,
    *gpu_sensors.PATCHES,
    *profilers.PATCHES,
    *rng.PATCHES,
    *autocast.PATCHES,
    *torch_load.PATCHES,
    *tensor_construction.PATCHES,
    *distributed_on_cuda.PATCHES,
    *gpu_kernels.PATCHES,
    *refused.PATCHES,
    *export.PATCHES,
    *gradients.PATCHES,
    *sent_tensors.PATCHES,
    *function_mode.PATCHES,
)
"""All that is replaced in torch, in this order. The function mode comes last, as it relies on the others."""

_current: Gpu | None = None


@contextmanager
def cuda_stand_in(
    gpu: str = "h100", ranks_per_node: int = 8, local_rank: int = 0, parts: Parts | None = None
) -> Iterator[Gpu]:
    """Make ``cuda`` mean the CPU inside a block; in a fake tensor mode, it means fake tensors on the CPU.

    Args:
        gpu: name of the GPU whose properties programs see (``known_gpus`` lists them), or path of a data file.
        ranks_per_node: number of GPUs of a node.
        local_rank: index of the current device when the block begins.
        parts: objects that the patches of a world share, with its `Remarks` and `ChosenBackends`; None for none.

    Yields:
        Properties of the GPU.

    Raises:
        UsageError: there is no such GPU, the node has no such rank, or another block is open.
    """
    model = read_gpu(gpu)
    _check(ranks_per_node, local_rank)
    patches = Patches()
    try:
        with uninterrupted():
            _open(model, ranks_per_node, local_rank, patches, Parts() if parts is None else parts)
        yield model
    finally:
        with uninterrupted():
            patches.undo()


def _check(ranks_per_node: int, local_rank: int) -> None:
    """Raise if a block is open, or if the node has no such rank."""
    if _current is not None:
        raise UsageError(f"a CPU already stands in for {_current.name}: close that block first, or use it")
    if ranks_per_node < 1:
        raise UsageError(f"a node cannot have {ranks_per_node} GPUs: give 1 or more")
    if not 0 <= local_rank < ranks_per_node:
        raise UsageError(
            f"local rank {local_rank} is not in a node of {ranks_per_node} GPUs: "
            f"give one from 0 to {ranks_per_node - 1}"
        )


def _open(model: Gpu, count: int, local_rank: int, patches: Patches, parts: Parts) -> None:
    global _current
    _current = model
    patches.callback(_forget)
    driver = Driver(model, count, local_rank)
    for part in (model, driver, StandInMode(driver)):
        parts.add(part)
    for sentence in install_all(TABLE, {"cuda device"}, patches, parts):
        parts[Remarks].say(sentence)


def _forget() -> None:
    global _current
    _current = None

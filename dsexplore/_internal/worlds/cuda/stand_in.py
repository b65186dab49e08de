"""`cuda_stand_in`: inside a block, ``cuda`` means the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import uninterrupted
from dsexplore._internal.torch_internals.patches import Parts, Patches, install_all
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.cuda.cuda_patch_table import TABLE
from dsexplore._internal.worlds.cuda.function_mode import StandInMode
from dsexplore._internal.worlds.cuda.gpu import Gpu, read_gpu
from dsexplore._internal.worlds.remarks import Remarks

_current: Gpu | None = None


@contextmanager
def cuda_stand_in(
    gpu: str = "h100", ranks_per_node: int = 8, local_rank: int = 0, parts: Parts | None = None
) -> Iterator[Gpu]:
    """Make ``cuda`` mean the CPU inside a block, and fake tensors where a mode of fake tensors is active.

    Args:
        gpu: name of the GPU whose answers programs get (``known_gpus`` lists them), or path of a file of the user's.
        ranks_per_node: number of GPUs of a node.
        local_rank: index of the current device when the block begins.
        parts: what the entries of a world's tables share: its `Remarks`, and the `ChosenBackends` of its groups.

    Yields:
        What is known of that GPU.

    Raises:
        UsageError: no such GPU, a rank that the node does not have, or a block inside another.
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
    if _current is not None:
        raise UsageError(f"a CPU stands in for {_current.name} already: close that block first, or use it as it is")
    if ranks_per_node < 1:
        raise UsageError(f"a node of {ranks_per_node} GPUs cannot be: give 1 or more")
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

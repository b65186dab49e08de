"""``dsexplore.aio.loading``: how fast a checkpoint loads with each call, beside the disk's limit.

Each round loads with each call in turn, once from a cold disk and once warm, so that a drifting disk affects all calls.
Each load allocates new memory, as in a program that loads once. The returned tensors are copied into existing ones,
because a call that maps a file returns before its bytes are read.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dsexplore._internal.aio.aio_config import NEAR_LIMIT, as_integer
from dsexplore._internal.aio.buffers import Buffer, give_back_free_memory
from dsexplore._internal.aio.checkpoints.checkpoint_files import (
    KINDS,
    Checkpoint,
    find_checkpoint,
    first_files,
    save_as,
    state_of,
    why_not_saved,
)
from dsexplore._internal.aio.checkpoints.loaders import (
    NO_SAFETENSORS,
    Loader,
    Tensors,
    loaders_of,
    new_targets,
    tensors_in,
)
from dsexplore._internal.aio.checkpoints.loading_result import CheckpointTimes, LoaderTimes, LoadingResult, LoadTime
from dsexplore._internal.aio.disk import disk_of, drop_cached
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.sweeps.scratch import check_space
from dsexplore._internal.errors import UsageError
from dsexplore._internal.free_memory import free_memory
from dsexplore._internal.progress import Work, track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes, format_count, parse_size

if TYPE_CHECKING:
    from torch import nn

_PIECE = 256 << 20
"""Bytes that are read at a time to measure the disk's limit."""

Clock = Callable[[], float]
"""Returns seconds."""


@names_arguments
def loading(
    path_or_model: str | os.PathLike[str] | nn.Module,
    folder: str | os.PathLike[str] = ".",
    *,
    rounds: int = 3,
    max_read: int | str = "16GiB",
) -> LoadingResult:
    """Measure how fast a checkpoint loads, from a cold disk and warm, and say what to change.

    The calls are ``safetensors.torch.load_file``, ``torch.load`` with and without ``mmap``,
    ``torch.distributed.checkpoint.load``, and `dsexplore.aio.load_file`, which reads with direct I/O. The rate at which
    the disk can deliver the files is measured, too. For a path, nothing is written::

        dsexplore.aio.loading("model.safetensors")
        dsexplore.aio.loading(model, folder="/nvme")

    Args:
        path_or_model: a ``.safetensors`` file, a file of ``torch.save``, the ``…index.json`` of shards, a folder with
            one of these or with a checkpoint of ``torch.distributed.checkpoint``; or a model, whose state dict is saved
            in each of the three formats, and removed afterwards.
        folder: folder for a model's checkpoints, on the disk to measure.
        rounds: number of cold and of warm loads with each call; medians are shown.
        max_read: bytes of shards to read; if there are more, only the first shards are read.

    Raises:
        FileNotFoundError: there is no such path, or a shard that an index names is missing.
        UsageError: not a checkpoint, a file that holds more than tensors and plain values, a checkpoint that does not
            fit into free memory, or a model without memory.
        OSError: the disk fails, or has no room for a model's checkpoints.
    """
    times = as_integer(rounds)
    if times is None or times < 1:
        raise UsageError(f"rounds {rounds!r} is not a number of loads: give a whole number, at least 1")
    if isinstance(path_or_model, (str, os.PathLike)):
        checkpoint = first_files(find_checkpoint(path_or_model), parse_size(max_read))
        return _measure(str(checkpoint.path), [checkpoint], times, time.perf_counter)
    with _saved(path_or_model, folder) as checkpoints:
        return _measure(type(path_or_model).__name__, checkpoints, times, time.perf_counter)


@contextmanager
def _saved(model: nn.Module, folder: str | os.PathLike[str]) -> Iterator[list[Checkpoint]]:
    """Save a model in each format that can be saved here; the files are removed at the end of the block."""
    state = state_of(model)
    kinds = [kind for kind in KINDS if why_not_saved(kind) is None]
    check_space(os.fspath(folder), len(kinds) * sum(tensor.nbytes for tensor in state.values()))
    with TemporaryDirectory(prefix=".dsexplore-loading-", dir=folder) as made:
        yield [find_checkpoint(save_as(kind, state, Path(made))) for kind in kinds]


def _measure(title: str, checkpoints: Sequence[Checkpoint], rounds: int, clock: Clock) -> LoadingResult:
    """Measure one checkpoint after another."""
    disk = disk_of(checkpoints[0].files[0])
    total = sum(rounds * (2 * len(loaders_of(checkpoint)) + 1) for checkpoint in checkpoints)
    with track("loading", total, "loads") as work:
        measured = tuple(_measure_checkpoint(checkpoint, rounds, clock, work) for checkpoint in checkpoints)
    return LoadingResult(title, disk=disk, measured=measured, notes=tuple(_notes(checkpoints)))


def _notes(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield sentences on shards and calls that were not measured."""
    for checkpoint in checkpoints:
        if checkpoint.left_out:
            read = len(checkpoint.files)
            size = format_bytes(checkpoint.nbytes)
            yield f"Of {read + checkpoint.left_out} shards, the first {read} were read ({size}); max_read= reads more."
    if why_not_saved("safetensors") is not None:
        yield NO_SAFETENSORS


def _measure_checkpoint(checkpoint: Checkpoint, rounds: int, clock: Clock, work: Work) -> CheckpointTimes:
    """Time all calls that can load a checkpoint, round by round."""
    _check_memory(checkpoint)
    gc.collect()  # tensors that map a file would keep its pages
    loaders = loaders_of(checkpoint)
    targets = new_targets(checkpoint)
    cold: dict[str, list[LoadTime]] = {loader.name: [] for loader in loaders}
    warm: dict[str, list[LoadTime]] = {loader.name: [] for loader in loaders}
    cached: dict[str, list[float | None]] = {loader.name: [] for loader in loaders}
    limit = []
    for number in range(rounds):
        limit.append(_limit(checkpoint, clock))
        work.advance(1, "the disk's limit")
        turn = number % len(loaders)
        for loader in (*loaders[turn:], *loaders[:turn]):
            cached[loader.name].append(drop_files(checkpoint))
            give_back_free_memory()
            cold[loader.name].append(load_once(loader, checkpoint, targets, clock))
            _read_through_cache(checkpoint)
            give_back_free_memory()
            warm[loader.name].append(load_once(loader, checkpoint, targets, clock))
            work.advance(2, loader.name)
    times = [
        LoaderTimes(
            loader.name,
            maps=loader.maps,
            cold=tuple(cold[loader.name]),
            warm=tuple(warm[loader.name]),
            still_cached=_largest(cached[loader.name]),
        )
        for loader in loaders
    ]
    return CheckpointTimes(checkpoint, tuple(times), tuple(limit))


def load_once(loader: Loader, checkpoint: Checkpoint, targets: Tensors, clock: Clock) -> LoadTime:
    """Load a checkpoint once; the tensors of a file are copied and freed before the next file is loaded."""
    call = fill = 0.0
    begun = clock()
    for content in loader.load(checkpoint, targets):
        loaded = clock()
        call += loaded - begun
        _copy(content, targets)
        del content  # to free the memory is part of a load
        begun = clock()
        fill += begun - loaded
    return LoadTime(call, fill)


def _copy(content: Mapping[str, object], targets: Tensors) -> None:
    for name, tensor in tensors_in(content):
        targets[name].copy_(tensor)


def _limit(checkpoint: Checkpoint, clock: Clock) -> float:
    """Return the bytes per second at which the files are read with direct I/O, into one buffer."""
    drop_files(checkpoint)  # without direct I/O, files are read through the page cache
    piece = min(_PIECE, max(checkpoint.sizes))
    memory = Buffer(piece).populate()
    with aio_handle.from_config(NEAR_LIMIT) as handle:
        begun = clock()
        for file, size in zip(checkpoint.files, checkpoint.sizes, strict=True):
            for at in range(0, size, piece):
                handle.sync_pread(memory.bytes[: size - at], file, at)
        return checkpoint.nbytes / (clock() - begun)


def drop_files(checkpoint: Checkpoint) -> float | None:
    """Drop the files from the page cache; return the largest fraction of a file that stayed, None if unknown."""
    shares = []
    for file in checkpoint.files:
        with file.open("rb") as opened:
            shares.append(drop_cached(opened.fileno()))
    return _largest(shares)


def _largest(shares: Sequence[float | None]) -> float | None:
    """Return the largest fraction; None if one is unknown."""
    measured = [share for share in shares if share is not None]
    return max(measured) if len(measured) == len(shares) else None


def _read_through_cache(checkpoint: Checkpoint) -> None:
    """Read the files into the page cache, where direct I/O leaves nothing."""
    block = bytearray(8 << 20)
    for file in checkpoint.files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass


def _check_memory(checkpoint: Checkpoint) -> None:
    """Raise UsageError if the tensors to fill, and what a load of the largest file takes, do not fit into memory."""
    needed, free = checkpoint.nbytes + 2 * max(checkpoint.sizes), free_memory()
    if free is not None and needed > free:
        files = format_count(len(checkpoint.files), "file")
        raise UsageError(
            f"loading {files} of {checkpoint.path} takes {format_bytes(needed)} of memory, and {format_bytes(free)} "
            "are free: give max_read= for shards, or free some"
        )

"""``dsexplore.aio.feeding``: the samples per second of a `DataLoader`, and whether disk or processor limits them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dsexplore._internal.aio.data_loaders.feeding_result import FeedingResult
from dsexplore._internal.aio.data_loaders.process_use import (
    ProcessUse,
    children_of,
    helpers_of_multiprocessing,
    use_of,
    used_between,
)
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments

if TYPE_CHECKING:
    import torch

_BETWEEN_READINGS = 0.1
"""Seconds between two readings of what the workers use; one that ends in between is not seen at its end."""
ReadUse = Callable[[], tuple[dict[int, ProcessUse], dict[int, ProcessUse]]]
"""Returns ({process: use} of this process, {process: use} of its workers)."""


@names_arguments
def feeding(
    loader: Iterable[object], seconds: float = 10.0, *, step_seconds: float | None = None, warmup: int = 2
) -> FeedingResult:
    """Take batches from a data loader as fast as possible, and say what limits it: the disk or the processor.

    Batches are dropped, and nothing else runs meanwhile::

        dsexplore.aio.feeding(DataLoader(dataset, batch_size=32, num_workers=4), step_seconds=0.25)

    Args:
        loader: a ``torch.utils.data.DataLoader``, or another iterable of batches; a new pass over it is started.
        seconds: seconds to take batches; less if the loader ends.
        step_seconds: seconds of a training step without waiting for input; None if unknown.
        warmup: number of first batches that are not counted, while workers start and fill their queues.

    Raises:
        UsageError: `loader` is not iterable or ends too early, or a duration is out of range.
    """
    if not seconds > 0:
        raise UsageError(f"seconds {seconds:g} is not a duration: give a positive number")
    if step_seconds is not None and not step_seconds > 0:
        raise UsageError(f"step_seconds {step_seconds:g} is not a duration: give the seconds of a step without input")
    if not isinstance(loader, Iterable):
        raise UsageError(f"{type(loader).__name__} yields no batches: give a DataLoader")
    others = set(children_of(os.getpid()))
    if getattr(loader, "persistent_workers", False):
        others = set()  # workers may run since an earlier pass
    return measure(
        loader,
        seconds,
        step_seconds=step_seconds,
        warmup=warmup,
        clock=time.perf_counter,
        read_use=partial(_current_use, others),
    )


def measure(
    loader: Iterable[object],
    seconds: float,
    *,
    step_seconds: float | None,
    warmup: int,
    clock: Callable[[], float],
    read_use: ReadUse,
) -> FeedingResult:
    """Take batches for some seconds.

    Args:
        loader: iterable of batches.
        seconds: seconds to take batches.
        step_seconds: seconds of a training step without waiting for input; None if unknown.
        warmup: number of first batches that are not counted.
        clock: returns seconds.
        read_use: returns what this process and its workers have used so far.
    """
    batches = iter(loader)
    for number in range(warmup):
        if next(batches, None) is None:
            raise UsageError(f"the loader ended after {number} batches: give warmup=0, or a longer one")
    main_before, workers_before = read_use()
    begun = last_reading = clock()
    workers_after = dict(workers_before)
    count = samples = nbytes = 0
    while True:
        batch = next(batches, None)
        if batch is None:
            break
        count, samples, nbytes = count + 1, samples + samples_of(batch), nbytes + bytes_of(batch)
        now = clock()
        if now - begun >= seconds:
            break
        if now - last_reading >= _BETWEEN_READINGS:
            last_reading = now
            workers_after |= read_use()[1]
    elapsed = clock() - begun
    main_after, workers = read_use()
    workers_after |= workers  # workers that have ended stay with their last use
    if not count:
        raise UsageError(f"the loader has no more than {warmup} batches: give warmup=0, or a longer one")
    return FeedingResult(
        batches=count,
        samples=samples,
        nbytes=nbytes,
        seconds=elapsed,
        workers=len(workers_after),
        of_main=used_between(main_before, main_after),
        of_workers=used_between(workers_before, workers_after),
        step_seconds=step_seconds,
        processors=len(os.sched_getaffinity(0)),
    )


def _current_use(others: set[int]) -> tuple[dict[int, ProcessUse], dict[int, ProcessUse]]:
    """Return the use of this process, and of its workers: its child processes without `others` and helpers."""
    pids = set(children_of(os.getpid())) - others - helpers_of_multiprocessing()
    return use_of([os.getpid()]), use_of(pids)


def samples_of(batch: object) -> int:
    """Return the number of samples in a batch: the size of its first tensor's dim 0, or the length of a list."""
    tensor = next(_tensors(batch), None)
    if tensor is not None:
        return int(tensor.shape[0]) if tensor.ndim else 1
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def bytes_of(batch: object) -> int:
    """Return the bytes of the tensors in a batch."""
    return sum(tensor.nbytes for tensor in _tensors(batch))


def _tensors(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts, lists and tuples."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)

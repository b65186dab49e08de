"""``dsexplore.aio.feeding``: samples per second of a user's `DataLoader`, and whether disk or processor limits them."""

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

_BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the workers, which are gone once their data set has ended."""
Look = Callable[[], tuple[dict[int, ProcessUse], dict[int, ProcessUse]]]
"""Returns what this process, and what its workers have used so far."""


@names_arguments
def feeding(
    loader: Iterable[object], seconds: float = 10.0, *, step_seconds: float | None = None, warmup: int = 2
) -> FeedingResult:
    """Take batches from a data loader as fast as it gives them, and say what limits it: the disk or the processor.

    Batches are dropped, nothing else runs in the meantime::

        dsexplore.aio.feeding(DataLoader(dataset, batch_size=32, num_workers=4), step_seconds=0.25)

    Args:
        loader: a ``torch.utils.data.DataLoader``, or anything that yields batches. Its first pass begins anew.
        seconds: for how long batches are taken; less if the loader ends.
        step_seconds: of a training step without waiting for input, to say whether it waits.
        warmup: number of first batches that do not count, while workers start and fill their queues.

    Raises:
        UsageError: nothing to iterate over, a duration or number out of range, or a loader that ends too early.
    """
    if not seconds > 0:
        raise UsageError(f"seconds {seconds:g} is not a duration: give a positive number")
    if step_seconds is not None and not step_seconds > 0:
        raise UsageError(f"step_seconds {step_seconds:g} is not a duration: give the seconds of a step without input")
    if not isinstance(loader, Iterable):
        raise UsageError(f"{type(loader).__name__} yields no batches: give a DataLoader")
    persistent = getattr(loader, "persistent_workers", False)  # they may run since an earlier pass
    others = set() if persistent else set(children_of(os.getpid()))
    return measure(loader, seconds, step_seconds, warmup, time.perf_counter, partial(_look, others))


def measure(
    loader: Iterable[object],
    seconds: float,
    step_seconds: float | None,
    warmup: int,
    clock: Callable[[], float],
    look: Look,
) -> FeedingResult:
    """Take batches for some seconds of `clock`; `look` returns the use of processes."""
    batches = iter(loader)
    for number in range(warmup):
        _next(batches, number)
    before, workers = look()
    begun = looked = clock()
    seen = workers
    count = samples = nbytes = 0
    while True:
        batch = next(batches, None)
        if batch is None:
            break
        count, samples, nbytes = count + 1, samples + samples_of(batch), nbytes + bytes_of(batch)
        now = clock()
        if now - begun >= seconds:
            break
        if now - looked >= _BETWEEN_LOOKS:
            looked, seen = now, {**seen, **look()[1]}
    took = clock() - begun
    after, last = look()
    workers_after = {**seen, **last}  # workers end with their data set
    if not count:
        raise UsageError(f"the loader has no more than {warmup} batches: give warmup=0, or a longer one")
    return FeedingResult(
        batches=count,
        samples=samples,
        nbytes=nbytes,
        seconds=took,
        workers=len(workers_after),
        of_main=used_between(before, after),
        of_workers=used_between(workers, workers_after),
        step_seconds=step_seconds,
        processors=len(os.sched_getaffinity(0)),
    )


def _next(batches: object, number: int) -> None:
    if next(batches, None) is None:  # type: ignore[call-overload]  # an iterator
        raise UsageError(f"the loader ended after {number} batches: give warmup=0, or a longer one")


def _look(others: set[int]) -> tuple[dict[int, ProcessUse], dict[int, ProcessUse]]:
    """Return the use of this process, and of its child processes except `others` and helpers, which are no workers."""
    pids = set(children_of(os.getpid())) - others - helpers_of_multiprocessing()
    return use_of([os.getpid()]), use_of(pids)


def samples_of(batch: object) -> int:
    """Return the samples of a batch: the length of its first tensor's first dim, or of a list of samples; 1 else."""
    tensor = next(_tensors(batch), None)
    if tensor is not None:
        return int(tensor.shape[0]) if tensor.ndim else 1
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def bytes_of(batch: object) -> int:
    """Return the bytes of the tensors in a batch."""
    return sum(tensor.nbytes for tensor in _tensors(batch))


def _tensors(batch: object) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)

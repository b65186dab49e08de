"""Limit and advice of a `FeedingResult` with given use of processors and disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsexplore._internal.aio.data_loaders.feeding_result import FeedingResult
from dsexplore._internal.aio.data_loaders.process_use import ProcessUse
from dsexplore._internal.display import plain_text

MIB = 1 << 20


def feeding(
    workers: int,
    own: float,
    of_workers: float,
    disk: int = 0,
    step: float | None = None,
    processors: int = 8,
    queued: float = 0.0,
) -> FeedingResult:
    """Return the feeding of 100 batches of 32 samples and 1 MiB in 10 s, with so many seconds of processor and MiB from
    a disk."""
    use = ProcessUse(of_workers, 100 * MIB, disk * MIB, queued if workers else 0.0)
    this = ProcessUse(own, 0, 0, 0.0 if workers else queued)
    return FeedingResult(100, 3200, 100 * MIB, 10.0, workers, this, use, step, processors)


@pytest.mark.parametrize(
    ("workers", "own", "of_workers", "disk", "limit", "said"),
    [
        (0, 9.5, 0.0, 0, "this process", "Let workers prepare the batches"),
        (2, 1.0, 19.0, 0, "workers", "num_workers=4"),
        (8, 4.0, 70.0, 0, "processors", "Prepare less per step"),
        (4, 9.0, 4.0, 0, "this process", "not lists of objects"),
        (4, 1.0, 4.0, 90, "disk", "take a faster disk"),
        (4, 1.0, 4.0, 0, "neither", ""),
    ],
)
def test_what_limits(workers: int, own: float, of_workers: float, disk: int, limit: str, said: str) -> None:
    found = feeding(workers, own, of_workers, disk)
    assert found.limit == limit
    assert said in "\n".join(found.lines())


@pytest.mark.parametrize(
    ("workers", "own", "of_workers", "queued", "limit"),
    [
        (4, 1.0, 10.0, 29.0, "other programs"),
        (0, 2.0, 0.0, 7.9, "other programs"),
        (4, 1.0, 34.0, 5.0, "workers"),
        (4, 1.0, 4.0, 2.0, "neither"),
    ],
)
def test_waiting_for_a_processor_is_not_waiting_for_something_else(
    workers: int, own: float, of_workers: float, queued: float, limit: str
) -> None:
    found = feeding(workers, own, of_workers, queued=queued)
    assert found.limit == limit
    assert ("waiting for a processor" in found.lines()[1]) == (queued > 1)


@pytest.mark.parametrize(("own", "queued", "limit"), [(1.0, 8.0, "other programs"), (8.0, 1.0, "this process")])
def test_the_process_that_takes_batches_waits_for_a_processor_too(own: float, queued: float, limit: str) -> None:
    found = feeding(2, own, 4.0)
    assert replace(found, of_main=found.of_main._replace(queued_seconds=queued)).limit == limit


def test_a_step_waits_for_what_the_loader_takes_longer() -> None:
    found = feeding(2, 1.0, 19.0, step=0.08)
    assert found.verdict() == (
        "The loader gives 320 samples/s; a step waits 20 ms for its batch, 20 % of it. Its workers compute all the "
        "time: they are the limit."
    )
    quick = feeding(2, 1.0, 19.0, step=0.2)
    assert quick.stall == 0
    assert "a step does not wait for it" in quick.verdict()
    assert "num_workers" not in "\n".join(quick.lines())


def test_the_table_and_the_text() -> None:
    found = feeding(4, 1.0, 4.0, 90)
    row = found.to_frame().row(0, named=True)
    assert (row["samples_per_second"], row["worker_share"], row["from_disk"]) == (320.0, 0.1, 9 * MIB)
    assert row["most_by_processors"] == 3200 / 5 * 8
    assert plain_text(found).splitlines()[:2] == [
        "a data loader with 4 workers, 100 batches in 10 s, measured",
        found.verdict(),
    ]

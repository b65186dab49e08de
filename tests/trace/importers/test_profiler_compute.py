"""For how long a collective of a profile was alone on its GPU.

Modules: ``trace/importers/profiler_calls.py``.
"""

from __future__ import annotations

import random

import polars as pl
import pytest

from dsexplore._internal.trace.importers.event_kinds import Event
from dsexplore._internal.trace.importers.profiler_calls import ComputeTime


def kernel(begin: float, end: float, device: int = 0) -> Event:
    return {"pid": device, "tid": 7, "ts": begin, "dur": end - begin}


def exposed(collective: Event, *kernels: Event) -> int | None:
    rows = [(str(one["pid"]), one["ts"], one.get("dur")) for one in kernels]
    return ComputeTime(pl.DataFrame(rows, schema=["pid", "ts", "dur"], orient="row")).exposed([collective])[0]


@pytest.mark.parametrize(
    ("begin", "end", "alone"),
    [(15, 30, 10), (0, 20, 0), (-5, 40, 25), (20, 30, 10), (25.5, 26, 0.5), (4, 6, 0)],
)
def test_what_no_kernel_computes_beside_is_exposed(begin: float, end: float, alone: float) -> None:
    assert exposed(kernel(begin, end), kernel(0, 10), kernel(5, 20)) == alone * 1_000


def test_kernels_in_each_other_and_between_pauses_count_once() -> None:
    computed = [kernel(0, 10), kernel(2, 3), kernel(20, 30), kernel(29, 31), kernel(31, 32)]
    assert exposed(kernel(0, 40), *computed) == (40 - 10 - 12) * 1_000


def test_only_kernels_of_the_same_device_count() -> None:
    assert exposed(kernel(0, 10, device=1), kernel(0, 10, device=0), kernel(8, 12, device=1)) == 8_000


def test_without_kernels_that_compute_it_is_not_known() -> None:
    assert exposed(kernel(0, 10)) is None
    assert exposed(kernel(0, 10, device=1), kernel(0, 10)) is None
    assert exposed({"pid": 0, "ts": 1}, kernel(0, 10)) is None
    assert exposed(kernel(0, 10), {"pid": 0, "ts": 1}) is None


def test_it_is_what_counting_the_microseconds_gives() -> None:
    draw = random.Random(1)
    for _ in range(50):
        spans = [(begin := draw.randrange(90), begin + draw.randrange(12)) for _ in range(draw.randrange(1, 12))]
        begin, end = sorted(draw.sample(range(100), 2))
        busy = {at for start, stop in spans for at in range(start, stop)}
        expected = sum(at not in busy for at in range(begin, end)) * 1_000
        assert exposed(kernel(begin, end), *(kernel(*span) for span in spans)) == expected

"""Times by stream events: never waiting for an op, on the host's clock. The events are scripted; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsexplore.comm.device_clock import CudaClock


class Stream:
    """A stream that reaches each recorded event at a scripted millisecond."""

    def __init__(self, *reached_ms: float) -> None:
        self.reached_ms = list(reached_ms)
        self.now_ms = 0.0
        self.waits = 0

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = self.stream.reached_ms.pop(0)

    def synchronize(self) -> None:
        assert self.at_ms is not None
        self.stream.now_ms = max(self.stream.now_ms, self.at_ms)
        self.stream.waits += 1

    def query(self) -> bool:
        return self.at_ms is not None and self.at_ms <= self.stream.now_ms

    def elapsed_time(self, later: Event) -> float:
        assert self.at_ms is not None
        assert later.at_ms is not None
        return later.at_ms - self.at_ms


def at(nanoseconds: int) -> Callable[[], int]:
    return lambda: nanoseconds


def test_an_interval_is_known_when_the_stream_has_passed_it() -> None:
    stream = Stream(0.5, 2.5, 4.0)
    interval = CudaClock(at(7_000_000), stream.event).begin(device=0)
    assert interval.nanoseconds() is None  # issued
    interval.finish()
    interval.finish()  # a wait after the completion changes nothing
    stream.now_ms = 3.0
    assert interval.nanoseconds() is None  # running
    stream.now_ms = 4.0
    assert interval.nanoseconds() == (9_000_000, 10_500_000)
    assert stream.waits == 1  # for the anchor


def test_devices_have_their_own_anchor_and_ops_share_it() -> None:
    stream = Stream(1.0, 2.0, 3.0, 10.0, 11.0)
    clock = CudaClock(at(0), stream.event)
    first, second, elsewhere = clock.begin(0), clock.begin(0), clock.begin(1)
    stream.reached_ms = [12.0, 13.0, 14.0]
    for interval in (first, second, elsewhere):
        interval.finish()
    stream.now_ms = 20.0
    assert [interval.nanoseconds() for interval in (first, second, elsewhere)] == [
        pytest.approx((1e6, 11e6)),
        pytest.approx((2e6, 12e6)),
        pytest.approx((1e6, 4e6)),
    ]
    assert stream.waits == 2

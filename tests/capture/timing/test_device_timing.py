"""Times of collectives on devices, whose clocks a test scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsexplore._internal.capture.timing.device_timing import CudaAnchor, CudaSpan, device_of
from dsexplore._internal.capture.timing.stopwatch import Stopwatch
from tests.capture.works import FutureWork, SilentWork, Spanned


class Device:
    """A device that reaches each recorded event at a scripted millisecond of its own clock."""

    def __init__(self, *reached_ms: float) -> None:
        self.reached_ms = list(reached_ms)
        self.now_ms = 0.0
        self.waits = 0


class Event:
    """A CUDA event; events of two devices cannot be compared, as with torch's own."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ms = device.reached_ms.pop(0)

    def synchronize(self) -> None:
        self.device.now_ms = max(self.device.now_ms, self.at_ms)
        self.device.waits += 1

    def query(self) -> bool:
        return self.at_ms <= self.device.now_ms

    def elapsed_time(self, later: Event) -> float:
        assert later.device is self.device, "Both events must be recorded on the same device"
        return later.at_ms - self.at_ms


def on_device(number: int) -> list[Any]:
    """Return the arguments of an op on a tensor of that device, as far as `device_of` looks at them."""
    tensor = torch.empty(0).as_subclass(OnDevice)
    tensor.number = number
    return [[tensor]]


class OnDevice(torch.Tensor):
    number: int
    is_cuda = True

    def get_device(self) -> int:
        return self.number


def test_each_device_has_a_clock_of_its_own() -> None:
    devices = {0: Device(1.0, 2.0, 3.0, 10.0, 11.0), 1: Device(501.0, 502.0, 504.0)}
    readings = iter([7_000_000, 20_000_000])
    stopwatch = Stopwatch(lambda: next(readings), lambda number: Event(devices[number]))
    events, works = [Spanned(), Spanned(), Spanned()], [FutureWork(), FutureWork(), FutureWork()]
    for event, number in zip(events, (0, 0, 1), strict=True):
        stopwatch.begin(event, "cuda", on_device(number))
    for event, work in zip(events, works, strict=True):
        stopwatch.follow(event, work)
        work.future.set_result(None)
    spans = [event.span for event in events]
    assert all(span is not None for span in spans)
    assert [span.read() for span in spans if span] == [
        (8_000_000, 16_000_000),
        (9_000_000, 17_000_000),
        (21_000_000, 23_000_000),
    ]
    assert [device.waits for device in devices.values()] == [1 + 2, 1 + 1]  # for the anchor, and for each reading


def test_a_span_is_over_when_its_device_has_passed_the_end() -> None:
    device = Device(0.5, 2.5, 4.0)
    anchor = CudaAnchor(0, lambda: 7_000_000, lambda _number: Event(device))
    span, work = CudaSpan(anchor, lambda _number: Event(device)), FutureWork()
    span.watch(work, runs_here=True)
    assert (span.has_end, span.is_over) == (False, False)  # issued
    work.future.set_result(None)
    device.now_ms = 3.0
    assert not span.is_over
    device.now_ms = 4.0
    assert span.is_over
    assert span.read() == (9_000_000, 10_500_000)


def test_a_collective_starts_when_the_one_before_it_in_its_communicator_has_ended() -> None:
    """NCCL's collectives on two streams do so: on an H200 the kernel of one took 54 of 108 ms."""
    device = Device(0, 10, 12, 20, 21, 64, 118, 30)
    stopwatch = Stopwatch(lambda: 0, lambda _number: Event(device))
    works = [FutureWork() for _ in range(3)]
    events = [Spanned() for _ in works]
    for event, communicator in zip(events, ("dp", "dp", "tp"), strict=True):
        stopwatch.begin(event, "cuda", on_device(0), communicator)
    message = Spanned()
    stopwatch.begin(message, "cuda", on_device(0))
    for event, work in zip(events, works, strict=True):
        stopwatch.follow(event, work)
        work.future.set_result(None)
    spans = [event.span.read() for event in events if event.span is not None]
    assert [(start // 1_000_000, end // 1_000_000) for start, end in spans] == [(10, 64), (64, 118), (20, 30)]
    stopwatch.release()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_work_without_a_future_runs_on_the_current_stream_where_it_is_not_async(is_async: bool) -> None:
    """NCCL's works are like that: on an H100, collectives that were not async once had no times."""
    device = Device(1.0, 2.0, 3.0)
    stopwatch = Stopwatch(lambda: 7_000_000, lambda _number: Event(device))
    event = Spanned(is_async=is_async)
    stopwatch.begin(event, "cuda", on_device(0))
    stopwatch.follow(event, None)
    assert event.span is not None
    assert event.span.has_end == (not is_async)
    if not is_async:
        assert event.span.read() == (8_000_000, 9_000_000)


def test_what_a_graph_captures_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses to say when an event of a graph was reached."""
    monkeypatch.setattr("dsexplore._internal.capture.timing.stopwatch.is_captured", lambda: True)
    stopwatch, event, work = Stopwatch(lambda: 7, lambda _number: Event(Device())), Spanned(), FutureWork()
    stopwatch.begin(event, "cuda", on_device(0))
    stopwatch.follow(event, work)
    work.future.set_result(None)
    stopwatch.end_on_host(event)
    assert (event.span, event.start, event.end) == (None, None, None)


def test_a_tensor_of_the_cpu_is_timed_on_the_host_in_a_group_of_both() -> None:
    assert device_of(on_device(3)) == 3
    assert device_of([torch.empty(1), "0"]) is None
    assert device_of([None, "0"]) == (torch.cuda.current_device() if torch.cuda.is_initialized() else None)
    event = Spanned()
    Stopwatch(lambda: 5).begin(event, "cuda", [[torch.empty(1)]])
    assert (event.start, event.span) == (5, None)


class TestBatches:
    """Collectives that are launched together and share one work, as NCCL's of ``batch_isend_irecv``."""

    @pytest.fixture(autouse=True)
    def works(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """Return the works that ``ProcessGroup._end_coalescing`` returns, one after the other; waits for them do
        nothing."""
        works: list[Any] = []
        monkeypatch.setattr(dist.ProcessGroup, "_start_coalescing", lambda _group, _device: None)
        monkeypatch.setattr(dist.ProcessGroup, "_end_coalescing", lambda _group, _device: works.pop(0))
        monkeypatch.setattr(dist.Work, "wait", lambda _work: None)
        return works

    @pytest.fixture
    def stopwatch(self) -> Iterator[Stopwatch]:
        device = Device(*range(1, 20))
        stopwatch = Stopwatch(lambda: 0, lambda _number: Event(device))
        stopwatch.install()
        yield stopwatch
        stopwatch.release()

    @staticmethod
    def issue(stopwatch: Stopwatch) -> CudaSpan:
        event = Spanned(is_async=False)
        stopwatch.begin(event, "cuda", on_device(0))
        stopwatch.follow(event, None)
        assert event.span is not None
        return event.span

    @staticmethod
    def begin() -> None:
        dist.ProcessGroup._start_coalescing(None, torch.device("cuda", 0))  # type: ignore[arg-type]

    @staticmethod
    def end(work: Any, works: list[Any]) -> None:
        works.append(work)
        dist.ProcessGroup._end_coalescing(None, torch.device("cuda", 0))  # type: ignore[arg-type]

    def test_a_batch_ends_where_the_stream_has_passed_the_wait_for_it(
        self, stopwatch: Stopwatch, works: list[Any]
    ) -> None:
        first, second = SilentWork(), SilentWork()
        self.begin()
        spans = [self.issue(stopwatch), self.issue(stopwatch)]
        self.end(first, works)
        self.begin()
        spans.append(self.issue(stopwatch))
        self.end(second, works)
        assert [span.has_end for span in spans] == [False, False, False]
        second.wait()
        assert [span.has_end for span in spans] == [False, False, True]
        for _ in range(2):
            first.wait()  # the second time the stream is past it
        assert [tuple(at // 1_000_000 for at in span.read()) for span in spans] == [(1, 5), (2, 6), (3, 4)]
        assert self.issue(stopwatch).has_end  # alone again

    def test_a_future_in_a_batch_is_not_its_end(self, stopwatch: Stopwatch, works: list[Any]) -> None:
        """NCCL completes it before the batch is launched."""
        event, work = Spanned(), FutureWork()
        self.begin()
        stopwatch.begin(event, "cuda", on_device(0))
        stopwatch.follow(event, work)
        work.future.set_result(None)
        self.end(SilentWork(), works)
        assert event.span is not None
        assert not event.span.has_end

    def test_members_of_a_batch_that_failed_are_of_no_later_one(self, stopwatch: Stopwatch, works: list[Any]) -> None:
        work = SilentWork()
        self.begin()
        failed = self.issue(stopwatch)
        self.begin()
        later = self.issue(stopwatch)
        self.end(work, works)
        work.wait()
        assert (failed.has_end, later.has_end) == (False, True)

    def test_a_work_that_nobody_holds_is_forgotten(self, stopwatch: Stopwatch, works: list[Any]) -> None:
        self.begin()
        span = self.issue(stopwatch)
        self.end(SilentWork(), works)
        SilentWork().wait()  # may have the same identity
        self.begin()
        self.end(None, works)  # nothing was launched
        assert not span.has_end

    def test_torch_has_its_own_back(self) -> None:
        names = ("_start_coalescing", "_end_coalescing")
        before = [vars(dist.ProcessGroup)[name] for name in names]
        stopwatch = Stopwatch(lambda: 0)
        for _ in range(2):
            stopwatch.install()
        assert all(vars(dist.ProcessGroup)[name] is not old for name, old in zip(names, before, strict=True))
        for _ in range(2):
            stopwatch.release()
        assert [vars(dist.ProcessGroup)[name] for name in names] == before

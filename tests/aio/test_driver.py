"""Submit and reap requests on an engine that gives scripted answers."""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from dsexplore._internal.aio.backends.base import Completions, Engine, Requests, split
from dsexplore._internal.aio.driver import DriveMonitor, Policy, drive
from dsexplore._internal.aio.staging import Slots

BLOCK = 4096


class Scripted(Engine):
    """Finishes requests in order; ``refuse`` and ``results`` say what goes otherwise."""

    name = "scripted"

    def __init__(self, depth: int) -> None:
        self.depth, self.in_flight = depth, 0
        self.calls: list[tuple[str, int]] = []
        self.refuse: deque[int] = deque()
        """Number of requests that each coming submission accepts; all that are offered if empty."""
        self.results: dict[int, list[int]] = {}
        self._queue: deque[int] = deque()
        self._ready: Completions = []

    def load(self, requests: Requests) -> None:
        assert self.in_flight == 0
        self.requests = requests

    def place(self, index: int, address: int) -> None:
        self.requests.addresses[index] = address

    def submit(self, first: int, count: int) -> int:
        accepted = min(self.refuse.popleft(), count) if self.refuse else count
        self.calls.append(("submit", accepted))
        self._queue.extend(range(first, first + accepted))
        self.in_flight += accepted
        assert len(self._queue) <= self.depth
        return accepted

    def wait(self, minimum: int) -> int:
        assert 1 <= minimum <= self.in_flight
        assert not self._ready
        self.calls.append(("wait", minimum))
        done = [self._queue.popleft() for _ in range(minimum)]
        self._ready = [(index, self._result(index)) for index in done]
        return len(done)

    def take(self) -> Completions:
        ready, self._ready = self._ready, []
        self.in_flight -= len(ready)
        if ready:
            self.calls.append(("take", len(ready)))
        return ready

    def _result(self, index: int) -> int:
        scripted = self.results.get(index)
        return scripted.pop(0) if scripted else int(self.requests.lengths[index])

    def close(self) -> None:
        assert self.in_flight == 0


class Latecomer(Scripted):
    """Finishes the newest request first, so that the first one stays in flight while others go round."""

    def wait(self, minimum: int) -> int:
        self._queue.rotate(1)
        return super().wait(minimum)


@pytest.fixture
def target(tmp_path: Path):  # type: ignore[no-untyped-def]
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 16 * 10)
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def requests_on(fd: int, count: int, *, write: bool = False) -> tuple[Requests, np.ndarray]:  # type: ignore[type-arg]
    memory = np.zeros(count * BLOCK, np.uint8)
    return split(fd, write=write, address=memory.ctypes.data, nbytes=memory.nbytes, offset=0, block_size=BLOCK), memory


def run(engine: Scripted, requests: Requests, policy: Policy, fd: int = -1) -> None:
    drive(engine, requests, policy, lambda: fd, None)


def watched(engine: Scripted, requests: Requests, policy: Policy, watch: DriveMonitor, fd: int = -1) -> None:
    drive(engine, requests, policy, lambda: fd, None, watch)


class Ticks:
    """A clock that advances by one at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_split_covers_everything_once() -> None:
    table = split(3, write=False, address=0x1000, nbytes=2500, offset=512, block_size=1024)
    assert table.lengths.tolist() == [1024, 1024, 452]
    assert table.offsets.tolist() == [512, 1536, 2560]
    assert table.addresses.tolist() == [0x1000, 0x1400, 0x1800]
    assert len(split(3, write=True, address=0x1000, nbytes=0, offset=0, block_size=1024)) == 0


def test_without_overlap_each_batch_is_reaped_whole() -> None:
    engine = Scripted(4)
    run(engine, requests_on(-1, 10)[0], Policy(False, False))
    assert engine.calls == [
        *[("submit", 4), ("wait", 4)], *[("submit", 4), ("take", 4), ("wait", 4)],
        *[("submit", 2), ("take", 4), ("wait", 2)], ("take", 2),
    ]  # fmt: skip


def test_with_overlap_the_queue_is_kept_full() -> None:
    engine = Scripted(4)
    run(engine, requests_on(-1, 7)[0], Policy(False, True))
    assert engine.calls[0] == ("submit", 4)
    assert engine.calls[1:10] == [("wait", 1), ("submit", 1), ("take", 1)] * 3
    assert engine.calls[10:] == [("wait", 1), ("take", 1)] * 4


@pytest.mark.parametrize("overlap", [True, False])
def test_what_has_finished_is_replaced_before_it_is_looked_at(overlap: bool) -> None:
    engine = Scripted(1)
    run(engine, requests_on(-1, 3)[0], Policy(False, overlap))
    assert engine.calls == [("submit", 1), *[("wait", 1), ("submit", 1), ("take", 1)] * 2, ("wait", 1), ("take", 1)]


def test_a_measured_queue_is_filled_before_what_has_finished_is_looked_at() -> None:
    engine, watch = Scripted(1), DriveMonitor(deadline=1e9, clock=Ticks())
    watched(engine, requests_on(-1, 3)[0], Policy(False, True), watch)
    assert engine.calls == [("submit", 1), *[("wait", 1), ("submit", 1), ("take", 1)] * 2, ("wait", 1), ("take", 1)]


def test_single_submit_is_one_request_per_call() -> None:
    engine = Scripted(4)
    run(engine, requests_on(-1, 6)[0], Policy(True, False))
    assert [call for call in engine.calls if call[0] != "take"] == [
        *[("submit", 1)] * 4, ("wait", 4), *[("submit", 1)] * 2, ("wait", 2)
    ]  # fmt: skip


def test_partial_submissions_are_resumed() -> None:
    engine = Scripted(4)
    engine.refuse.extend([1, 2])
    run(engine, requests_on(-1, 4)[0], Policy(False, False))
    assert engine.calls == [("submit", 1), ("submit", 2), ("submit", 1), ("wait", 4), ("take", 4)]


def test_no_room_waits_for_requests_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scripted(4)
    engine.refuse.extend([2, 0, 1, 0])
    run(engine, requests_on(-1, 4)[0], Policy(False, True))
    submitted = sum(count for call, count in engine.calls if call == "submit")
    assert submitted == 4
    assert engine.calls[:3] == [("submit", 2), ("submit", 0), ("wait", 1)]


def test_no_room_with_nothing_in_flight_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("dsexplore._internal.aio.driver.time.sleep", naps.append)
    engine = Scripted(4)
    engine.refuse.extend([0] * 100)
    with pytest.raises(OSError, match="takes no request") as caught:
        run(engine, requests_on(-1, 4)[0], Policy(False, True))
    assert caught.value.errno == errno.EAGAIN
    assert 10 < len(naps) < 100


def test_no_room_at_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsexplore._internal.aio.driver.time.sleep", lambda _: None)
    engine = Scripted(4)
    engine.refuse.extend([0, 0, 0])
    run(engine, requests_on(-1, 4)[0], Policy(False, True))
    assert engine.calls[:5] == [*[("submit", 0)] * 3, ("submit", 4), ("wait", 1)]


@pytest.mark.parametrize("result", [0, 1000, -errno.EINTR, -errno.EAGAIN, -errno.EINVAL, -errno.ECANCELED])
def test_a_short_or_interrupted_read_is_completed(target: int, result: int) -> None:
    engine = Scripted(4)
    engine.results[1] = [result]
    requests, memory = requests_on(target, 10)
    run(engine, requests, Policy(False, True), target)
    moved = max(result, 0)
    expected = os.pread(target, BLOCK, BLOCK)
    assert memory[BLOCK + moved : 2 * BLOCK].tobytes() == expected[moved:]
    assert not memory[: BLOCK + moved].any()  # the engine's own part, which this one leaves as it is
    assert not memory[2 * BLOCK :].any()


def test_a_short_write_is_completed(target: int) -> None:
    engine = Scripted(2)
    engine.results[3] = [512]
    requests, memory = requests_on(target, 5, write=True)
    memory[:] = 0xEE
    before = os.pread(target, 10 * BLOCK, 0)
    run(engine, requests, Policy(False, False), target)
    first, end = 3 * BLOCK + 512, 4 * BLOCK  # what the engine, which writes nothing, left over of the request
    assert os.pread(target, 10 * BLOCK, 0) == before[:first] + b"\xee" * (end - first) + before[end:]


def test_a_file_that_ends_early_is_an_error(target: int) -> None:
    engine = Scripted(2)
    engine.results[11] = [0]
    with pytest.raises(OSError, match="ends at byte 40960, before byte 49152: it was shortened") as caught:
        run(engine, requests_on(target, 12)[0], Policy(False, True), target)
    assert caught.value.errno == errno.ENODATA


def test_a_failure_leaves_nothing_in_flight() -> None:
    engine = Scripted(4)
    engine.results[1] = [-errno.EIO]
    with pytest.raises(OSError, match="Input/output error"):
        run(engine, requests_on(-1, 20)[0], Policy(False, True))
    assert engine.in_flight == 0
    assert sum(count for call, count in engine.calls if call == "submit") < 20


@pytest.mark.parametrize("overlap", [True, False])
def test_a_watch_ends_at_its_deadline_and_counts_what_moved(overlap: bool) -> None:
    engine, watch = Scripted(2), DriveMonitor(deadline=40.0, clock=Ticks())
    watched(engine, requests_on(-1, 200)[0], Policy(False, overlap), watch)
    submitted = sum(count for call, count in engine.calls if call == "submit")
    assert 20 < submitted < 100
    assert watch.ranges == [(0, submitted * BLOCK)]
    assert len(watch.latencies) == submitted


def test_a_watched_table_ends_before_the_deadline() -> None:
    engine, watch = Scripted(4), DriveMonitor(deadline=1e9, clock=Ticks())
    table = split(-1, write=False, address=BLOCK, nbytes=2 * BLOCK + 100, offset=7 * BLOCK, block_size=BLOCK)
    watched(engine, table, Policy(False, True), watch)
    assert watch.ranges == [(7 * BLOCK, 2 * BLOCK + 100)]


def test_a_watch_moves_one_batch_however_late_it_starts() -> None:
    watch = DriveMonitor(deadline=0.0, clock=Ticks())
    watched(Scripted(2), requests_on(-1, 6)[0], Policy(False, True), watch)
    assert watch.ranges == [(0, 2 * BLOCK)]


def test_a_watch_gives_up_when_the_system_never_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsexplore._internal.aio.driver.time.sleep", lambda _: None)
    engine = Scripted(2)
    engine.refuse.extend([0] * 1000)
    with pytest.raises(OSError, match="takes no request"):
        watched(engine, requests_on(-1, 6)[0], Policy(False, True), DriveMonitor(deadline=50.0, clock=Ticks()))


@pytest.mark.parametrize("result", [100, 0, -errno.EINTR, -errno.EINVAL])
def test_a_short_request_under_a_watch_is_an_error(target: int, result: int) -> None:
    engine, watch = Scripted(2), DriveMonitor(deadline=50.0, clock=Ticks())
    engine.results[1] = [result]
    short = f"no bytes came from offset {BLOCK + result}, {BLOCK - result} bytes too early"
    expected = short if result >= 0 else os.strerror(-result)
    with pytest.raises(OSError, match=expected):
        watched(engine, requests_on(target, 6)[0], Policy(False, True), watch, target)
    assert engine.in_flight == 0
    assert not watch.ranges


def test_latencies_count_from_submission_to_the_wait_that_brought_the_end() -> None:
    """Looks at the clock: 1 at the start, then one after each wait; what a wait brings is replaced at that moment."""
    engine, watch = Scripted(2), DriveMonitor(deadline=1e9, clock=Ticks())
    watched(engine, requests_on(-1, 5)[0], Policy(False, True), watch)
    assert watch.latencies == [1, 2, 2, 2, 2]  # submitted at 1 1 2 3 4, waited for at 2 3 4 5 6
    engine, watch = Scripted(2), DriveMonitor(deadline=1e9, clock=Ticks())
    watched(engine, requests_on(-1, 5)[0], Policy(False, False), watch)
    assert watch.latencies == [1] * 5


def test_latencies_where_the_newest_request_finishes_first() -> None:
    engine, watch = Latecomer(2), DriveMonitor(deadline=1e9, clock=Ticks())
    watched(engine, requests_on(-1, 4)[0], Policy(False, True), watch)
    assert watch.latencies == [1, 1, 1, 4]  # the first request is the last to end


@pytest.mark.parametrize("partial", [[2, 1, 1, 0], [1, 1]])
def test_latencies_of_requests_that_the_system_took_late(partial: list[int]) -> None:
    engine, watch = Scripted(4), DriveMonitor(deadline=1e9, clock=Ticks())
    engine.refuse.extend(partial)
    watched(engine, requests_on(-1, 8)[0], Policy(False, True), watch)
    assert len(watch.latencies) == 8
    assert all(1 <= latency <= 8 for latency in watch.latencies)


class Pieces(Slots):
    """A number of blocks of memory, lent once at a time."""

    def __init__(self, addresses: list[int]) -> None:
        self.free, self.lent = addresses, dict[int, int]()
        self.given: list[bool] = []

    def take(self, index: int) -> int | None:
        if not self.free:
            return None
        self.lent[index] = self.free.pop()
        return self.lent[index]

    def give(self, index: int, completed: bool) -> None:
        self.free.append(self.lent.pop(index))
        self.given.append(completed)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("pieces", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", [Scripted, Latecomer])
def test_each_address_is_lent_to_one_request_at_a_time(kind: type[Scripted], pieces: int, overlap: bool) -> None:
    class Checking(kind):  # type: ignore[misc, valid-type]
        def submit(self, first: int, count: int) -> int:
            lent = [int(self.requests.addresses[index]) for index in (*self._queue, *range(first, first + count))]
            assert len(set(lent)) == len(lent)
            return super().submit(first, count)  # type: ignore[no-any-return]

    engine, slots = Checking(3), Pieces([100 * (i + 1) for i in range(pieces)])
    watch = DriveMonitor(deadline=1e9, clock=Ticks())
    drive(
        engine,
        split(-1, write=False, address=0, nbytes=8 * BLOCK, offset=0, block_size=BLOCK),
        Policy(False, overlap),
        lambda: -1,
        slots,
        watch,
    )
    assert (len(slots.free), slots.lent, slots.given) == (pieces, {}, [True] * 8)
    assert len(watch.latencies) == 8
    assert min(watch.latencies) >= 1


@pytest.mark.parametrize("overlap", [True, False])
def test_memory_of_requests_that_the_system_does_not_take_is_given_back(overlap: bool) -> None:
    engine, slots = Scripted(3), Pieces([100, 200, 300])
    engine.refuse.extend([2, 0, 1, 0])
    drive(
        engine,
        split(-1, write=False, address=0, nbytes=8 * BLOCK, offset=0, block_size=BLOCK),
        Policy(False, overlap),
        lambda: -1,
        slots,
    )
    assert (sorted(slots.free), slots.lent) == ([100, 200, 300], {})
    assert slots.given.count(True) == 8
    assert False in slots.given


def test_a_queue_whose_memory_is_all_lent_is_filled_before_the_next_wait() -> None:
    engine = Scripted(2)
    drive(
        engine,
        split(-1, write=False, address=0, nbytes=6 * BLOCK, offset=0, block_size=BLOCK),
        Policy(False, True),
        lambda: -1,
        Pieces([100, 200]),
    )
    assert engine.calls[:7] == [
        ("submit", 2), ("wait", 1), ("take", 1), ("submit", 1), ("wait", 1), ("take", 1), ("submit", 1)
    ]  # fmt: skip

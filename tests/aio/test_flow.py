"""Steady part of a transfer, run by an engine in Python: every way in which it can end.

Modules: ``aio/driver.py``, ``aio/backends/base.py``.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.aio.backends import linux_aio
from dsexplore._internal.aio.backends.base import LAP, Requests, split
from dsexplore._internal.aio.backends.choose import open_engine, why_not
from dsexplore._internal.aio.backends.linux_aio import LinuxAio
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.aio.driver import DriveMonitor, Policy, drive
from dsexplore._internal.aio.transfer_file import TransferFile

BLOCK = 4096
COUNT = 400  # several laps of the results that are looked at together
LAST = 512  # bytes of the last request: shorter than the others
NBYTES = (COUNT - 1) * BLOCK + LAST
Call = Callable[..., int]


@pytest.fixture
def target(tmp_path: Path, random_bytes: Callable[[int], bytes]) -> Iterator[TransferFile]:
    path = tmp_path / "file"
    path.write_bytes(random_bytes(NBYTES))
    target = TransferFile(path, write=False)
    yield target
    target.close()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[LinuxAio]:
    reason = why_not("linux-aio")
    if reason is not None:
        pytest.skip(reason)
    engine = LinuxAio(request.param)
    engine._steady = None  # the loop in C has tests of its own
    yield engine
    assert engine.in_flight == 0
    engine.close()


class Between:
    """Stands between an engine and its system calls: notes each, and lets a script change some."""

    def __init__(self, engine: LinuxAio, script: Callable[[Between, Call, tuple[Any, ...]], int]) -> None:
        self.engine, self.submitted, self.waits, self._script = engine, 0, 0, script
        self._real: Call = engine._fast
        engine._fast = self

    def __call__(self, number: Any, *rest: Any) -> int:
        submits = number is linux_aio._SUBMIT
        done = self._script(self, self._real, (number, *rest))
        if submits:
            self.submitted += max(done, 0)
        else:
            self.waits += 1
        return done


def as_they_are(_: Between, call: Call, arguments: tuple[Any, ...]) -> int:
    return call(*arguments)


def read_all(
    engine: Any, target: TransferFile, overlap: bool, change: Callable[[Requests], None] | None = None
) -> bytes:
    buffer = Buffer(NBYTES)
    requests = split(target.fd, write=False, address=buffer.address, nbytes=NBYTES, offset=0, block_size=BLOCK)
    if change is not None:
        change(requests)
    drive(engine, requests, Policy(False, overlap), target.plain_fd, None)
    return buffer.bytes.tobytes()


def shortened(odd: list[int]) -> Callable[[Requests], None]:
    """Return a change that takes the last byte from some requests."""

    def change(requests: Requests) -> None:
        requests.lengths[odd] -= 1

    return change


def without_ends(content: bytes, odd: list[int]) -> bytes:
    """Return what is read by requests that were `shortened`."""
    expected = bytearray(content)
    for index in odd:
        expected[min((index + 1) * BLOCK, NBYTES) - 1] = 0
    return bytes(expected)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("depth", [1, 3, 150])
def test_every_engine_moves_every_byte(
    backend: str, target: TransferFile, random_bytes: Callable[[int], bytes], depth: int, overlap: bool
) -> None:
    engine = open_engine(backend, depth)
    try:
        assert read_all(engine, target, overlap) == random_bytes(NBYTES)
        assert engine.in_flight == 0
    finally:
        engine.close()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("depth", [1, 3, 150])
def test_a_watch_notes_every_request(backend: str, target: TransferFile, depth: int, overlap: bool) -> None:
    engine, watch, buffer = open_engine(backend, depth), DriveMonitor(deadline=math.inf), Buffer(NBYTES)
    requests = split(
        target.fd, write=False, address=buffer.address, nbytes=NBYTES // 4096 * 4096, offset=0, block_size=BLOCK
    )
    begun = time.perf_counter()
    try:
        drive(engine, requests, Policy(False, overlap), target.plain_fd, None, watch)
    finally:
        engine.close()
    taken = time.perf_counter() - begun
    assert watch.ranges == [(0, NBYTES // 4096 * 4096)]
    assert len(watch.latencies) == len(requests) > 3 * LAP
    assert 0 < min(watch.latencies) <= max(watch.latencies) <= taken


@pytest.mark.parametrize("engine", [1, 5], indirect=True)
def test_the_steady_part_runs_in_the_engine(
    engine: LinuxAio, target: TransferFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    wait = engine.wait
    monkeypatch.setattr(engine, "wait", lambda minimum: calls.append(minimum) or wait(minimum))
    read_all(engine, target, overlap=True)
    assert len(calls) <= engine.depth + 1


@pytest.mark.parametrize("engine", [4], indirect=True)
def test_partial_submissions_are_resumed(
    engine: LinuxAio, target: TransferFile, random_bytes: Callable[[int], bytes]
) -> None:
    def halve(between: Between, call: Call, arguments: tuple[Any, ...]) -> int:
        number, context, count, *rest = arguments
        if number is linux_aio._SUBMIT and between.submitted % 3:
            count = engine._counts[(engine._counts.index(count) + 1) // 2]
        return call(number, context, count, *rest)

    between = Between(engine, halve)
    assert read_all(engine, target, overlap=False) == random_bytes(NBYTES)
    assert between.submitted == COUNT


@pytest.mark.parametrize("engine", [1, 4], indirect=True)
@pytest.mark.parametrize("submits", [True, False])
def test_a_call_that_fails_once_is_repeated(
    engine: LinuxAio, target: TransferFile, random_bytes: Callable[[int], bytes], submits: bool
) -> None:
    """Handle the requests before it: three direct requests of an odd length, refused and moved plainly."""
    refused: list[int] = []
    odd = [20, 95, 170] if target.direct else []

    def refuse(between: Between, call: Call, arguments: tuple[Any, ...]) -> int:
        if (arguments[0] is linux_aio._SUBMIT) == submits and between.submitted > 30 * (len(refused) + 1):
            refused.append(between.submitted)
            return -1
        return call(*arguments)

    Between(engine, refuse)
    assert read_all(engine, target, True, shortened(odd)) == without_ends(random_bytes(NBYTES), odd)
    assert len(refused) > 5


@pytest.mark.parametrize("engine", [1, 7], indirect=True)
@pytest.mark.parametrize("bad", [0, 1, 40, 200, COUNT - 1])
def test_refused_requests_are_completed(
    engine: LinuxAio, target: TransferFile, random_bytes: Callable[[int], bytes], bad: int
) -> None:
    """Move direct requests of an odd length through the page cache after the system refuses them (EINVAL)."""
    if not target.direct:
        pytest.skip("this filesystem takes no direct requests, so it refuses none")
    assert read_all(engine, target, True, shortened([bad])) == without_ends(random_bytes(NBYTES), [bad])


@pytest.mark.parametrize("engine", [1, 7], indirect=True)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_failure_ends_the_transfer_soon(engine: LinuxAio, target: TransferFile, overlap: bool) -> None:
    def spoil(requests: Requests) -> None:
        requests.addresses[100] = BLOCK  # where no process has memory

    between = Between(engine, as_they_are)
    with pytest.raises(OSError, match="Bad address") as caught:
        read_all(engine, target, overlap, change=spoil)
    assert caught.value.errno == errno.EFAULT
    assert engine.in_flight == 0
    assert 100 < between.submitted <= 101 + LAP + 2 * engine.depth


@pytest.mark.parametrize("engine", [4], indirect=True)
def test_a_queue_that_fails_leaves_nothing_in_flight(engine: LinuxAio, target: TransferFile) -> None:
    def break_off(between: Between, call: Call, arguments: tuple[Any, ...]) -> int:
        if arguments[0] is linux_aio._SUBMIT and between.submitted > 90:
            engine._table["fd"] = 2**31 - 1  # no such descriptor
        return call(*arguments)

    Between(engine, break_off)
    with pytest.raises(OSError, match="io_submit") as caught:
        read_all(engine, target, overlap=True)
    assert caught.value.errno == errno.EBADF

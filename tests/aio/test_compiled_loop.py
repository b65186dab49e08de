"""Loop in C: every byte is moved, whatever its calls return.

Modules: ``aio/backends/compiled_loop.py``.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import c_int
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends.base import Requests, split
from dsexplore._internal.aio.backends.choose import open_engine, why_not
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.aio.driver import DriveMonitor, Policy, drive
from dsexplore._internal.aio.staging import Slots
from dsexplore._internal.aio.transfer_file import TransferFile

BLOCK = 4096
MOST = 300
FEW = settings(max_examples=80)


class Scripted:
    """flow.c with calls that go wrong as a test says; counts them."""

    NAMES: ClassVar[dict[str, str]] = {"linux-aio": "aio_flow", "io_uring": "uring_flow"}

    def __init__(self, path: Path) -> None:
        header = Path(__file__).with_name("scripted_calls.h")
        words = ["-O2", "-shared", "-fPIC", "-include", str(header), "-o", str(path), str(compiled_loop._SOURCE)]
        subprocess.run([*compiled_loop._compiler(), *words], check=True)
        self._library = ctypes.CDLL(str(path))

    def engine(self, name: str, depth: int, **script: int) -> Any:
        """Return an engine whose calls in C go by the script."""
        for key in ("refused", "halved", "interrupted", "submissions", "waits"):
            c_int.in_dll(self._library, key).value = script.get(key, 0)
        engine: Any = open_engine(name, depth)
        engine._steady = self._library[self.NAMES[name]]
        return engine

    def __getitem__(self, name: str) -> int:
        return c_int.in_dll(self._library, name).value


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    if compiled_loop.why_not() is not None:
        pytest.skip(str(compiled_loop.why_not()))
    return Scripted(tmp_path_factory.mktemp("scripted") / "flow.so")


@pytest.fixture(params=["linux-aio", "io_uring"])
def name(request: pytest.FixtureRequest) -> str:
    reason = why_not(request.param)
    if reason is not None:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture
def content(random_bytes: Callable[[int], bytes]) -> bytes:
    return random_bytes(MOST * BLOCK)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[[bool], TransferFile]]:
    targets: list[TransferFile] = []

    def opened(write: bool) -> TransferFile:
        targets.append(TransferFile(path, write=write))
        return targets[-1]

    yield opened
    for target in targets:
        target.close()


class Ring(Slots):
    """Blocks that requests use in turn; block k is full of k + 1."""

    passes_on = True

    def __init__(self, count: int, requests: Requests) -> None:
        self.buffer, self.requests = Buffer(count * BLOCK), requests
        self.buffer.bytes.reshape(count, BLOCK)[:] = np.arange(1, count + 1, dtype=np.uint8)[:, None]
        self.free = [self.buffer.address + at for at in range(0, count * BLOCK, BLOCK)]
        self.last: dict[int, int] = {}

    def take(self, index: int) -> int | None:
        return self.free.pop(0) if self.free else None

    def give(self, index: int, completed: bool) -> None:
        address = int(self.requests.addresses[index])
        assert address not in self.free
        self.free.append(address)
        if completed:
            self.last[address] = index

    def blocks(self) -> np.ndarray[Any, Any]:
        """Return, of each request, the number of the block that it used."""
        return (self.requests.addresses - self.buffer.address) // BLOCK


def reads(target: TransferFile, memory: Buffer) -> Requests:
    """Requests that fill the memory from the beginning of a file."""
    return split(target.fd, write=False, address=memory.address, nbytes=memory.nbytes, offset=0, block_size=BLOCK)


every = st.sampled_from([0, 1, 2, 3, 7])
anyhow: dict[str, st.SearchStrategy[Any]] = {
    "depth": st.integers(1, 9),
    **dict.fromkeys(("single", "overlap", "write"), st.booleans()),
    **dict.fromkeys(("refused", "halved", "interrupted"), every),
}
"""Every policy of a queue, in which calls go wrong now and then."""


@FEW
@given(
    count=st.integers(1, MOST - 1),
    first=st.integers(0, MOST),
    last=st.sampled_from([512, 1024, BLOCK]),
    watched=st.booleans(),
    odd=st.sets(st.integers(0, MOST), max_size=3),
    **anyhow,
)
def test_it_moves_every_byte_whatever_its_calls_return(
    name: str, scripted: Scripted, path: Path, opened: Callable[[bool], TransferFile], content: bytes,
    count: int, first: int, last: int, depth: int, single: bool, overlap: bool, watched: bool, write: bool,
    refused: int, halved: int, interrupted: int, odd: set[int],
) -> None:  # fmt: skip
    """Requests of an odd length are refused by the disk, and completed by ordinary calls, unless a watch measures."""
    path.write_bytes(content)
    target, offset = opened(write), min(first, MOST - count) * BLOCK
    nbytes = (count - 1) * BLOCK + last
    memory = Buffer(nbytes)
    memory.bytes[:] = 0xA5
    requests = split(target.fd, write=write, address=memory.address, nbytes=nbytes, offset=offset, block_size=BLOCK)
    expected = bytearray(content if write else memory.bytes.tobytes())
    for index in range(count):
        requests.lengths[index] -= index in odd and not watched
        at, length = index * BLOCK, int(requests.lengths[index])
        if write:
            expected[offset + at : offset + at + length] = b"\xa5" * length
        else:
            expected[at : at + length] = content[offset + at : offset + at + length]
    watch = DriveMonitor(math.inf) if watched else None
    engine = scripted.engine(name, depth, refused=refused, halved=halved, interrupted=interrupted)
    begun = time.perf_counter()
    try:
        drive(engine, requests, Policy(single, overlap), target.plain_fd, None, watch)
        assert engine.in_flight == 0
    finally:
        engine.close()
    assert (path.read_bytes() if write else memory.bytes.tobytes()) == bytes(expected)
    if watch is not None:
        assert (watch.ranges, len(watch.latencies)) == ([(offset, nbytes)], count)
        assert 0 < min(watch.latencies) <= max(watch.latencies) <= time.perf_counter() - begun


@FEW
@given(count=st.integers(1, MOST), **anyhow)
def test_memory_goes_from_request_to_request(
    name: str, scripted: Scripted, path: Path, opened: Callable[[bool], TransferFile], content: bytes,
    count: int, depth: int, single: bool, overlap: bool, write: bool, refused: int, halved: int, interrupted: int,
) -> None:  # fmt: skip
    path.write_bytes(content)
    target, watch = opened(write), DriveMonitor(math.inf)
    requests = split(target.fd, write=write, address=0, nbytes=count * BLOCK, offset=0, block_size=BLOCK)
    ring = Ring(depth, requests)
    engine = scripted.engine(name, depth, refused=refused, halved=halved, interrupted=interrupted)
    try:
        drive(engine, requests, Policy(single, overlap), target.plain_fd, ring, watch)
    finally:
        engine.close()
    assert len(ring.free) == len(set(ring.free)) == depth
    assert len(watch.latencies) == count
    if write:
        written = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, BLOCK)[:count]
        assert np.array_equal(written, np.repeat(ring.blocks() + 1, BLOCK).reshape(count, BLOCK))
    for address, index in ring.last.items():
        held = bytes((ctypes.c_char * BLOCK).from_address(address))
        assert write or held == content[index * BLOCK : (index + 1) * BLOCK]


@pytest.mark.parametrize("depth", [1, 7])
@pytest.mark.parametrize(("single", "overlap"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_full_queue_is_kept_full_in_c(
    name: str, scripted: Scripted, opened: Callable[[bool], TransferFile], monkeypatch: pytest.MonkeyPatch,
    depth: int, single: bool, overlap: bool,
) -> None:  # fmt: skip
    """Python starts the first queue and waits for the last; C submits one request, or what is there."""
    engine, memory = scripted.engine(name, depth), Buffer(MOST * BLOCK)
    monkeypatch.setattr("dsexplore._internal.aio.driver._LONGEST_CALL", 1e6)
    calls: list[int] = []
    wait = engine.wait
    engine.wait = lambda minimum: calls.append(minimum) or wait(minimum)
    target = opened(False)
    requests = reads(target, memory)
    drive(engine, requests, Policy(single, overlap), target.plain_fd, None)
    engine.close()
    assert len(calls) <= depth + 1
    most = MOST if single or overlap else MOST // depth
    assert scripted["submissions"] <= most
    if single or not overlap:
        assert scripted["submissions"] >= most - 3 * depth
    if name == "io_uring":
        assert scripted["waits"] <= 2  # later ones are one call with a submission


def test_every_result_of_a_wait_is_looked_at(name: str, scripted: Scripted, path: Path) -> None:
    """Reads from the page cache finish in their order, four to a wait; one of them begins near the file's end."""
    for short in range(100, 104):
        engine, memory = scripted.engine(name, 4), Buffer(MOST * BLOCK)
        target = TransferFile(path, write=False, direct=False)
        requests = reads(target, memory)
        requests.offsets[short] = MOST * BLOCK - 1000
        with pytest.raises(OSError, match=f"the file ends at byte {MOST * BLOCK}, before byte"):
            drive(engine, requests, Policy(False, False), target.plain_fd, None)
        engine.close()
        target.close()


@pytest.mark.parametrize("depth", [1, 7])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_failure_ends_the_transfer_at_once(
    name: str, scripted: Scripted, opened: Callable[[bool], TransferFile], depth: int, overlap: bool
) -> None:
    engine, memory, target = scripted.engine(name, depth), Buffer(MOST * BLOCK), opened(False)
    requests = reads(target, memory)
    requests.addresses[100] = BLOCK  # where no process has memory
    with pytest.raises(OSError, match="Bad address") as caught:
        drive(engine, requests, Policy(True, overlap), target.plain_fd, None)
    assert caught.value.errno == errno.EFAULT
    assert engine.in_flight == 0
    engine.close()
    assert scripted["submissions"] <= 101 + 2 * depth


@pytest.mark.parametrize("watched", [True, False])
def test_a_file_that_is_shortened_is_an_error(
    name: str, scripted: Scripted, path: Path, opened: Callable[[bool], TransferFile], watched: bool
) -> None:
    engine, memory, target = scripted.engine(name, 4), Buffer(MOST * BLOCK), opened(False)
    os.truncate(path, 200 * BLOCK + 1000)
    requests = reads(target, memory)
    watch = DriveMonitor(math.inf) if watched else None
    with pytest.raises(OSError, match=f"the file ends at byte {200 * BLOCK + 1000}, before byte"):
        drive(engine, requests, Policy(False, True), target.plain_fd, None, watch)
    assert engine.in_flight == 0
    engine.close()


def many(target: TransferFile, depth: int) -> tuple[Requests, Ring]:
    """Requests for far longer than a test takes, all on the file's first block."""
    requests = split(target.fd, write=False, address=0, nbytes=1_000_000 * BLOCK, offset=0, block_size=BLOCK)
    requests.offsets[:] = 0
    return requests, Ring(depth, requests)


def test_it_ends_at_the_deadline(name: str, scripted: Scripted, opened: Callable[[bool], TransferFile]) -> None:
    engine, target = scripted.engine(name, 4), opened(False)
    requests, ring = many(target, 4)
    watch = DriveMonitor(time.perf_counter() + 0.05)
    drive(engine, requests, Policy(False, True), target.plain_fd, ring, watch)
    engine.close()
    ((_, moved),) = watch.ranges
    assert 0 < moved == len(watch.latencies) * BLOCK < 1_000_000 * BLOCK


def test_it_sees_a_deadline_that_is_brought_forward(
    name: str, scripted: Scripted, opened: Callable[[bool], TransferFile]
) -> None:
    """End the threads of a measurement soon after Ctrl-C."""
    engine, target = scripted.engine(name, 4), opened(False)
    requests, ring = many(target, 4)
    watch = DriveMonitor(math.inf)
    timer = threading.Timer(0.05, lambda: setattr(watch, "deadline", -math.inf))
    timer.start()
    drive(engine, requests, Policy(False, True), target.plain_fd, ring, watch)
    timer.join()
    engine.close()
    assert watch.ranges[0][1] == len(watch.latencies) * BLOCK < 1_000_000 * BLOCK


def test_a_signal_leaves_nothing_in_flight(
    name: str, scripted: Scripted, opened: Callable[[bool], TransferFile]
) -> None:
    class Caught(Exception):
        pass

    def raised(*_: object) -> None:
        raise Caught

    engine, target = scripted.engine(name, 4), opened(False)
    requests, ring = many(target, 4)
    before = signal.signal(signal.SIGUSR1, raised)
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(Caught):
            timer.start()
            drive(engine, requests, Policy(False, True), target.plain_fd, ring)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert engine.in_flight == 0
    engine.close()

"""Measure one setting for a short slice of time, and check afterwards that the bytes really moved.

A slice moves one part of the file after another exactly as `aio_handle` moves tensors: the same jobs on the same
threads. Rules of a measurement: the setting is warmed up first; data is random, so that no layer compresses it;
filling, checking and fsync are not timed; the result of every request is checked.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar, Literal

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.backends.base import Requests
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.driver import DriveMonitor
from dsexplore._internal.aio.pool import Pool, TransferJob
from dsexplore._internal.aio.staging import HostMemory, TransferBuffer
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.statistics import quantile
from dsexplore._internal.aio.transfer_file import TransferFile, make_durable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes

Mode = Literal["tensor", "ring"]
"""``tensor``: every request has its own place in one large buffer, as DeepSpeed's. ``ring``: depth × block bytes per
thread are used over and over, as fio's."""
Operation = Literal["read", "write"]

_KEPT_REQUESTS = 1024
"""Limit of depth × threads over all open queues; opening and closing a queue takes as long as a short slice."""
_CHECKED = 4
"""Number of requests compared after each slice, in addition to the first of each thread."""
_WARM_SECONDS = 0.015
_LONGEST_TENSOR = 0.5
"""Seconds after which a tensor that should be moved whole is cut off."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurement of one setting in one direction."""

    operation: Operation
    config: AioConfig
    bytes: int
    seconds: float
    cpu_seconds: float
    fsync_seconds: float
    """Seconds of the fsync after the writes; 0 for reads."""
    p50: float
    p95: float
    p99: float
    longest: float
    """Latency of a request in seconds: median, 95th and 99th percentile, longest."""
    transfer: int = 0
    """Bytes of each tensor, moved one after another; 0 if an older sweep did not record them."""

    @property
    def rate(self) -> float:
        """Bytes per second, without fsync."""
        return self.bytes / self.seconds

    @property
    def durable_rate(self) -> float:
        """Bytes per second, with fsync."""
        return self.bytes / (self.seconds + self.fsync_seconds)

    @property
    def cpu_ms_per_gib(self) -> float:
        """Milliseconds of processor time, all threads together, per GiB moved."""
        return self.cpu_seconds * 1e3 * 2**30 / self.bytes


class _Ring:
    """Blocks of memory that the requests of one thread use in turn, as fio's jobs do."""

    passes_on: ClassVar[bool] = True

    def __init__(self, addresses: Sequence[int]) -> None:
        self._free = deque(addresses)
        self.held: dict[int, tuple[int, int]] = {}
        """{address: (file offset, bytes) that were last moved through it}."""

    def prepare(self, memory: TransferBuffer, origin: int, requests: Requests) -> _Ring:
        self._requests = requests
        return self

    def take(self, index: int) -> int | None:
        if not self._free:
            return None
        return self._free.popleft()

    def give(self, index: int, completed: bool) -> None:
        requests = self._requests
        address = int(requests.addresses[index])
        self._free.append(address)
        if completed:
            self.held[address] = int(requests.offsets[index]), int(requests.lengths[index])


@dataclass(frozen=True, slots=True)
class Slice:
    """The bytes that one process moved with one setting; times in seconds of the system's monotonic clock."""

    bytes: int
    begun: float
    ended: float
    cpu_seconds: float
    fsync_seconds: float
    latencies: list[float]
    """Latency of each request."""


@dataclass(frozen=True, slots=True)
class Task:
    """A measurement to make in one slice."""

    config: AioConfig
    operation: Operation
    seconds: float
    """Seconds in which tensors are moved one after another; the last one is cut off, unless ``whole``."""
    transfer: int
    """Bytes of a tensor."""
    whole: bool = False
    """Finish the current tensor, for up to half a second."""
    most: float = math.inf
    """Bytes that may be moved, including the warm-up."""


@dataclass(slots=True)
class _SliceRun:
    """Tensors moved one after another, and where their bytes are."""

    watch: DriveMonitor
    rings: list[_Ring] | None
    begun: float
    ended: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(nbytes for _, nbytes in self.watch.ranges)


class Bench:
    """Measures settings on one open file.

    Args:
        target: opens the file in a direction.
        size: bytes of the file that are used, rounded down to whole pages.
        write_target: None if the file must not be written.
        renew: called before each write slice, to make the file fresh again; None overwrites it in place.
        prepare_read: called before each read slice.
        huge: memory on huge pages; False for ordinary ones. Or ``memory`` of ``size`` bytes, for tensor mode.
        turn: where in the file the first slice begins; processes that read one file begin at different places.
        clock: seconds; looked at by several threads.
    """

    def __init__(
        self,
        backend: str,
        target: TransferFile,
        size: int,
        *,
        mode: Mode = "tensor",
        write_target: TransferFile | None = None,
        renew: Callable[[], None] | None = None,
        prepare_read: Callable[[], None] | None = None,
        huge: bool = True,
        memory: Buffer | None = None,
        turn: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.backend, self.mode, self.size = backend, mode, size // PAGE * PAGE
        self.bytes_written = 0
        self._targets = {"read": target, "write": write_target}
        self._renew, self._prepare_read, self._clock = renew, prepare_read, clock
        self._pools: OrderedDict[tuple[int, int], Pool] = OrderedDict()
        self._arena, self._huge = memory or Buffer(size if mode == "tensor" else 0, huge=huge), huge
        self._turn = turn
        self._check = Buffer(1 << 20)

    @property
    def buffer(self) -> Buffer:
        """Memory that requests use."""
        return self._arena

    def fits(self, config: AioConfig) -> bool:
        """Return True if the setting fits the used part of the file."""
        return search.fills_queues(config, self.size)

    def measure(
        self,
        config: AioConfig,
        operation: Operation,
        seconds: float,
        *,
        transfer: int | None = None,
        whole: bool = False,
        most: float = math.inf,
    ) -> Sample:
        """Run one setting for `seconds`, after a short warm-up.

        Args:
            transfer: bytes of a tensor, rounded down to whole pages; None takes the size of the file.
            whole, most: as in `Task`.

        Raises:
            OSError: a request failed, or a byte read or written is wrong.
            UsageError: the file must not be written.
        """
        task = Task(config, operation, seconds, self.whole_pages(transfer), whole, most)
        return sample_of([self.run(task)], task)

    def whole_pages(self, transfer: int | None) -> int:
        """Return the bytes of a tensor that the file holds, in whole pages."""
        return self.size if transfer is None else min(transfer, self.size) // PAGE * PAGE

    def run(self, task: Task, gate: Callable[[], None] | None = None) -> Slice:
        """Warm a setting up, call `gate`, measure the setting, and check what it moved; raises as `measure`."""
        config, operation = task.config, task.operation
        target = self._targets[operation]
        if target is None:
            raise UsageError("an existing file is only read, never written: give a directory to measure writes")
        if operation == "write" and self._renew is not None:
            self._renew()
        if operation == "read" and self._prepare_read is not None:
            self._prepare_read()
        pool = self._pool(config)
        warm = 0
        if self._renew is None:
            warm = self._run(pool, replace(task, seconds=_WARM_SECONDS, whole=False, most=task.most / 2), target).bytes
        self._turn += 1
        if operation == "read" and self.mode == "tensor":
            self._spoil(task, target)
        if gate is not None:
            gate()
        measured = self._run(pool, replace(task, most=task.most - warm), target)
        fsync = self._sync(target) if operation == "write" else 0.0
        self._verify(measured, operation, config)
        latencies = measured.watch.latencies
        return Slice(measured.bytes, measured.begun, measured.ended, measured.cpu_seconds, fsync, latencies)

    def close(self) -> None:
        """End the threads; may be called repeatedly."""
        while self._pools:
            self._pools.popitem()[1].close()

    def _pool(self, config: AioConfig) -> Pool:
        """Return threads with engines of the right depth; the most recently used ones are kept."""
        key = config.thread_count, config.queue_depth
        if key not in self._pools:
            while self._pools and sum(map(math.prod, self._pools)) + math.prod(key) > _KEPT_REQUESTS:
                self._pools.popitem(last=False)[1].close()
            self._pools[key] = Pool(self.backend, config)
        self._pools.move_to_end(key)
        return self._pools[key]

    def _transfers(self, task: Task) -> Iterator[range]:
        """Yield the parts of the file to move one after another, endlessly; a fresh file is written once.

        Each slice starts at another part, so that no part of the disk is favored.
        """
        step = task.transfer
        starts = range(0, self.size // step * step, step)
        if self._renew is not None:
            yield from (range(at, at + step) for at in starts)
            return
        if len(starts) > 1 or task.whole:
            first = self._turn * 7919 % len(starts)
        else:
            first, block = 0, max(task.config.block_size, PAGE)
            begin = self._turn * 7919 * block % (step // 2) // PAGE * PAGE
            yield range(begin, step)
        for number in count(first):
            at = starts[number % len(starts)]
            yield range(at, at + step)

    def _job(self, part: range, config: AioConfig, target: TransferFile, run: _SliceRun | None = None) -> TransferJob:
        """Return the transfer of one part of the file, as `aio_handle` would create it."""
        address = self._arena.address + part.start if self.mode == "tensor" else 0
        return TransferJob(
            HostMemory(address, len(part), self._arena),
            TransferFile(target.fd, write=target.write),
            part.start,
            config,
            config.thread_count,
            watch=run.watch if run else None,
            rings=run.rings if run else None,
        )

    def _rings(self, config: AioConfig) -> list[_Ring] | None:
        if self.mode == "tensor":
            return None
        block, nbytes = config.block_size, config.bytes_in_flight
        if self._arena.nbytes < nbytes:
            self._arena = fill_random(Buffer(nbytes, huge=self._huge))
        places = [self._arena.address + at for at in range(0, nbytes, block)]
        depth = config.queue_depth
        return [_Ring(places[at : at + depth]) for at in range(0, len(places), depth)]

    def _run(self, pool: Pool, task: Task, target: TransferFile) -> _SliceRun:
        """Move one tensor after another for as long as the task says; each is finished before the next starts."""
        config, rings = task.config, self._rings(task.config)
        busy, begun = time.process_time(), self._clock()
        end = begun + task.seconds
        run = _SliceRun(
            DriveMonitor(max(end, begun + _LONGEST_TENSOR) if task.whole else end, self._clock), rings, begun
        )
        for whole in self._transfers(task):
            remaining = max(task.most - run.bytes, PAGE)
            part = whole if remaining >= len(whole) else range(whole.start, whole.start + int(remaining) // PAGE * PAGE)
            job = self._job(part, config, target, run)
            try:
                for share in range(config.thread_count):
                    pool.start(job, share, share)
                job.finished.wait()
            except BaseException:  # Ctrl-C: `close` waits for what is in flight
                run.watch.deadline = -math.inf
                raise
            if job.error is not None:
                raise job.error
            run.ended = self._clock()
            if run.ended >= end or run.bytes + PAGE > task.most:
                break
        run.cpu_seconds = time.process_time() - busy
        if target.write:
            self.bytes_written += run.bytes
        return run

    def _spoil(self, task: Task, target: TransferFile) -> None:
        """Overwrite the memory that each thread fills first, so that stale bytes cannot pass the check."""
        job = self._job(next(self._transfers(task)), task.config, target)
        for share in range(task.config.thread_count):
            if part := job.part(share):
                ctypes.memset(self._arena.address + part.start, 0xA5, min(len(part), task.config.block_size))

    def _verify(self, measured: _SliceRun, operation: Operation, config: AioConfig) -> None:
        """Compare the first request of each thread, and a few others, with the file, read again by other means."""
        block = config.block_size
        if measured.rings is not None:  # their memory holds what was moved last
            held = [(address, *span) for ring in measured.rings for address, span in ring.held.items()]
            chosen = held[:: max(len(held) // _CHECKED, 1)]
        else:
            transfers, memory = measured.watch.ranges, self._arena.address
            first = [(at, min(block, nbytes)) for at, nbytes in transfers[: config.thread_count]]
            others = transfers[:: max(len(transfers) // _CHECKED, 1)]
            last = [(at + (nbytes - 1) // block * block, (nbytes - 1) % block + 1) for at, nbytes in others]
            chosen = [(memory + at, at, nbytes) for at, nbytes in first + last]
        for address, offset, nbytes in chosen:
            self._compare(address, offset, min(nbytes, self._check.nbytes), operation, config)

    def _compare(self, address: int, offset: int, nbytes: int, operation: Operation, config: AioConfig) -> None:
        target = self._targets[operation]
        assert target is not None
        fd = target.open_for_reading(direct=True)
        try:
            got = os.preadv(fd, [self._check.bytes.data[:nbytes]], offset)
        finally:
            os.close(fd)
        memory = (ctypes.c_char * nbytes).from_address(address)
        if got != nbytes or memoryview(memory).cast("B") != self._check.bytes.data[:nbytes]:
            raise OSError(
                errno.EIO,
                f"verification failed: {format_bytes(nbytes)} at offset {offset} differ after a {operation} by "
                f"{self.backend} with {config}",
                target.path,
            )

    def _sync(self, target: TransferFile) -> float:
        begun = self._clock()
        make_durable(target.fd)
        return self._clock() - begun


def sample_of(slices: Sequence[Slice], task: Task) -> Sample:
    """Return the sample of the slices of all processes that measured a task together."""
    latencies = sorted(latency for part in slices for latency in part.latencies)
    return Sample(
        operation=task.operation,
        config=task.config,
        bytes=sum(part.bytes for part in slices),
        seconds=max(part.ended for part in slices) - min(part.begun for part in slices),
        cpu_seconds=sum(part.cpu_seconds for part in slices),
        fsync_seconds=max(part.fsync_seconds for part in slices),
        p50=quantile(latencies, 0.50),
        p95=quantile(latencies, 0.95),
        p99=quantile(latencies, 0.99),
        longest=latencies[-1],
        transfer=task.transfer,
    )

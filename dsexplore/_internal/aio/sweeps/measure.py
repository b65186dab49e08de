"""Measure one setting for a short slice of time, and check that the bytes were really moved.

A slice moves one part of the file after another as `aio_handle` moves tensors: with the same jobs on the same threads.
The setting is warmed up first. Data is random, so that no layer compresses it. The result of every request is checked.
Filling, checking and fsync are not timed.
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
from typing import ClassVar

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.backends.base import Requests
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.driver import DriveMonitor
from dsexplore._internal.aio.pool import Pool, TransferJob
from dsexplore._internal.aio.staging import HostMemory, TransferBuffer
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.measurements import Mode, Operation, Sample
from dsexplore._internal.aio.sweeps.statistics import quantile
from dsexplore._internal.aio.transfer_file import TransferFile, make_durable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes

_KEPT_REQUESTS = 1024
"""Limit of depth × threads of all open queues, which stay open, since to open one takes as long as a short slice."""
_CHECKED = 4
"""Number of requests that are compared after each slice, besides the first of each thread."""
_WARM_SECONDS = 0.015
"""Seconds of the warm-up."""
_LONGEST_TENSOR = 0.5
"""Seconds after which a tensor is cut off although it should be moved whole."""


class _Ring:
    """Blocks of memory that the requests of one thread use in turn, as jobs of fio do."""

    passes_on: ClassVar[bool] = True

    def __init__(self, addresses: Sequence[int]) -> None:
        self._free = deque(addresses)
        self.held: dict[int, tuple[int, int]] = {}
        """{address of a block: (file offset, bytes) of the last request that used it}."""

    def prepare(self, memory: TransferBuffer, origin: int, requests: Requests) -> _Ring:
        self._requests = requests
        return self

    def take(self, index: int) -> int | None:
        return self._free.popleft() if self._free else None

    def give(self, index: int, completed: bool) -> None:
        requests = self._requests
        address = int(requests.addresses[index])
        self._free.append(address)
        if completed:
            self.held[address] = int(requests.offsets[index]), int(requests.lengths[index])


@dataclass(frozen=True, slots=True)
class Slice:
    """The bytes that one process moved in a slice."""

    bytes: int
    begun: float
    """Time of the system's monotonic clock at which it began, in seconds."""
    ended: float
    """Time at which it ended."""
    cpu_seconds: float
    fsync_seconds: float
    latencies: list[float]
    """Seconds of each request."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure in a slice."""

    config: AioConfig
    operation: Operation
    seconds: float
    """Seconds to move tensors, one after another."""
    transfer: int
    """Bytes of a tensor."""
    whole: bool = False
    """True to finish the last tensor, for up to half a second; False to cut it off."""
    most: float = math.inf
    """Bytes that may be moved, including the warm-up."""


@dataclass(slots=True)
class _SliceRun:
    """Tensors that were moved one after another, and where their bytes are."""

    watch: DriveMonitor
    rings: list[_Ring] | None
    """Memory of each thread in ring mode; None in tensor mode."""
    begun: float
    ended: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(nbytes for _, nbytes in self.watch.ranges)


class Bench:
    """Measures settings on one open file.

    Args:
        backend: name of the engine.
        target: the file, opened for reading.
        size: bytes of the file to use, rounded down to whole pages.
        mode: how requests use memory.
        write_target: the file, opened for writing; None if it must not be written.
        renew: empties the file before each slice of writes; None to overwrite it in place.
        prepare_read: called before each slice of reads; None to do nothing.
        huge: allocate memory on huge pages; False for ordinary pages.
        memory: memory of `size` bytes to use in tensor mode instead of allocating it.
        turn: number that selects where in the file the first slice begins; processes that read one file differ in it.
        clock: returns seconds; called by several threads.
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
        self.backend = backend
        self.mode = mode
        self.size = size // PAGE * PAGE
        self.bytes_written = 0
        """Bytes that all slices have written, including warm-ups."""
        self._targets = {"read": target, "write": write_target}
        self._renew = renew
        self._prepare_read = prepare_read
        self._clock = clock
        self._pools: OrderedDict[tuple[int, int], Pool] = OrderedDict()
        """{(threads, depth): open queues}, the least recently used first."""
        self._huge = huge
        self._arena = memory or Buffer(size if mode == "tensor" else 0, huge=huge)
        self._turn = turn
        self._check = Buffer(1 << 20)

    @property
    def buffer(self) -> Buffer:
        """Memory that requests use."""
        return self._arena

    def fits(self, config: AioConfig) -> bool:
        """Return True if the used part of the file is large enough for a setting."""
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
        """Measure one setting, after a short warm-up.

        Args:
            config: the setting.
            operation: direction.
            seconds: seconds to move tensors.
            transfer: bytes of a tensor, rounded down to whole pages; None for the size of the file.
            whole: finish the last tensor, for up to half a second.
            most: bytes that may be moved, including the warm-up.

        Raises:
            OSError: a request failed, or a byte was read or written wrongly.
            UsageError: the file must not be written.
        """
        transfer = self.whole_pages(transfer)
        task = Task(config, operation, seconds, transfer=transfer, whole=whole, most=most)
        return sample_of([self.run(task)], task)

    def whole_pages(self, transfer: int | None) -> int:
        """Return the bytes of a tensor in whole pages, at most the file's size; None for the file's size."""
        return self.size if transfer is None else min(transfer, self.size) // PAGE * PAGE

    def run(self, task: Task, gate: Callable[[], None] | None = None) -> Slice:
        """Warm a setting up, call `gate`, measure the setting, and check the moved bytes; raise as `measure` does."""
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
        return Slice(
            measured.bytes,
            begun=measured.begun,
            ended=measured.ended,
            cpu_seconds=measured.cpu_seconds,
            fsync_seconds=fsync,
            latencies=measured.watch.latencies,
        )

    def close(self) -> None:
        """End the threads; may be called repeatedly."""
        while self._pools:
            self._pools.popitem()[1].close()

    def _pool(self, config: AioConfig) -> Pool:
        """Return threads and queues for a setting; those of the most recently used settings stay open."""
        key = config.thread_count, config.queue_depth
        if key not in self._pools:
            while self._pools and sum(map(math.prod, self._pools)) + math.prod(key) > _KEPT_REQUESTS:
                self._pools.popitem(last=False)[1].close()
            self._pools[key] = Pool(self.backend, config)
        self._pools.move_to_end(key)
        return self._pools[key]

    def _transfers(self, task: Task) -> Iterator[range]:
        """Yield the parts of the file to move one after another, endlessly; those of a fresh file once.

        Each slice begins at another part, so that no part of the disk is favored.
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
            offset=part.start,
            config=config,
            shares=config.thread_count,
            watch=run.watch if run else None,
            rings=run.rings if run else None,
        )

    def _rings(self, config: AioConfig) -> list[_Ring] | None:
        """Return the memory of each thread in ring mode; None in tensor mode."""
        if self.mode == "tensor":
            return None
        block, nbytes = config.block_size, config.bytes_in_flight
        if self._arena.nbytes < nbytes:
            self._arena = fill_random(Buffer(nbytes, huge=self._huge))
        places = [self._arena.address + at for at in range(0, nbytes, block)]
        depth = config.queue_depth
        return [_Ring(places[at : at + depth]) for at in range(0, len(places), depth)]

    def _run(self, pool: Pool, task: Task, target: TransferFile) -> _SliceRun:
        """Move tensors for the seconds of a task; each is finished before the next starts."""
        config, rings = task.config, self._rings(task.config)
        cpu_begun, begun = time.process_time(), self._clock()
        end = begun + task.seconds
        deadline = max(end, begun + _LONGEST_TENSOR) if task.whole else end
        run = _SliceRun(DriveMonitor(deadline, self._clock), rings, begun)
        for part in self._transfers(task):
            remaining = max(task.most - run.bytes, PAGE)
            if remaining < len(part):
                part = part[: int(remaining) // PAGE * PAGE]
            job = self._job(part, config, target, run)
            try:
                for share in range(config.thread_count):
                    pool.start(job, share=share, thread=share)
                job.finished.wait()
            except BaseException:  # after Ctrl-C, `close` waits for requests in flight
                run.watch.deadline = -math.inf
                raise
            if job.error is not None:
                raise job.error
            run.ended = self._clock()
            if run.ended >= end or run.bytes + PAGE > task.most:
                break
        run.cpu_seconds = time.process_time() - cpu_begun
        if target.write:
            self.bytes_written += run.bytes
        return run

    def _spoil(self, task: Task, target: TransferFile) -> None:
        """Overwrite the memory that each thread fills first, so that old bytes cannot pass the check."""
        job = self._job(next(self._transfers(task)), task.config, target)
        for share in range(task.config.thread_count):
            if part := job.part(share):
                ctypes.memset(self._arena.address + part.start, 0xA5, min(len(part), task.config.block_size))

    def _verify(self, measured: _SliceRun, operation: Operation, config: AioConfig) -> None:
        """Compare the first request of each thread, and a few others, with the file, which is read again."""
        block = config.block_size
        if measured.rings is not None:  # each block holds the bytes of the last request that used it
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
        """Raise OSError if memory differs from the file."""
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
        """Wait until written data is on the disk, and return the seconds that it took."""
        begun = self._clock()
        make_durable(target.fd)
        return self._clock() - begun


def sample_of(slices: Sequence[Slice], task: Task) -> Sample:
    """Return the sample of the slices in which all processes measured a task together."""
    latencies = sorted(latency for measured in slices for latency in measured.latencies)
    return Sample(
        operation=task.operation,
        config=task.config,
        bytes=sum(measured.bytes for measured in slices),
        seconds=max(measured.ended for measured in slices) - min(measured.begun for measured in slices),
        cpu_seconds=sum(measured.cpu_seconds for measured in slices),
        fsync_seconds=max(measured.fsync_seconds for measured in slices),
        p50=quantile(latencies, 0.50),
        p95=quantile(latencies, 0.95),
        p99=quantile(latencies, 0.99),
        longest=latencies[-1],
        transfer=task.transfer,
    )

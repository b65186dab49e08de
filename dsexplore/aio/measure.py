"""Measures one setting for a short slice of time, and checks afterwards that the bytes really moved.

What a measurement holds to: threads start together; the setting is warmed up first; data is random, so that no
layer compresses it; filling, checking and fsync are outside the timing; the result of every request is looked at.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsexplore.aio.backends.base import Engine, Requests, split
from dsexplore.aio.buffers import Buffer
from dsexplore.aio.config import AioConfig
from dsexplore.aio.driver import Policy, Watch, drive_until
from dsexplore.aio.files import Target, make_durable
from dsexplore.aio.memory import Stage
from dsexplore.aio.pool import Latch, Pool
from dsexplore.aio.statistics import quantile
from dsexplore.errors import UsageError
from dsexplore.units import format_bytes

Mode = Literal["tensor", "ring"]
"""``tensor``: every request has its own place in one large buffer, as DeepSpeed's. ``ring``: depth × block bytes per
thread are used over and over, as fio's."""
Operation = Literal["read", "write"]

_KEPT_REQUESTS = 1024
"""Depth × threads of all queues that are kept open: opening and closing one costs as long as a short slice."""
_CHECKED = 4
"""Requests that are compared after each slice, and the first of each thread."""
_WARM_SECONDS = 0.015
_PATTERN = 1 << 20
"""Words of random data that are made afresh."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One slice of one setting in one direction."""

    operation: Operation
    config: AioConfig
    bytes: int
    seconds: float
    cpu_seconds: float
    fsync_seconds: float
    """How long making the writes durable took afterwards; 0 for reads."""
    p50: float
    p95: float
    p99: float
    longest: float
    """Latency of a request in seconds: median, 95th and 99th percentile, longest."""

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


class _Slice:
    """A measured job for a `Pool`: its threads wait for each other, then run until a common deadline."""

    def __init__(
        self,
        tables: list[Requests],
        rings: list[list[int] | None],
        policy: Policy,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.tables, self.policy, self.seconds = tables, policy, seconds
        self.watches = [Watch(deadline=0.0, clock=clock) for _ in tables]
        self.finished = Latch()
        self.error: BaseException | None = None
        self.cpu = 0.0
        self._rings, self._clock = rings, clock
        self._gate = threading.Barrier(len(tables), action=self._open_gate)
        self._left, self._guard = len(tables), threading.Lock()

    def abandon(self) -> None:
        """End as soon as what is in flight has finished, also where not every thread has been given its share."""
        for watch in self.watches:
            watch.stopped = True
        self._gate.abort()

    def _open_gate(self) -> None:
        self.cpu = time.process_time()
        deadline = self._clock() + self.seconds
        for watch in self.watches:
            watch.deadline = deadline

    def run(self, share: int, engine: Engine, policy: Policy, block_size: int, stage: Stage) -> None:
        try:
            self._gate.wait()
            drive_until(engine, self.tables[share], self.policy, self.watches[share], self._rings[share])
        except BaseException as error:  # raised where the slice is waited for
            with self._guard:
                self.error = self.error or error
        with self._guard:
            self._left -= 1
            if self._left == 0:
                self.cpu = time.process_time() - self.cpu
                self.finished.open()


class Bench:
    """Measures settings on one open file.

    Args:
        target: opens the file in a direction.
        size: bytes of the file that are used; a multiple of the block sizes measured is best.
        write_target: None if the file must not be written.
        renew: called before each write slice, to make the file fresh again; None overwrites it in place.
        before_read: called before each read slice.
        huge: memory on huge pages; False for ordinary ones.
        clock: seconds; looked at by several threads.
    """

    def __init__(
        self,
        backend: str,
        target: Target,
        size: int,
        *,
        mode: Mode = "tensor",
        write_target: Target | None = None,
        renew: Callable[[], None] | None = None,
        before_read: Callable[[], None] | None = None,
        huge: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.backend, self.mode, self.size = backend, mode, size
        self.bytes_written = 0
        self._targets = {"read": target, "write": write_target}
        self._renew, self._before_read, self._clock = renew, before_read, clock
        self._pools: OrderedDict[tuple[int, int], Pool] = OrderedDict()
        self._arena, self._huge = Buffer(size if mode == "tensor" else 0, huge=huge), huge
        self._turn = 0
        self._check = Buffer(1 << 20)

    @property
    def buffer(self) -> Buffer:
        """The memory that requests use."""
        return self._arena

    def fits(self, config: AioConfig) -> bool:
        """Whether the queues can be filled several times over; the default setting always counts as fitting."""
        return config.bytes_in_flight <= max(self.size // 4, AioConfig().bytes_in_flight)

    def measure(self, config: AioConfig, operation: Operation, seconds: float) -> Sample:
        """Run one setting for ``seconds``, after a short warm-up.

        Raises:
            OSError: a request failed, or a byte read or written is not what it should be.
            UsageError: the file must not be written.
        """
        target = self._targets[operation]
        if target is None:
            raise UsageError("an existing file is only read, never written: give a directory to measure writes")
        if operation == "write" and self._renew is not None:
            self._renew()
        if operation == "read" and self._before_read is not None:
            self._before_read()
        pool = self._pool(config)
        tables, rings = self._layout(config, operation, target)
        policy = Policy(config.single_submit, config.overlap_events)
        if self._renew is None:
            self._run(pool, _Slice(tables, rings, policy, _WARM_SECONDS, self._clock), tables)
        measured = _Slice(tables, rings, policy, seconds, self._clock)
        self._poison(tables, operation)
        self._run(pool, measured, tables)
        fsync = self._sync(target) if operation == "write" else 0.0
        self._verify(measured, operation, config)
        return _sample(measured, operation, config, fsync)

    def close(self) -> None:
        """End the threads; harmless when repeated."""
        while self._pools:
            self._pools.popitem()[1].close()

    def _pool(self, config: AioConfig) -> Pool:
        """Threads with engines of the right depth, those used last kept."""
        key = config.thread_count, config.queue_depth
        if key not in self._pools:
            while self._pools and sum(map(math.prod, self._pools)) + math.prod(key) > _KEPT_REQUESTS:
                self._pools.popitem(last=False)[1].close()
            self._pools[key] = Pool(self.backend, config)
        self._pools.move_to_end(key)
        return self._pools[key]

    def _layout(
        self, config: AioConfig, operation: Operation, target: Target
    ) -> tuple[list[Requests], list[list[int] | None]]:
        """Each thread's part of the file, and its ring of memory if it has one."""
        block, write = config.block_size, operation == "write"
        part = self.size // config.thread_count // block * block
        if self.mode == "ring":
            share = config.queue_depth * block
            if self._arena.nbytes < share * config.thread_count:
                self._arena = fill_random(Buffer(share * config.thread_count, huge=self._huge))
        tables: list[Requests] = []
        rings: list[list[int] | None] = []
        for thread in range(config.thread_count):
            address = self._arena.address + thread * part if self.mode == "tensor" else 0
            tables.append(split(write, target.fd, address, part, thread * part, block))
            if self.mode == "ring":
                begin = self._arena.address + thread * share
                rings.append([begin + slot * block for slot in range(config.queue_depth)])
            else:
                rings.append(None)
        return tables, rings

    def _run(self, pool: Pool, measured: _Slice, tables: list[Requests]) -> None:
        for share, table in enumerate(tables):
            measured.watches[share].first = self._turn * 7919 % len(table)
            measured.watches[share].most = len(table) if self._renew is not None else None
        try:
            for share in range(len(tables)):
                pool.start(measured, share, share)
            measured.finished.wait()
        except BaseException:  # Ctrl-C: `close` waits for what is in flight
            measured.abandon()
            raise
        if measured.tables[0].write:
            self.bytes_written += sum(watch.bytes for watch in measured.watches)
        if measured.error is not None:
            raise measured.error

    def _poison(self, tables: list[Requests], operation: Operation) -> None:
        """Spoil the memory of the requests that are surely read first, so that stale bytes cannot pass the check."""
        self._turn += 1
        if operation == "write" or self.mode == "ring":
            return
        for table in tables:
            index = self._turn * 7919 % len(table)
            ctypes.memset(int(table.addresses[index]), 0xA5, int(table.lengths[index]))

    def _verify(self, measured: _Slice, operation: Operation, config: AioConfig) -> None:
        """Compare the first and a few other requests of each thread with the file, read again by other means."""
        share = max(_CHECKED // len(measured.tables), 1)
        for table, watch in zip(measured.tables, measured.watches, strict=True):
            # A ring's memory holds what was read into it last; in one large buffer each request has its own.
            held = list({address: index for index, address in watch.addresses.items()}.values())
            first = {watch.first % len(table)} & set(held)
            for index in first | set(held[:: max(len(held) // share, 1)]):
                self._compare(watch.addresses[index], int(table.offsets[index]), operation, config)

    def _compare(self, address: int, offset: int, operation: Operation, config: AioConfig) -> None:
        target = self._targets["read"] if operation == "read" else self._targets["write"]
        assert target is not None
        nbytes = min(config.block_size, self._check.nbytes)
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

    def _sync(self, target: Target) -> float:
        begun = self._clock()
        make_durable(target.fd)
        return self._clock() - begun


def fill_random(buffer: Buffer, seed: int = 0) -> Buffer:
    """Fill a buffer with bytes that nothing compresses or finds twice.

    Random bytes are made once for 8 MiB; each further 8 MiB are those, every word combined with a random key.
    """
    generator = np.random.Generator(np.random.SFC64(seed))
    words = buffer.bytes[: buffer.nbytes // 8 * 8].view(np.uint64)
    pattern = generator.integers(0, 1 << 64, min(len(words), _PATTERN), np.uint64)
    for at in range(0, len(words), _PATTERN):
        part = words[at : at + _PATTERN]
        np.bitwise_xor(pattern[: len(part)], generator.integers(0, 1 << 64, None, np.uint64), out=part)
    tail = buffer.bytes[len(words) * 8 :]
    tail[:] = generator.integers(0, 256, len(tail), np.uint8)
    return buffer


def _sample(measured: _Slice, operation: Operation, config: AioConfig, fsync: float) -> Sample:
    watches = measured.watches
    latencies = sorted(latency for watch in watches for latency in watch.latencies)
    return Sample(
        operation=operation,
        config=config,
        bytes=sum(watch.bytes for watch in watches),
        seconds=max(watch.ended_at for watch in watches) - min(watch.started_at for watch in watches),
        cpu_seconds=measured.cpu,
        fsync_seconds=fsync,
        p50=quantile(latencies, 0.50),
        p95=quantile(latencies, 0.95),
        p99=quantile(latencies, 0.99),
        longest=latencies[-1],
    )

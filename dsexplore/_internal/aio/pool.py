"""Threads that move one tensor together, each with its own engine."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends.base import Engine, split
from dsexplore._internal.aio.backends.choose import open_engine
from dsexplore._internal.aio.backends.threads import start_thread
from dsexplore._internal.aio.driver import DriveMonitor, Policy, drive, move_plainly
from dsexplore._internal.aio.staging import SlotPool, Stage, TransferBuffer
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.io_accesses import Access

_SPAN = 8192
"""Largest number of requests per table. To prepare a table takes some 0.4 ms, while the disk idles, and 512 KiB."""
_COMPARED = 16 << 20
"""Bytes that are compared at a time."""


class Latch:
    """An event that is set once and awaited by one thread; cheaper to create and await than threading's."""

    def __init__(self) -> None:
        self._is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Wake the waiting thread."""
        self._is_open = True
        self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        """Return True once it is open, or False after `seconds`. May be called again after Ctrl-C."""
        while not self._is_open:
            if not self._lock.acquire(timeout=seconds):
                break
        return self._is_open


class TransferJob:
    """One transfer between memory and a file, divided among threads.

    The direct part begins and ends on whole pages of the file. Its head and tail, less than a page each, go through the
    page cache, so that the file's length is never rounded.

    Example: 10,000 bytes at offset 100 on 2 threads: the head, 100 to 4095, through the page cache; 4096 to 8191
    directly by thread 0; the tail, 8192 to 10,099, through the page cache.

    Args:
        memory: the memory to fill or to write.
        target: the file, which the job closes at its end.
        offset: position in the file, in bytes.
        config: block size, and way to submit requests.
        shares: number of threads; each calls `run` once.
        validate: read the bytes again at the end, and compare them.
        watch: stops the transfer at a deadline, and records what was moved; None to measure nothing.
        rings: memory that the requests of each thread use in turn instead of `memory`; None to use `memory`.
        access: notified when the transfer has ended; None if no trace records it.
    """

    def __init__(
        self,
        memory: TransferBuffer,
        target: TransferFile,
        offset: int,
        config: AioConfig,
        shares: int,
        *,
        validate: bool = False,
        watch: DriveMonitor | None = None,
        rings: Sequence[SlotPool] | None = None,
        access: Access | None = None,
    ) -> None:
        self.memory = memory
        self.target = target
        self.offset = offset
        self.error: BaseException | None = None
        """First error, when the job has finished; None if it succeeded."""
        self.finished = Latch()
        self._config = config
        self._validate = validate
        self._watch = watch
        self._rings = rings
        self._access = access
        self._shares = shares
        self._running = shares
        self._guard = threading.Lock()
        step, end = target.boundary, offset + memory.nbytes
        self._low = min(-(-offset // step) * step, end)
        self._high = max(end // step * step, self._low)

    def part(self, share: int) -> range:
        """Return the bytes of the file that one thread moves directly."""
        step = self.target.boundary
        length = -(-(self._high - self._low) // (self._shares * step)) * step
        low = min(self._low + share * length, self._high)
        return range(low, min(low + length, self._high))

    def run(self, share: int, engine: Engine, stage: Stage) -> None:
        """Move one thread's share; the last thread also validates, closes the file and signals the end."""
        try:
            self._move(share, engine, stage)
        except BaseException as error:  # raised in the thread that waits for the job
            self._fail(error)
        with self._guard:
            self._running -= 1
            is_last = self._running == 0
        if is_last:
            self._finish()

    def _move(self, share: int, engine: Engine, stage: Stage) -> None:
        """Move one thread's share; the first thread moves the head too, the last one the tail."""
        part, span = self.part(share), _SPAN * self._config.block_size
        slots = stage if self._rings is None else self._rings[share]
        if share == 0:
            self._move_plainly(self.offset, self._low)
        for begin in range(part.start, part.stop, span):
            self._drive(begin, min(begin + span, part.stop), engine, slots)
        if share == self._shares - 1:
            self._move_plainly(self._high, self.offset + self.memory.nbytes)

    def _drive(self, begin: int, end: int, engine: Engine, slots: SlotPool) -> None:
        """Move the bytes from `begin` to `end` of the file directly."""
        target, memory, config = self.target, self.memory, self._config
        address = memory.address + begin - self.offset if memory.address else 0
        borrows = self._rings is not None or not address or address % target.alignment.memory != 0
        requests = split(
            target.fd,
            write=target.write,
            address=0 if borrows else address,
            nbytes=end - begin,
            offset=begin,
            block_size=config.block_size,
        )
        borrowed = slots.prepare(memory, self.offset, requests) if borrows else None
        policy = Policy(config.single_submit, config.overlap_events)
        drive(engine, requests, policy, target.plain_fd, borrowed, self._watch)

    def _move_plainly(self, begin: int, end: int) -> None:
        """Move the bytes from `begin` to `end` of the file through the page cache."""
        if begin == end:
            return
        target, memory = self.target, self.memory
        at, nbytes = begin - self.offset, end - begin
        if memory.address:
            move_plainly(target.write, target.plain_fd(), memory.address + at, nbytes, begin)
            return
        staging = (ctypes.c_char * nbytes)()
        address = ctypes.addressof(staging)
        if target.write:
            memory.copy_out(at, address, nbytes)
        move_plainly(target.write, target.plain_fd(), address, nbytes, begin)
        if not target.write:
            memory.copy_in(at, address, nbytes)

    def _finish(self) -> None:
        """Validate, close the file, and wake the thread that waits for the job."""
        try:
            if self._validate and self.error is None:
                self._compare()
        except BaseException as error:
            self._fail(error)
        finally:
            try:
                self.target.close()
            except OSError as error:
                self._fail(error)
            if self._access is not None:
                self._access.ends()
            self.finished.open()

    def _compare(self) -> None:
        """Read the range again by ordinary calls and compare it with the memory."""
        fd = self.target.open_for_reading()
        try:
            in_memory = (ctypes.c_char * min(_COMPARED, max(self.memory.nbytes, 1)))()
            in_file = (ctypes.c_char * len(in_memory))()
            for at in range(0, self.memory.nbytes, _COMPARED):
                nbytes = min(_COMPARED, self.memory.nbytes - at)
                self.memory.copy_out(at, ctypes.addressof(in_memory), nbytes)
                address = ctypes.addressof(in_file)
                move_plainly(write=False, fd=fd, address=address, nbytes=nbytes, offset=self.offset + at)
                if memoryview(in_memory)[:nbytes] != memoryview(in_file)[:nbytes]:
                    raise OSError(errno.EIO, f"bytes {at} to {at + nbytes} differ from the file when read again")
        finally:
            os.close(fd)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error."""
        with self._guard:
            if self.error is None:
                self.error = self._described(error)

    def _described(self, error: BaseException) -> BaseException:
        """Return an OSError with the transfer and the path in its text; any other error is returned unchanged."""
        if not isinstance(error, OSError) or error.errno is None:
            return error
        operation = "write" if self.target.write else "read"
        text = f"{operation} of {self.memory.nbytes} bytes at offset {self.offset}: {error.strerror}"
        described = type(error)(error.errno, text, self.target.path)
        described.__cause__ = error
        return described


_Inbox = SimpleQueue[tuple[TransferJob, int] | None]
"""(job, share) for a thread to run; None ends the thread."""


class Pool:
    """``config.thread_count`` threads, each with its own engine of depth ``config.queue_depth``.

    Raises:
        OSError: the system refuses a thread or an engine; those already started are ended.
    """

    def __init__(self, backend: str, config: AioConfig) -> None:
        self._owner = os.getpid()
        self._inboxes: list[_Inbox] = []
        self._threads: list[threading.Thread] = []
        compiled_loop.why_not()  # compiles flow.c once, before all threads need it
        answers: SimpleQueue[BaseException | None] = SimpleQueue()
        try:
            for number in range(config.thread_count):
                inbox: _Inbox = SimpleQueue()
                self._inboxes.append(inbox)
                self._threads.append(start_thread(f"dsexplore-aio-{number}", _work, backend, config, inbox, answers))
            failures = [answer for _ in self._threads if (answer := answers.get()) is not None]
            if failures:
                raise failures[0]
        except BaseException:  # also after Ctrl-C, no thread must be left waiting
            self.close()
            raise

    def start(self, job: TransferJob, share: int, thread: int) -> None:
        """Assign one share of a job to one thread."""
        self._inboxes[thread].put((job, share))

    def close(self) -> None:
        """Wait for the threads to finish their jobs, end them and close their engines; may be called repeatedly."""
        threads, self._threads = self._threads, []
        if self._owner != os.getpid():  # a fork leaves the threads with the parent
            return
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in threads:
            if thread is not threading.current_thread():  # the garbage collector may run this in any thread
                thread.join()


def _work(backend: str, config: AioConfig, inbox: _Inbox, answers: SimpleQueue[BaseException | None]) -> None:
    """Open an engine, put None or the error into `answers`, then run the shares of jobs from the inbox."""
    try:
        engine = open_engine(backend, config.queue_depth)
    except BaseException as error:
        answers.put(error)
        return
    answers.put(None)
    stage = Stage(config.queue_depth)
    try:
        while (task := inbox.get()) is not None:
            job, share = task
            job.run(share, engine, stage)
            del job, task  # do not keep the memory of a finished transfer until the next one
    finally:
        engine.close()

"""DeepSpeed's ``aio_handle``: the same methods and return values, with a right result or an error in every case.

Where DeepSpeed prints and returns −1, or aborts the process, an exception is raised. Where DeepSpeed reports success
although bytes are lost (a tail, an unaligned offset, a full disk, a size that its threads do not divide), every byte is
moved, or ``OSError`` is raised.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dsexplore._internal import io_accesses
from dsexplore._internal.aio.aio_config import NO_GDS, AioConfig, as_integer
from dsexplore._internal.aio.aio_constants import SECTOR
from dsexplore._internal.aio.backends.choose import choose
from dsexplore._internal.aio.buffers import free_locked_tensor, is_locked, new_locked_tensor
from dsexplore._internal.aio.pool import Pool, TransferJob
from dsexplore._internal.aio.staging import TransferBuffer, memory_of
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.tensor_memory import storage_of

if TYPE_CHECKING:
    import torch

File = str | bytes | os.PathLike[str] | int
"""A path, or an open descriptor."""

_LAST_POSITION = 2**63 - 1

_handles: weakref.WeakSet[aio_handle] = weakref.WeakSet()
"""All handles of this process, to reset them after a fork."""


class aio_handle:
    """Moves tensors to and from files with several requests in flight.

    Args:
        block_size: bytes per request, a multiple of 512.
        queue_depth: number of requests in flight per thread.
        single_submit: make one system call per request instead of one per batch.
        overlap_events: keep the queue full instead of waiting for each batch.
        intra_op_parallelism: number of threads that share one tensor.
        backend: ``"linux-aio"``, ``"io_uring"`` or ``"threads"``; None for the first that runs here.

    Raises:
        UsageError: an argument out of range, or a backend that cannot run here.
        OSError: the system has no room for a queue of that depth (EAGAIN).
    """

    @names_arguments
    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
        *,
        backend: str | None = None,
    ) -> None:
        self._config = AioConfig(block_size, queue_depth, intra_op_parallelism, single_submit, overlap_events)
        self._backend = choose(backend)
        self._closed = False
        self._reset()
        self._threads()
        _handles.add(self)

    @classmethod
    @names_arguments
    def from_config(cls, config: AioConfig, *, backend: str | None = None) -> Self:
        """Create a handle with the settings of an ``"aio"`` block; warn if it has ``use_gds``, which has no effect."""
        if config.use_gds:
            from dsexplore._internal.user_warnings import warn  # imports torch

            warn(NO_GDS)
        return cls(
            block_size=config.block_size,
            queue_depth=config.queue_depth,
            single_submit=config.single_submit,
            overlap_events=config.overlap_events,
            intra_op_parallelism=config.thread_count,
            backend=backend,
        )

    def _reset(self) -> None:
        """Forget threads and pending operations, which a forked child does not have."""
        self._guard = threading.RLock()
        self._pending: list[TransferJob] = []
        self._pool: Pool | None = None

    def _threads(self) -> Pool:
        """Return the threads; they are started on first use."""
        if self._closed:
            raise UsageError("this aio_handle is closed: make a new one")
        if self._pool is None:
            self._pool = Pool(self._backend, self._config)
            weakref.finalize(self, self._pool.close)
        return self._pool

    @property
    def backend(self) -> str:
        """Name of the engine that moves the bytes."""
        return self._backend

    def get_block_size(self) -> int:
        """Return the bytes per request."""
        return self._config.block_size

    def get_queue_depth(self) -> int:
        """Return the number of requests in flight per thread."""
        return self._config.queue_depth

    def get_single_submit(self) -> bool:
        """Return True if each request is a separate system call."""
        return self._config.single_submit

    def get_overlap_events(self) -> bool:
        """Return True if the queue is kept full."""
        return self._config.overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Return the number of threads that share one tensor."""
        return self._config.thread_count

    def get_alignment(self) -> int:
        """Return the bytes of which sizes are multiples in DeepSpeed, 512 per thread; here, any size works."""
        return self._config.thread_count * SECTOR

    @names_arguments
    def read(self, buffer: object, filename: File, validate: bool = False, file_offset: int = 0) -> int:
        """Fill `buffer` from the file with one thread; return 0 when done.

        Raises:
            OSError: the file cannot be read, or ends too early (ENODATA).
        """
        return self._alone(buffer, filename, file_offset, write=False, validate=validate)

    @names_arguments
    def write(self, buffer: object, filename: File, validate: bool = False, file_offset: int = 0) -> int:
        """Write `buffer` to the file with one thread; return 0 when done.

        Raises:
            OSError: the file cannot be written; ENOSPC when the disk is full.
        """
        return self._alone(buffer, filename, file_offset, write=True, validate=validate)

    def pread(
        self, buffer: object, filename: File, validate: bool = False, *args: Any, file_offset: int = 0, **named: Any
    ) -> int:
        """Fill `buffer` with all threads: ``pread(buffer, filename, validate, async, file_offset=0)``.

        ``async`` is a Python keyword: pass it by position, as ``**{"async": True}``, or as ``asynchronous``.

        Returns:
            0 if asynchronous, else the number of completed operations, including those pending before.
        """
        is_async, offset = _async_and_offset("pread", args, named, file_offset)
        return self._parallel(buffer, filename, offset, write=False, is_async=is_async, validate=validate)

    def pwrite(
        self, buffer: object, filename: File, validate: bool = False, *args: Any, file_offset: int = 0, **named: Any
    ) -> int:
        """Write `buffer` with all threads; parameters and return value are those of `pread`."""
        is_async, offset = _async_and_offset("pwrite", args, named, file_offset)
        return self._parallel(buffer, filename, offset, write=True, is_async=is_async, validate=validate)

    @names_arguments
    def sync_pread(self, buffer: object, filename: File, file_offset: int = 0) -> int:
        """Fill `buffer`; return the number of completed operations, including those pending before."""
        return self._parallel(buffer, filename, file_offset, write=False)

    @names_arguments
    def sync_pwrite(self, buffer: object, filename: File, file_offset: int = 0) -> int:
        """Write `buffer`; return the number of completed operations, including those pending before."""
        return self._parallel(buffer, filename, file_offset, write=True)

    @names_arguments
    def async_pread(self, buffer: object, filename: File, file_offset: int = 0) -> int:
        """Start to fill `buffer`, which the handle keeps alive, and return 0. Call `wait` before using the buffer."""
        return self._parallel(buffer, filename, file_offset, write=False, is_async=True)

    @names_arguments
    def async_pwrite(
        self, buffer: object, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """Start to write `buffer`, which the handle keeps alive, and return 0. Call `wait` before changing it.

        ``fd`` is DeepSpeed's other name for a ``filename`` that is a descriptor.
        """
        files = [file for file in (filename, fd) if file is not None]
        if len(files) != 1:
            raise TypeError("async_pwrite() takes either filename or fd: one of the two")
        return self._parallel(buffer, files[0], file_offset, write=True, is_async=True)

    def wait(self) -> int:
        """Wait for all pending operations; return how many completed.

        After Ctrl-C, the operations stay pending, a note names them, and this may be called again.

        Raises:
            OSError: an operation failed; the error has its errno, path and direction, and notes on other failed
                operations. No operation is in flight then.
            UsageError: no operation is pending.
        """
        with self._guard:
            if not self._pending:
                raise UsageError("wait() has nothing to wait for: call async_pread or async_pwrite before it")
            return self._wait()

    @names_arguments
    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """Return a page-locked tensor on huge pages, shape ``(num_elem,)``, with the dtype of `example_tensor`.

        Raises:
            OSError: ``RLIMIT_MEMLOCK`` does not allow it.
        """
        return new_locked_tensor(num_elem, example_tensor)

    @names_arguments
    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Unlock a tensor of `new_cpu_locked_tensor`; return False for any other tensor.

        A transfer in flight keeps the memory.
        """
        storage_of(tensor)
        return free_locked_tensor(tensor)

    @names_arguments
    def is_pinned(self, buffer: torch.Tensor) -> bool:
        """Return True if a tensor is page-locked, by torch or by any handle's `new_cpu_locked_tensor`."""
        if getattr(buffer, "is_cpu", None) is False:
            return False
        storage_of(buffer)
        return is_locked(buffer) or bool(buffer.is_pinned())

    def close(self) -> None:
        """Wait for pending operations, end the threads and release the queues. May be called repeatedly."""
        with self._guard:
            self._closed = True
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"aio_handle({self._config}, {self._backend})"

    def _parallel(
        self, buffer: object, file: File, offset: int, *, write: bool, is_async: bool = False, validate: bool = False
    ) -> int:
        """Start an operation with all threads; unless `is_async`, wait for it and those pending before."""
        with self._guard:
            threads = self._config.thread_count
            self._pending.append(self._begin(buffer, file, offset, write=write, validate=validate, threads=threads))
            return 0 if is_async else self._wait()

    def _alone(self, buffer: object, file: File, offset: int, *, write: bool, validate: bool) -> int:
        """Run an operation with one thread, and wait for it alone."""
        job = self._begin(buffer, file, offset, write=write, validate=validate, threads=1)
        try:
            _wait_for([job])
        except KeyboardInterrupt as interrupt:
            with self._guard:
                self._pending.append(job)  # keeps its buffer alive, and lets `wait` wait for it
            interrupt.add_note(_pending_note([job]))
            raise
        if job.error is not None:
            raise job.error
        return 0

    def _begin(
        self, buffer: object, file: File, offset: int, *, write: bool, validate: bool, threads: int
    ) -> TransferJob:
        """Check the arguments, open the file and start a job on some threads; the job closes the file."""
        begin = as_integer(offset)
        if begin is None or begin < 0:
            raise UsageError(f"file_offset {offset!r} is not a position in a file: give a whole number, at least 0")
        pool = self._threads()
        memory = memory_of(buffer, writable=not write)
        if begin + memory.nbytes > _LAST_POSITION:
            raise UsageError(
                f"file_offset {offset!r} with {memory.nbytes} bytes goes beyond 2**63 - 1, the last position in any "
                "file: give a smaller file_offset"
            )
        target = _opened(file, write)
        try:
            if not write:
                _check_length(target, memory, begin)
            access = io_accesses.begins("write" if write else "read", target.path, memory.nbytes)
            job = TransferJob(
                memory, target, begin, self._config, shares=threads, validate=bool(validate), access=access
            )
        except BaseException:
            target.close()
            raise
        for number in range(threads):
            pool.start(job, share=number, thread=number)
        return job

    def _wait(self) -> int:
        """Wait for all pending operations; see `wait`."""
        try:
            _wait_for(self._pending)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(_pending_note(self._pending))
            raise
        jobs = self._pending[:]
        self._pending.clear()
        failures = [job.error for job in jobs if job.error is not None]
        if not failures:
            return len(jobs)
        for other in failures[1:]:
            failures[0].add_note(f"another operation failed too: {other}")
        raise failures[0]


def _wait_for(jobs: Sequence[TransferJob]) -> None:
    """Wait until operations have finished, and report the wait to open traces."""
    access = io_accesses.begins("wait", jobs[0].target.path if len(jobs) == 1 else "")
    try:
        for job in jobs:
            job.finished.wait()
    finally:
        if access is not None:
            access.ends()


def _pending_note(jobs: list[TransferJob]) -> str:
    """Return the note of an interrupt that leaves operations in flight."""
    running = [job for job in jobs if not job.finished.wait(0)]
    if not running:
        return "All is done."
    listed = ", ".join(
        f"{'write' if job.target.write else 'read'} of {job.memory.nbytes:,} bytes, {job.target.path}"
        for job in running[:3]
    )
    more = f" and {len(running) - 3} more" if len(running) > 3 else ""
    return f"Still in flight: {listed}{more}. Call wait() before you use their buffers."


def _opened(file: File, write: bool) -> TransferFile:
    """Open a file in one direction; the text of an error has the direction."""
    operation = "write" if write else "read"
    try:
        return TransferFile(os.fsdecode(file) if isinstance(file, bytes) else file, write=write)
    except OSError as error:
        raise type(error)(error.errno, f"open for {operation}: {error.strerror}", error.filename or file) from error


def _check_length(target: TransferFile, memory: TransferBuffer, offset: int) -> None:
    """Raise OSError if a file is a directory, or ends before the last byte to read."""
    state = os.fstat(target.fd)
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, f"open for read: {os.strerror(errno.EISDIR)}", target.path)
    if memory.nbytes and offset + memory.nbytes > state.st_size and stat.S_ISREG(state.st_mode):
        text = f"read of {memory.nbytes} bytes at offset {offset}: the file holds {state.st_size} bytes"
        raise OSError(errno.ENODATA, text, target.path)


def _async_and_offset(name: str, args: tuple[Any, ...], named: dict[str, Any], offset: int) -> tuple[bool, int]:
    """Return the arguments ``async`` and ``file_offset`` of `pread` or `pwrite`, which can be passed by position."""
    further = list(args)
    is_async = further.pop(0) if further else None
    for key in ("async", "asynchronous"):
        if key in named:
            if is_async is not None:
                raise TypeError(f"{name}() got the argument 'async' twice")
            is_async = named.pop(key)
    if further:
        offset = further.pop(0)
    if further or named:
        unexpected = further or [*named]
        raise TypeError(f"{name}() takes buffer, filename, validate, async, file_offset; got also {unexpected}")
    return bool(is_async), offset


def _forget_after_fork() -> None:
    """Reset each handle in a forked child, which has no threads and queues; they are started on the next use."""
    for handle in _handles:
        handle._reset()


os.register_at_fork(after_in_child=_forget_after_fork)

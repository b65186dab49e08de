"""Prepare a sweep: check its arguments, examine the disk, and write the file that is measured."""

from __future__ import annotations

import math
import os
import platform
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dsexplore._internal.aio.aio_config import AioConfig, as_integer
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.backends.choose import loop_of
from dsexplore._internal.aio.buffers import Buffer, PinnedBuffer, fill_random
from dsexplore._internal.aio.disk import Disk, cached_share, data_share, disk_of, drop_cached, probed_rate
from dsexplore._internal.aio.pool import Pool, TransferJob
from dsexplore._internal.aio.staging import memory_of
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Conditions, Mode, Operation
from dsexplore._internal.aio.sweeps.scratch import Scratch
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.errors import UsageError
from dsexplore._internal.free_memory import free_memory
from dsexplore._internal.progress import State, TerminalLine, Work, seen_screen
from dsexplore._internal.units import format_bytes, format_rate, parse_size


class Progress(NamedTuple):
    """Progress of a sweep."""

    done: float
    """Fraction that is done, 0 to 1."""
    text: str
    """What is being done."""


Report = Callable[[Progress], None]
"""Called with the progress."""


@contextmanager
def reporting(wanted: bool | Report | None) -> Iterator[Report]:
    """Yield the function to call with the progress: the caller's, or one that draws a bar or nothing.

    Args:
        wanted: the caller's function; True for a bar; None for a bar if it is visible; False for nothing.
    """
    if callable(wanted):
        yield wanted
        return
    screen = None if wanted is False else seen_screen()
    with Work(State("sweeping", 0, 1, ""), TerminalLine if wanted and screen is None else screen) as work:
        yield lambda progress: work.reach(progress.done, progress.text)


WriteMode = Literal["overwrite", "fresh", "fallocated"]
"""``overwrite``: blocks that the file has already, as swap files are used; ``fresh``: a file that grows;
``fallocated``: space reserved before and never written."""

CONTROL = AioConfig()
"""The default setting, measured in every round; all ratios are relative to it."""
_LEAST_SIZE = CONTROL.bytes_in_flight
_SLICE = (0.02, 0.15)
"""Shortest and longest slice, in seconds."""
_SLICES_PER_SWEEP = 250
"""Number of slices into which a sweep's time is divided."""
_MOST_PROCESSES = 256
_FILE_SHARE = 0.04
"""Fraction of the time in which the file must be written. The requests in flight, at most a quarter of the file, then
take a hundredth of the time, so that the sweep can end in time."""
_TENSORS = (32 << 20, 512 << 20)
"""Default sizes of tensors in bytes; those that do not fit into the file are omitted."""


class Plan:
    """The checked arguments of `sweep`, which describes them."""

    def __init__(
        self,
        size: int | str,
        seconds: float | None,
        read_share: float,
        mode: str,
        write_mode: str,
        tensor: int | str | Sequence[int | str] | None,
        max_written: int | str | None,
        axes: dict[str, Sequence[Any]],
        processes: int = 1,
        memory: str = "ordinary",
    ) -> None:
        self.size = checked_size(size)
        if self.size < _LEAST_SIZE:
            raise UsageError(f"size {format_bytes(self.size)} is too small: at least {format_bytes(_LEAST_SIZE)}")
        if seconds is not None and not is_duration(seconds):
            raise UsageError(f"seconds {seconds!r} is not a time to spend: give a number above 0, or None for the grid")
        if not (isinstance(read_share, (int, float)) and 0 <= read_share <= 1):
            raise UsageError(
                f"read_share {read_share!r} is not a share: give a number from 0 (only writes) to 1 (only reads)"
            )
        if mode not in ("tensor", "ring"):
            raise UsageError(f"mode {mode!r} is unknown: 'tensor' (as DeepSpeed) or 'ring' (as fio)")
        if write_mode not in ("overwrite", "fresh", "fallocated"):
            raise UsageError(f"write_mode {write_mode!r} is unknown: 'overwrite', 'fresh' or 'fallocated'")
        if memory not in ("ordinary", "huge"):
            raise UsageError(f"memory {memory!r} is unknown: 'ordinary' pages or 'huge' ones")
        self.memory = memory
        self.seconds, self.read_share, self.axes = seconds, read_share, search.checked_axes(axes)
        self.mode: Mode = "ring" if mode == "ring" else "tensor"
        self.write_mode = write_mode
        self.transfers = (self.size,) if mode == "ring" else self._tensors(tensor)
        count = as_integer(processes)
        if count is None or not 1 <= count <= _MOST_PROCESSES:
            raise UsageError(f"processes {processes!r} is not a number of processes: give 1 to {_MOST_PROCESSES}")
        self.processes = count
        self.left_out = ""
        """A sentence on what is omitted because the disk is slow; empty if nothing is."""
        self.is_fitted = seconds is None or mode == "ring"
        """True if the size of the file does not depend on the disk's rate any more."""
        self.most_written = None if max_written is None else checked_size(max_written)
        self.slice = _slice(seconds, len(self.transfers))

    def fit(self, rate: float) -> None:
        """Use a smaller file if the disk, at `rate` bytes per second, would take too long to write this one."""
        if self.is_fitted or self.seconds is None:
            return
        self.is_fitted = True
        most = max(int(rate * self.seconds * _FILE_SHARE) >> 22 << 22, _LEAST_SIZE)  # whole multiples of 4 MiB
        in_flight = min(config.bytes_in_flight for config in search.grid(self.axes, lambda _: True))
        if in_flight > _LEAST_SIZE:
            most = max(most, 4 * in_flight)  # for the setting of the axes that needs the smallest file
        if most >= self.size:
            return
        asked = self.size
        dropped = [size for size in self.transfers if size > most]
        self.size = most
        self.transfers = tuple(size for size in self.transfers if size <= most) or (most,)
        self.slice = _slice(self.seconds, len(self.transfers))
        tensors = f", and no tensors of {', '.join(map(format_bytes, dropped))}" if dropped else ""
        self.left_out = (
            f"At {format_rate(rate)}, {self.seconds:g} s allow a file of {format_bytes(most)} instead of "
            f"{format_bytes(asked)}{tensors}: give more seconds for those."
        )

    def _tensors(self, tensor: int | str | Sequence[int | str] | None) -> tuple[int, ...]:
        """Return the sizes of tensors to move in bytes, the smallest first."""
        if tensor is None:
            return tuple(sorted({min(size, self.size) for size in _TENSORS}))
        sizes = [checked_size(size) for size in ([tensor] if isinstance(tensor, (int, str)) else tensor)]
        for size in sizes or [0]:
            if not PAGE <= size <= self.size:
                raise UsageError(
                    f"tensor {format_bytes(size)} does not fit: give sizes from {PAGE} bytes to the size of the file, "
                    f"{format_bytes(self.size)}"
                )
        return tuple(sorted(set(sizes)))

    def settings(self, size: int) -> list[AioConfig]:
        """Return every setting of the axes that fits `size` bytes of a file; raise UsageError if none does."""
        settings = search.grid(self.axes, lambda _: True)
        fitting = [config for config in settings if search.fills_queues(config, size)]
        if not fitting:
            least = min(settings, key=lambda config: config.bytes_in_flight)
            raise UsageError(
                f"no setting of these axes fits a size of {format_bytes(size)}: the smallest, {least}, has "
                f"{format_bytes(least.bytes_in_flight)} in flight, and block_size × queue_depth × thread_count may be "
                "a quarter of the size; give smaller values, or a larger size"
            )
        return fitting

    def bytes_of_files(self) -> int:
        """Return the bytes that the files of all processes take on the disk."""
        return self.size * self.processes * (1 if self.write_mode == "overwrite" else 2)

    def of_processes(self) -> str:
        """Return ``" by each of 4 processes"`` for error messages; empty for a single process."""
        return f" by each of {self.processes} processes" if self.processes > 1 else ""

    def writes(self, is_scratch: bool) -> bool:
        """Return True if comparing settings writes; `is_scratch` is True if the sweep has created its file."""
        return is_scratch and self.read_share < 1

    def check_budget(self) -> None:
        """Raise UsageError if a single round writes more than `max_written`."""
        least = self.processes * (self.size + 2 * _LEAST_SIZE if self.writes(is_scratch=True) else self.size)
        if self.most_written is not None and self.most_written < least:
            raise UsageError(
                f"max_written {format_bytes(self.most_written)} is too small: the file of {format_bytes(self.size)} is "
                f"written once{self.of_processes()}, so give at least {format_bytes(least)}, a smaller size, or an "
                "existing file to read"
            )


def _slice(seconds: float | None, sizes: int) -> float:
    """Return the seconds of a slice if there are `sizes` sizes of tensors."""
    budget = 60.0 if seconds is None else seconds
    return min(max(budget / _SLICES_PER_SWEEP, _SLICE[0]), _SLICE[1]) / sizes


def is_duration(seconds: object) -> bool:
    """Return True for a positive, finite number of seconds."""
    return isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds > 0


def checked_size(size: int | str) -> int:
    """Return a size, a number or text such as ``"1GiB"``, in bytes; raise UsageError if it is invalid."""
    try:
        return parse_size(size)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _scratch(stack: ExitStack, folder: str, plan: Plan) -> Scratch:
    """Check memory and the limit of bytes to write, then create the sweep's file."""
    _check_memory(plan)
    plan.check_budget()
    return stack.enter_context(Scratch(folder, plan.bytes_of_files()))


class Setup:
    """The file, the disk and the bench of one sweep.

    Args:
        stack: closes all of them.
        path: a directory, or an existing file.
        plan: arguments of the sweep.
        engine: name of the engine.
        direct: use direct I/O if the disk has it.
        seed: seed of the data.
        report: called with the progress.
    """

    def __init__(
        self, stack: ExitStack, path: str, plan: Plan, engine: str, direct: bool, seed: int, report: Report
    ) -> None:
        self.plan, self.engine, self.bytes_written = plan, engine, 0
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        scratch = _scratch(stack, path, plan) if Path(path).is_dir() else None
        is_scratch = scratch is not None
        self.path = os.path.realpath(path) if scratch is None else scratch.path
        if scratch is not None and not plan.is_fitted:
            plan.fit(probed_rate(scratch.fd, plan.size) / plan.processes)
        self.size = plan.size if is_scratch else _usable_size(self.path, plan.size)
        self.settings = plan.settings(self.size)
        self.transfers = tuple(sorted({min(transfer, self.size) for transfer in plan.transfers}))
        if scratch is not None:
            times = f"{plan.processes} × " if plan.processes > 1 else ""
            report(Progress(0.0, f"writing {times}{format_bytes(self.size)} of random data{self._announced()}"))
            self._fill(scratch.fd, seed)
        self.disk: Disk = replace(disk_of(self.path, direct=direct), path=path)
        direct = direct and self.disk.direct
        self.source = TransferFile(self.path, write=False, direct=direct)
        stack.callback(self.source.close)
        self.written: TransferFile | None = None
        self.renew: Callable[[], None] | None = None
        if is_scratch:
            self.written, self.renew = self._write_side(stack, path, direct)
        self.operations = _operations(plan.read_share, is_scratch)
        self.data_share = 1.0 if is_scratch else data_share(self.source.fd)
        drop_cached(self.source.fd)
        self.cached = cached_share(self.source.fd)
        self._seed = seed
        self.bench = self.new_bench(plan.memory)
        stack.callback(self.bench.close)

    def new_bench(self, memory: str) -> Bench:
        """Return a bench on ``ordinary``, ``huge`` or ``pinned`` memory; the caller closes it."""
        source = self.source
        bench = Bench(
            self.engine,
            source,
            self.size,
            mode=self.plan.mode,
            write_target=self.written,
            renew=self.renew,
            prepare_read=None if source.direct else (lambda: _drop(source)),
            huge=memory == "huge",
            memory=PinnedBuffer(self.size) if memory == "pinned" else None,
            turn=self._seed,
        )
        if self.plan.mode == "tensor":
            fill_random(bench.buffer, self._seed)
        return bench

    def _announced(self) -> str:
        """Return how much will be written, as the end of a sentence."""
        if not self.plan.writes(is_scratch=True):
            return ""
        limit = self.plan.most_written
        return f", then over it {'without limit' if limit is None else f'up to {format_bytes(limit)} in all'}"

    def _fill(self, fd: int, seed: int) -> None:
        """Write random data once over the whole file, so that reads find blocks and writes overwrite them."""
        chunk = fill_random(Buffer(min(self.size, 64 << 20)), seed)
        pool = Pool(self.engine, CONTROL)
        try:
            for at in range(0, self.size, chunk.nbytes):
                part = chunk.bytes[: min(chunk.nbytes, self.size - at)]
                memory, target = memory_of(part, writable=False), TransferFile(self.path, write=True)
                job = TransferJob(memory, target, offset=at, config=CONTROL, shares=1)
                pool.start(job, share=0, thread=0)
                job.finished.wait()
                if job.error is not None:
                    raise job.error
        finally:
            pool.close()
        self.bytes_written += self.size
        os.fsync(fd)

    def _write_side(
        self, stack: ExitStack, directory: str, direct: bool
    ) -> tuple[TransferFile, Callable[[], None] | None]:
        """Return the file to write to, and a function that empties it before each slice; None to overwrite it."""
        if self.plan.write_mode == "overwrite":
            target = TransferFile(self.path, write=True, direct=direct)
            stack.callback(target.close)
            return target, None
        scratch = stack.enter_context(Scratch(directory, self.size))
        target = TransferFile(scratch.path, write=True, direct=direct)
        stack.callback(target.close)

        def renew() -> None:
            os.ftruncate(scratch.fd, 0)
            if self.plan.write_mode == "fallocated":
                os.posix_fallocate(scratch.fd, 0, self.size)

        return target, renew

    def conditions(self, unavailable: dict[str, str]) -> Conditions:
        """Return the conditions of this sweep; `unavailable` is {engine or program: why it cannot run}."""
        return Conditions(
            backend=self.engine,
            unavailable=unavailable,
            mode=self.plan.mode,
            write_mode=self.plan.write_mode if "write" in self.operations else "none",
            size=self.size,
            read_share=self.plan.read_share,
            seconds=self.plan.seconds,
            slice_seconds=self.plan.slice,
            huge_share=self.bench.buffer.huge_share() if self.plan.mode == "tensor" else None,
            cached_share=self.cached,
            system=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {os.cpu_count()} processors",
            started=self.started,
            transfers=self.transfers,
            data_share=self.data_share,
            most_written=self.plan.most_written,
            processes=self.plan.processes,
            loop=loop_of(self.engine),
            left_out=self.plan.left_out,
            memory=self.plan.memory,
        )


def _drop(source: TransferFile) -> None:
    drop_cached(source.fd)


def _operations(read_share: float, writable: bool) -> list[Operation]:
    """Return the directions to measure; a file that is not writable is only read."""
    operations: list[Operation] = []
    if read_share > 0 or not writable:
        operations.append("read")
    if read_share < 1 and writable:
        operations.append("write")
    return operations


def _usable_size(path: str, wanted: int) -> int:
    """Return the bytes of an existing file to read, at most `wanted`; raise UsageError if it is too small."""
    state = os.stat(path)  # noqa: PTH116 - raises FileNotFoundError with the path
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(f"{path} is neither a directory nor a file of data: give a directory on the disk to measure")
    size = state.st_size
    usable = min(size, wanted) // PAGE * PAGE
    if usable < _LEAST_SIZE:
        raise UsageError(
            f"{path} holds {format_bytes(size)}: reading it measures nothing below {format_bytes(_LEAST_SIZE)}; "
            "give a larger file, or a directory"
        )
    return usable


def _check_memory(plan: Plan) -> None:
    """Raise UsageError if the tensors of all processes take more than half of the free memory."""
    free = free_memory()
    if plan.mode == "tensor" and free is not None and plan.size * plan.processes > free // 2:
        raise UsageError(
            f"size {format_bytes(plan.size)} as one tensor{plan.of_processes()} is more than half of the "
            f"{format_bytes(free)} of free memory: give a smaller size, or mode='ring'"
        )

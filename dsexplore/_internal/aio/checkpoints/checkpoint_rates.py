"""Measure how fast checkpoints are saved to a disk and loaded again, by each method; the rates hold for any model."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dsexplore._internal.aio.aio_config import as_integer
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.checkpoints.checkpoint_files import find_checkpoint
from dsexplore._internal.aio.checkpoints.direct_files import save_file
from dsexplore._internal.aio.checkpoints.loaders import DIRECT as DIRECT_LOADER
from dsexplore._internal.aio.checkpoints.loaders import Tensors, loaders_of
from dsexplore._internal.aio.checkpoints.loading import Clock, drop_files, load_once
from dsexplore._internal.aio.disk import Disk, disk_of
from dsexplore._internal.aio.sweeps.scratch import Scratch, check_space
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.aio.transfer_file import make_durable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes, format_rate, parse_size

TORCH_SAVE, DCP, ASYNCHRONOUS, DIRECT = "torch.save", "DCP", "DCP, asynchronous", "direct writes"
METHODS = (TORCH_SAVE, DCP, ASYNCHRONOUS, DIRECT)
_MIN_BYTES = 4 << 20
TENSORS = 16
"""Number of tensors in the large checkpoint, and in the first of two checkpoints of small tensors."""
_MANY_TENSORS = 256
"""Number of tensors in the second checkpoint of small tensors; the two show how long each tensor takes."""
_SMALL_NUMEL = 1024
"""Number of elements of a small tensor, whose bytes take hardly any time."""


class SaveTime(NamedTuple):
    """Seconds of one checkpoint, saved and loaded again from a cold disk."""

    stall: float
    """Seconds until the call returned: a step waits for these."""
    durable: float
    """Seconds until every byte was on the disk, with fsync."""
    load: float
    """Seconds to load it."""


_NO_TIME = SaveTime(stall=0.0, durable=0.0, load=0.0)


@dataclass(frozen=True)
class MethodRates:
    """Measured checkpoints by one method, each of `nbytes` bytes in `tensors` tensors.

    A checkpoint takes time for itself (planning, files, metadata, fsync), for each tensor (headers, pickling), and for
    each byte. Example: 0.02 s, 0.25 ms per tensor and 1 s for 1 GB in 16 tensors are 0.976 ns per byte. So 2 GB in
    1,000 tensors take 0.02 + 0.25 + 1.952 = 2.222 s.
    """

    name: str
    """Name of the method, from `METHODS`."""
    nbytes: int
    """Bytes of each measured checkpoint."""
    times: tuple[SaveTime, ...]
    """Times of each measured checkpoint."""
    tensors: int = TENSORS
    """Number of tensors in each measured checkpoint."""
    fixed: SaveTime = _NO_TIME
    """Seconds that a checkpoint takes without tensors."""
    per_tensor: SaveTime = _NO_TIME
    """Seconds that a tensor takes besides its bytes."""

    def seconds(self, nbytes: float, tensors: float = TENSORS) -> SaveTime:
        """Return the expected seconds of a checkpoint with this number of bytes and tensors, by one process."""
        overhead, per_byte = self.overhead(tensors), self._seconds_per_byte()
        return SaveTime(*(fixed + nbytes * rate for fixed, rate in zip(overhead, per_byte, strict=True)))

    def overhead(self, tensors: float) -> SaveTime:
        """Return the seconds that a checkpoint with this number of tensors takes besides its bytes."""
        return SaveTime(
            *(fixed + tensors * one_tensor for fixed, one_tensor in zip(self.fixed, self.per_tensor, strict=True))
        )

    @property
    def write_rate(self) -> float:
        """Bytes per second of one process until every byte is on the disk, without the overhead."""
        return 1 / self._seconds_per_byte().durable

    @property
    def read_rate(self) -> float:
        """Bytes per second of one process that loads from a cold disk, without the overhead."""
        return 1 / self._seconds_per_byte().load

    def _seconds_per_byte(self) -> SaveTime:
        """Return the seconds per byte, without the overhead.

        If the overhead is not less than the measured time, the checkpoint is too small to tell them apart, and all of
        the time is that of bytes.
        """
        rates = []
        for measured, overhead in zip(zip(*self.times, strict=True), self.overhead(self.tensors), strict=True):
            seconds = median(measured)
            if overhead < seconds:
                seconds -= overhead
            rates.append(seconds / self.nbytes)
        return SaveTime(*rates)


@dataclass(frozen=True)
class CheckpointRates:
    """Rates of a disk by method; made by ``dsexplore.aio.checkpoint_rates(...)``."""

    disk: Disk
    """Disk that was measured."""
    methods: tuple[MethodRates, ...]
    """Rates of each method."""
    notes: tuple[str, ...] = ()
    """Sentences on methods that were not measured."""

    def __repr__(self) -> str:
        rates = ", ".join(f"{method.name} {format_rate(method.write_rate)}" for method in self.methods)
        return f"<CheckpointRates of {self.disk.label}, saving: {rates}>"

    def __getitem__(self, name: str) -> MethodRates:
        """Return the rates of a method.

        Raises:
            UsageError: the method was not measured.
        """
        for method in self.methods:
            if method.name == name:
                return method
        names = ", ".join(method.name for method in self.methods)
        raise UsageError(f"method {name!r} was not measured: there is {names}")

    @property
    def write_limit(self) -> float:
        """Bytes per second that several processes can write together: the rate of the fastest method."""
        return max(method.write_rate for method in self.methods)

    @property
    def read_limit(self) -> float:
        """Bytes per second that several processes can read together: the rate of the fastest method."""
        return max(method.read_rate for method in self.methods)


@names_arguments
def checkpoint_rates(folder: str | os.PathLike[str], size: int | str = "512MiB", *, rounds: int = 3) -> CheckpointRates:
    """Measure how fast checkpoints are saved to a disk and loaded again, by each method.

    The methods are ``torch.save``, ``torch.distributed.checkpoint.save`` and ``async_save``, and
    `dsexplore.aio.save_file`, which writes with direct I/O. Each checkpoint is written with fsync, loaded again from a
    cold disk, and removed.

    Args:
        folder: folder to write to, on the disk to measure.
        size: bytes of each checkpoint. Choose a size like yours, since a disk with a cache is faster on small ones.
        rounds: number of checkpoints by each method, besides a first one that is not counted; medians are taken.

    Raises:
        UsageError: a size below 4 MiB, or an invalid number of rounds.
        OSError: the folder cannot be written, or has no room.
    """
    import torch

    times, nbytes = as_integer(rounds), parse_size(size)
    if times is None or times < 1:
        raise UsageError(f"rounds {rounds!r} is not a number of checkpoints: give a whole number, at least 1")
    if nbytes < _MIN_BYTES:
        raise UsageError(f"size {size} is too small to measure a disk with: give {format_bytes(_MIN_BYTES)} or more")
    check_space(os.fspath(folder), nbytes)
    numel = nbytes // TENSORS // 4
    state = {f"weight{number}": torch.randn(numel) for number in range(TENSORS)}
    return measure_rates(folder, state, times, time.perf_counter)


def measure_rates(
    folder: str | os.PathLike[str], state: Tensors, rounds: int, clock: Clock, methods: Sequence[str] = METHODS
) -> CheckpointRates:
    """Measure checkpoints by each method in turn: of a state dict, and of two with small tensors.

    The first checkpoint by each method is not counted, since it imports modules and allocates memory.

    Args:
        folder: folder to write to.
        state: the state dict.
        rounds: number of checkpoints by each method.
        clock: returns seconds.
        methods: names of the methods, from `METHODS`.
    """
    nbytes = sum(tensor.nbytes for tensor in state.values())
    usable = [name for name in methods if why_no_method(name) is None]
    states = {"large": state, "few": _small_tensors(TENSORS), "many": _small_tensors(_MANY_TENSORS)}
    times: dict[str, dict[str, list[SaveTime]]] = {name: {key: [] for key in states} for name in usable}
    with track("saving checkpoints", (rounds + 1) * len(usable), "checkpoints") as work:
        for number in range(rounds + 1):
            turn = number % len(usable)
            for name in (*usable[turn:], *usable[:turn]):
                for key, saved in states.items():
                    with TemporaryDirectory(prefix=".dsexplore-checkpoint-", dir=folder) as temporary:
                        save_time = save_and_load(name, saved, Path(temporary), clock)
                    if number > 0:
                        times[name][key].append(save_time)
                work.advance(1, name)
    with Scratch(folder, 0) as file:  # `disk_of` needs a file with data
        os.pwrite(file.fd, bytes(PAGE), 0)
        disk = disk_of(file.path)
    notes = tuple(f"{name} is not measured: {reason}." for name in methods if (reason := why_no_method(name)))
    rates = []
    for name, save_times in times.items():
        fixed, per_tensor = overhead_of(save_times["few"], save_times["many"])
        large = tuple(save_times["large"])
        rates.append(MethodRates(name, nbytes, large, tensors=len(state), fixed=fixed, per_tensor=per_tensor))
    return CheckpointRates(disk, tuple(rates), notes)


def _small_tensors(count: int) -> Tensors:
    import torch

    return {f"weight{number}": torch.ones(_SMALL_NUMEL) for number in range(count)}


def overhead_of(few: Sequence[SaveTime], many: Sequence[SaveTime]) -> tuple[SaveTime, SaveTime]:
    """Return the seconds of a checkpoint without tensors, and of each tensor: a line through two medians.

    Args:
        few: times of checkpoints with `TENSORS` small tensors.
        many: times of checkpoints with `_MANY_TENSORS` small tensors.
    """
    fixed, per_tensor = [], []
    for few_times, many_times in zip(zip(*few, strict=True), zip(*many, strict=True), strict=True):
        seconds = max((median(many_times) - median(few_times)) / (_MANY_TENSORS - TENSORS), 0.0)
        per_tensor.append(seconds)
        fixed.append(max(median(few_times) - TENSORS * seconds, 0.0))
    return SaveTime(*fixed), SaveTime(*per_tensor)


def why_no_method(name: str) -> str | None:
    """Return why a method cannot be measured by one process of this torch; None if it can."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    if name == ASYNCHRONOUS and "no_dist" not in signature(async_save).parameters:
        return "this torch's async_save needs a process group"
    return None


def save_and_load(name: str, state: Tensors, folder: Path, clock: Clock) -> SaveTime:
    """Save a state dict by one method, wait until it is on the disk, and load it from there."""
    path = folder / "checkpoint"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as intended: one process is measured
        begun = clock()
        wait = _SAVES[name](state, path)
        returned = clock()
        wait()
        ended = clock()
    checkpoint = find_checkpoint(path)
    targets = {key: tensor.clone() for key, tensor in state.items()}
    drop_files(checkpoint)
    loaders = {loader.name: loader for loader in loaders_of(checkpoint)}
    loader = loaders[DIRECT_LOADER] if name == DIRECT else next(iter(loaders.values()))
    load = load_once(loader, checkpoint, targets, clock).seconds
    stall = returned - begun if name == ASYNCHRONOUS else ended - begun
    return SaveTime(stall, ended - begun, load)


def _no_wait() -> None:
    """Return at once: the save has returned when every byte was on the disk."""


def _torch_save(state: Tensors, path: Path) -> Callable[[], None]:
    import torch

    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        make_durable(file.fileno())
    return _no_wait


def _dcp_save(state: Tensors, path: Path) -> Callable[[], None]:
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(state), checkpoint_id=path, no_dist=True)  # its writer calls fsync
    return _no_wait


def _dcp_async_save(state: Tensors, path: Path) -> Callable[[], None]:
    """Start to save with ``async_save``; return a function that waits until every byte is on the disk."""
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

    saving = async_save(dict(state), checkpoint_id=path, no_dist=True)
    upload = saving.upload_completion if isinstance(saving, AsyncSaveResponse) else saving

    def wait() -> None:
        upload.result()

    return wait


def _direct_save(state: Tensors, path: Path) -> Callable[[], None]:
    save_file(state, path)
    return _no_wait


_SAVES: dict[str, Callable[[Tensors, Path], Callable[[], None]]] = {
    TORCH_SAVE: _torch_save,
    DCP: _dcp_save,
    ASYNCHRONOUS: _dcp_async_save,
    DIRECT: _direct_save,
}
"""{method: function that saves a state dict, and returns a function that waits until every byte is on the disk}."""

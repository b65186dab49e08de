"""How fast a disk takes and gives checkpoints by the ways that people save them: measured once, used for any model."""

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
_LEAST = 4 << 20
TENSORS = 16
"""Number of tensors that a measured checkpoint has."""
_MANY = 256
"""Number of tensors of the checkpoint that shows, beside one of `TENSORS`, what each further tensor takes."""
_SMALL = 1024
"""Elements of a tensor of these two: its bytes take next to nothing."""


class SaveTime(NamedTuple):
    """Seconds of one checkpoint, saved and loaded again from a cold disk."""

    stall: float
    """Until the call returned: what a step waits for."""
    durable: float
    """Until every byte is on the disk, with fsync."""
    load: float


_NO_TIME = SaveTime(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class MethodRates:
    """Measured checkpoints by one method, each of `nbytes` bytes in `tensors` tensors.

    A checkpoint takes time for itself (planning, files, metadata, fsync), for each tensor (headers, pickling), and for
    each byte. Example: 0.02 s, 0.25 ms a tensor and 1 s for 1 GB in 16 tensors: 0.976 ns a byte, so that 2 GB in 1,000
    tensors take 0.02 + 0.25 + 1.952 = 2.222 s.
    """

    name: str
    nbytes: int
    times: tuple[SaveTime, ...]
    tensors: int = TENSORS
    fixed: SaveTime = _NO_TIME
    """Seconds that a checkpoint takes without tensors."""
    per_tensor: SaveTime = _NO_TIME
    """Seconds that a tensor takes besides its bytes."""

    def seconds(self, nbytes: float, tensors: float = TENSORS) -> SaveTime:
        """Return the expected seconds of a checkpoint of so many bytes and tensors by one process."""
        overhead, of_bytes = self.overhead(tensors), self._seconds_of_bytes()
        return SaveTime(*(more + nbytes * per_byte for more, per_byte in zip(overhead, of_bytes, strict=True)))

    def overhead(self, tensors: float) -> SaveTime:
        """Return the seconds that a checkpoint of so many tensors takes besides its bytes."""
        return SaveTime(
            *(base + tensors * per_tensor for base, per_tensor in zip(self.fixed, self.per_tensor, strict=True))
        )

    @property
    def write_rate(self) -> float:
        """Bytes per second of one process until every byte is on the disk, overhead not counted."""
        return 1 / self._seconds_of_bytes().durable

    @property
    def read_rate(self) -> float:
        """Bytes per second of one process that loads from a cold disk, overhead not counted."""
        return 1 / self._seconds_of_bytes().load

    def _seconds_of_bytes(self) -> SaveTime:
        """Return the seconds per byte: what was measured without the overhead.

        Where the overhead is no less than all, the checkpoint is too small to tell them apart, and bytes take all.
        """
        medians = [median(column) for column in zip(*self.times, strict=True)]
        pairs = zip(medians, self.overhead(self.tensors), strict=True)
        return SaveTime(*((took - more if more < took else took) / self.nbytes for took, more in pairs))


@dataclass(frozen=True)
class CheckpointRates:
    """Rates of a disk by method; made by ``dsexplore.aio.checkpoint_rates(...)``."""

    disk: Disk
    methods: tuple[MethodRates, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rates = ", ".join(f"{method.name} {format_rate(method.write_rate)}" for method in self.methods)
        return f"<CheckpointRates of {self.disk.label}, saving: {rates}>"

    def __getitem__(self, name: str) -> MethodRates:
        """Return the rates of a method.

        Raises:
            UsageError: it was not measured.
        """
        for method in self.methods:
            if method.name == name:
                return method
        names = ", ".join(method.name for method in self.methods)
        raise UsageError(f"method {name!r} was not measured: there is {names}")

    @property
    def write_limit(self) -> float:
        """Bytes per second that several processes can write together: no method measured was faster."""
        return max(method.write_rate for method in self.methods)

    @property
    def read_limit(self) -> float:
        """Bytes per second that several processes can read together: no method measured was faster."""
        return max(method.read_rate for method in self.methods)


@names_arguments
def checkpoint_rates(folder: str | os.PathLike[str], size: int | str = "512MiB", *, rounds: int = 3) -> CheckpointRates:
    """Measure how fast a disk takes and gives checkpoints, by each way to save them.

    Measured are ``torch.save``, ``torch.distributed.checkpoint.save`` and ``async_save``, and
    `dsexplore.aio.save_file`, which writes with direct I/O; each with fsync, and loaded again from a cold disk. The
    files are removed.

    Args:
        folder: where to write; the disk that is measured.
        size: bytes of each checkpoint. A disk with a cache is faster on small ones: take a size like yours.
        rounds: checkpoints by each method, in turn, besides a first one that does not count; medians count.

    Raises:
        UsageError: a size below 4 MiB, or no number of rounds.
        OSError: the folder cannot be written, or has no room.
    """
    import torch

    times, nbytes = as_integer(rounds), parse_size(size)
    if times is None or times < 1:
        raise UsageError(f"rounds {rounds!r} is not a number of checkpoints: give a whole number, at least 1")
    if nbytes < _LEAST:
        raise UsageError(f"size {size} is too small to measure a disk with: give {format_bytes(_LEAST)} or more")
    check_space(os.fspath(folder), nbytes)
    numel = nbytes // TENSORS // 4
    state = {f"weight{number}": torch.randn(numel) for number in range(TENSORS)}
    return measure_rates(folder, state, times, time.perf_counter)


def measure_rates(
    folder: str | os.PathLike[str], state: Tensors, rounds: int, clock: Clock, methods: Sequence[str] = METHODS
) -> CheckpointRates:
    """Save and load a state dict by each method in turn, and two of small tensors; `clock` returns seconds.

    The first checkpoint by each method is not counted: it imports what the method needs, and takes memory anew.
    """
    import torch

    nbytes = sum(tensor.nbytes for tensor in state.values())
    usable = [name for name in methods if why_no_method(name) is None]
    small = {count: {f"weight{at}": torch.ones(_SMALL) for at in range(count)} for count in (TENSORS, _MANY)}
    states = {0: state, **small}
    times: dict[str, dict[int, list[SaveTime]]] = {name: {key: [] for key in states} for name in usable}
    with track("saving checkpoints", (rounds + 1) * len(usable), "checkpoints") as work:
        for number in range(rounds + 1):
            turn = number % len(usable)
            for name in (*usable[turn:], *usable[:turn]):
                for key, saved in states.items():
                    with TemporaryDirectory(prefix=".dsexplore-checkpoint-", dir=folder) as made:
                        time = save_and_load(name, saved, Path(made), clock)
                    if number > 0:
                        times[name][key].append(time)
                work.advance(1, name)
    with Scratch(folder, 0) as file:  # a disk is known by a file on it
        os.pwrite(file.fd, bytes(PAGE), 0)
        disk = disk_of(file.path)
    notes = tuple(f"{name} is not measured: {reason}." for name in methods if (reason := why_no_method(name)))
    rates = [
        MethodRates(
            name, nbytes, tuple(save_times[0]), len(state), *overhead_of(save_times[TENSORS], save_times[_MANY])
        )
        for name, save_times in times.items()
    ]
    return CheckpointRates(disk, tuple(rates), notes)


def overhead_of(few: Sequence[SaveTime], many: Sequence[SaveTime]) -> tuple[SaveTime, SaveTime]:
    """Return the seconds of a checkpoint without tensors, and of each tensor: a line through two medians."""
    fixed, per_tensor = [], []
    for some, more in zip(zip(*few, strict=True), zip(*many, strict=True), strict=True):
        seconds = max((median(more) - median(some)) / (_MANY - TENSORS), 0.0)
        per_tensor.append(seconds)
        fixed.append(max(median(some) - TENSORS * seconds, 0.0))
    return SaveTime(*fixed), SaveTime(*per_tensor)


def why_no_method(name: str) -> str | None:
    """Return why a method cannot be measured by one process of this torch; None if it can."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    if name == ASYNCHRONOUS and "no_dist" not in signature(async_save).parameters:
        return "this torch's async_save needs a process group"
    return None


def save_and_load(name: str, state: Tensors, folder: Path, clock: Clock) -> SaveTime:
    """Save a state dict by one method, wait until it is on the disk, and load it again from there."""
    path = folder / "checkpoint"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is what is measured
        begun = clock()
        finish = _SAVES[name](state, path)
        returned = clock()
        finish()
        ended = clock()
    checkpoint = find_checkpoint(path)
    targets = {key: tensor.clone() for key, tensor in state.items()}
    drop_files(checkpoint)
    loaders = {loader.name: loader for loader in loaders_of(checkpoint)}
    loader = loaders[DIRECT_LOADER] if name == DIRECT else next(iter(loaders.values()))
    load = load_once(loader, checkpoint, targets, clock).seconds
    stall = returned - begun if name == ASYNCHRONOUS else ended - begun
    return SaveTime(stall, ended - begun, load)


def _nothing() -> None:
    """Wait for nothing: the save has returned when all is on the disk."""


def _torch_save(state: Tensors, path: Path) -> Callable[[], None]:
    import torch

    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        make_durable(file.fileno())
    return _nothing


def _dcp_save(state: Tensors, path: Path) -> Callable[[], None]:
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(state), checkpoint_id=path, no_dist=True)  # its writer calls fsync
    return _nothing


def _dcp_async_save(state: Tensors, path: Path) -> Callable[[], None]:
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

    saving = async_save(dict(state), checkpoint_id=path, no_dist=True)
    upload = saving.upload_completion if isinstance(saving, AsyncSaveResponse) else saving

    def finish() -> None:
        upload.result()

    return finish


def _direct_save(state: Tensors, path: Path) -> Callable[[], None]:
    save_file(state, path)
    return _nothing


_SAVES: dict[str, Callable[[Tensors, Path], Callable[[], None]]] = {
    TORCH_SAVE: _torch_save,
    DCP: _dcp_save,
    ASYNCHRONOUS: _dcp_async_save,
    DIRECT: _direct_save,
}
"""Each saves a state dict, and returns what waits until every byte is on the disk."""

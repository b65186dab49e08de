"""Memory that a disk can fill fast: private memory on huge pages, aligned to them.

The kernel pins and maps each page of a request: 256 ordinary pages of 4 KiB per MiB, but one huge page. That costs more
than any engine saves. Python's ``mmap`` is shared by default, and shared memory gets no huge pages.

The memory of a `Buffer` is freed when nothing refers to it, not even its array or a tensor made from it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsexplore._internal.aio.aio_config import as_integer
from dsexplore._internal.errors import UsageError
from dsexplore._internal.free_memory import free_memory
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes

if TYPE_CHECKING:
    import torch

HUGE_PAGE = 2 << 20
"""Bytes of a huge page; the alignment of every buffer."""

_PATTERN = 1 << 20
"""Number of random words that `fill_random` generates; further words are derived from them."""
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of CUDA's and of ROCm's driver."""
_libc = ctypes.CDLL(None, use_errno=True)


class Buffer:
    """``nbytes`` of zeroed memory at a 2 MiB boundary.

    Args:
        nbytes: number of bytes, 0 or more.
        huge: ask the kernel for huge pages; False for ordinary pages, to compare.

    Raises:
        OSError: the system does not have that much memory (ENOMEM).
    """

    @names_arguments
    def __init__(self, nbytes: int, *, huge: bool = True) -> None:
        length = max(-(-nbytes // HUGE_PAGE), 1) * HUGE_PAGE
        try:
            mapping = mmap.mmap(-1, length + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OSError(
                error.errno, f"no memory for a buffer of {format_bytes(length)}: {os.strerror(error.errno or 0)}"
            ) from error
        if huge and _MADV_HUGEPAGE is not None:
            _advise(mapping, _MADV_HUGEPAGE)
        whole = np.frombuffer(mapping, np.uint8)
        skip = -whole.ctypes.data % HUGE_PAGE
        self._whole = whole[skip : skip + length]
        self.bytes: NDArray[np.uint8] = self._whole[:nbytes]
        """The memory as an array, shape ``(nbytes,)``."""
        self.address: int = self._whole.ctypes.data
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"<Buffer of {format_bytes(self.nbytes)}>"

    def populate(self) -> Buffer:
        """Touch all pages, so that the kernel allocates them now instead of during a measurement; return the buffer."""
        self._whole[:: mmap.PAGESIZE] = 0
        return self

    def lock(self) -> Buffer:
        """Lock the pages in memory until the buffer is freed; return the buffer.

        Raises:
            OSError: ``RLIMIT_MEMLOCK`` does not allow it; the message says how to raise it.
        """
        if _libc.mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(len(self))) != 0:
            raise _lock_error(ctypes.get_errno(), len(self))
        return self

    def __len__(self) -> int:
        """Return the mapped bytes: `nbytes` rounded up to whole huge pages."""
        return len(self._whole)

    def huge_share(self) -> float | None:
        """Return the fraction of the resident memory that is on huge pages, 0 to 1; None if it is unknown."""
        return huge_share(self.address, len(self))


class PinnedBuffer(Buffer):
    """``nbytes`` of memory that torch pins: page-locked, and registered with the GPU's driver.

    Raises:
        RuntimeError: torch has no GPU to pin memory for; see `can_pin`.
    """

    def __init__(self, nbytes: int) -> None:
        self._whole = _pinned_bytes(nbytes)
        self.bytes = self._whole[:nbytes]
        self.address = self._whole.ctypes.data
        self.nbytes = nbytes


def can_pin() -> bool:
    """Return True if torch can pin memory for a GPU; torch is imported only if a GPU driver is present."""
    if find_spec("torch") is None or not any(Path(device).exists() for device in _GPU_DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


def _pinned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Return an array on memory that torch pins."""
    import torch

    memory: NDArray[np.uint8] = torch.empty(max(nbytes, 1), dtype=torch.uint8, pin_memory=True).numpy()
    return memory


def _advise(mapping: mmap.mmap, advice: int) -> None:
    try:
        mapping.madvise(advice)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the kernel has no huge pages; ordinary ones are only slower
            raise


def _lock_error(code: int, nbytes: int) -> OSError:
    """Return the error of a failed mlock, with the limit and what to do."""
    from resource import RLIMIT_MEMLOCK, getrlimit

    soft = getrlimit(RLIMIT_MEMLOCK)[0]
    limit = "unlimited" if soft < 0 else format_bytes(soft)
    return OSError(
        code or errno.ENOMEM,
        f"cannot lock {format_bytes(nbytes)} of memory (mlock): {os.strerror(code or errno.ENOMEM)}; the limit "
        f"RLIMIT_MEMLOCK is {limit}: raise it (ulimit -l), or use a smaller or an ordinary tensor",
    )


def huge_share(address: int, nbytes: int) -> float | None:
    """Return the fraction of the resident memory in ``[address, address + nbytes)`` on huge pages; None if unknown."""
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    inside = False
    resident = huge = 0
    for line in lines:
        name, *fields = line.split()
        if not name.endswith(":"):
            low, _, high = name.partition("-")
            inside = int(low, 16) < address + nbytes and int(high, 16) > address
        elif inside and name == "Rss:":
            resident += int(fields[0])
        elif inside and name == "AnonHugePages:":
            huge += int(fields[0])
    return huge / resident if resident else None


class _Locked(NamedTuple):
    """Location of a locked tensor's memory, which only the tensor keeps alive."""

    memory: weakref.ref[NDArray[np.uint8]]
    address: int
    nbytes: int
    """Bytes of the tensor."""
    mapped: int
    """Locked bytes: those of the tensor, rounded up to whole huge pages."""


_locked: dict[int, _Locked] = {}
"""{address: location} of the tensors of `new_locked_tensor` that are locked."""
_locked_guard = threading.RLock()


def new_locked_tensor(num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
    """Return a page-locked CPU tensor of `num_elem` elements with the dtype of `example_tensor`.

    Raises:
        UsageError: `num_elem` is not a whole number of 0 or more.
        OSError: there is not enough memory, or ``RLIMIT_MEMLOCK`` does not allow to lock it.
    """
    count = as_integer(num_elem)
    if count is None or count < 0:
        raise UsageError(f"num_elem {num_elem!r} is not a number of elements: give a whole number, at least 0")
    buffer = Buffer(count * example_tensor.element_size()).lock()
    key = buffer.address
    memory = weakref.ref(buffer.bytes, lambda _: _forget(key))
    with _locked_guard:
        _locked[key] = _Locked(memory, key, buffer.nbytes, len(buffer))
    tensor: torch.Tensor = tensor_of(buffer, example_tensor.dtype)
    return tensor


def tensor_of(buffer: Buffer, dtype: Any) -> Any:
    """Return a one-dimensional tensor over the memory of a buffer, which it keeps alive."""
    import torch

    if buffer.nbytes == 0:
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(buffer.bytes).view(dtype)


def free_locked_tensor(tensor: Any) -> bool:
    """Unlock a tensor of `new_locked_tensor`; return False for any other tensor, and for one that was unlocked before.

    The memory is freed with the last reference to it, so a transfer in flight keeps its buffer.
    """
    with _locked_guard:
        entry = _locked.pop(tensor.data_ptr(), None)
    if entry is None:
        return False
    _munlock(entry.address, entry.mapped)
    return True


def is_locked(tensor: Any) -> bool:
    """Return True if the whole tensor is in memory locked by `new_locked_tensor`, by any handle."""
    address, nbytes = tensor.data_ptr(), tensor.nbytes
    with _locked_guard:
        return any(
            entry.address <= address and address + nbytes <= entry.address + entry.nbytes for entry in _locked.values()
        )


def _forget(key: int) -> None:
    with _locked_guard:  # re-entrant, as the garbage collector may run this in the thread that holds it
        _locked.pop(key, None)


def give_back_free_memory() -> None:
    """Return the free memory of malloc to the system, so that each measured load allocates new pages.

    How much memory malloc keeps of freed tensors depends on their sizes and on other objects. A load that reuses such
    pages takes less time than one that does not.
    """
    with suppress(AttributeError):  # only glibc has this function
        _libc.malloc_trim(0)


def memory_suffices(size: int) -> bool:
    """Return True if less than half of the free memory suffices for a tensor of `size` bytes."""
    free = free_memory()
    return free is None or size < free // 2


def _munlock(address: int, nbytes: int) -> None:
    _libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))


def fill_random(buffer: Buffer, seed: int = 0) -> Buffer:
    """Fill a buffer with random bytes that cannot be compressed or deduplicated.

    The first 8 MiB are generated; each further 8 MiB are these, XORed with another random key. Return the buffer.
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

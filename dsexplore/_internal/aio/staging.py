"""The caller's memory, and the staging memory used if the disk cannot reach it directly."""

from __future__ import annotations

import ctypes
import re
from typing import Any, ClassVar, Protocol

import numpy as np

from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.backends.base import Requests
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.errors import UsageError
from dsexplore._internal.tensor_memory import described, storage_of

_LARGEST_STAGE = 64 << 20
"""Bytes of staging memory per thread at most, unless a single block is larger."""


_POINTERS = re.compile(r"[OPz&]|Z(?![fdg])")
"""Code of an address in the format of a buffer, where ``Zd`` is a complex number."""


class TransferBuffer(Protocol):
    """One contiguous run of bytes, kept alive for as long as a transfer needs it."""

    nbytes: int
    address: int
    """Its address if the CPU can reach it; 0 for the memory of another device."""

    def copy_in(self, at: int, source: int, nbytes: int) -> None:
        """Fill bytes ``at … at + nbytes − 1`` from the address `source`."""

    def copy_out(self, at: int, target: int, nbytes: int) -> None:
        """Copy bytes ``at … at + nbytes − 1`` to the address `target`."""


class Slots(Protocol):
    """Memory that requests borrow while in flight, if they cannot use the caller's own."""

    passes_on: ClassVar[bool] = False
    """True if a request may reuse the memory of a finished one at once, without `give` and `take`."""

    def take(self, index: int) -> int | None:
        """Return the address for a request, filled if it is a write; None if all memory is lent."""

    def give(self, index: int, completed: bool) -> None:
        """Return the memory of a finished request; if `completed` and it is a read, copy it to its destination."""


class SlotPool(Protocol):
    """Memory that serves the requests of one table after another."""

    def prepare(self, memory: TransferBuffer, origin: int, requests: Requests) -> Slots:
        """Return slots for these requests between a memory and a file.

        Args:
            memory: the memory to fill or to write.
            origin: file offset of the memory's first byte.
            requests: the requests to serve.
        """


class HostMemory:
    """Memory that the CPU reaches."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner

    def copy_in(self, at: int, source: int, nbytes: int) -> None:
        ctypes.memmove(self.address + at, source, nbytes)

    def copy_out(self, at: int, target: int, nbytes: int) -> None:
        ctypes.memmove(target, self.address + at, nbytes)


class DeviceMemory:
    """A tensor on another device. Copies block until they are done, while other requests are in flight."""

    address = 0

    def __init__(self, tensor: Any) -> None:
        import torch

        self.nbytes: int = tensor.nbytes
        self._bytes = tensor.detach().reshape(-1).view(torch.uint8)
        if tensor.device.type != "cpu":
            torch.accelerator.synchronize(tensor.device)  # what the caller queued on the tensor comes first

    def copy_in(self, at: int, source: int, nbytes: int) -> None:
        self._bytes[at : at + nbytes].copy_(_tensor_at(source, nbytes))

    def copy_out(self, at: int, target: int, nbytes: int) -> None:
        _tensor_at(target, nbytes).copy_(self._bytes[at : at + nbytes])


def _tensor_at(address: int, nbytes: int) -> Any:
    import torch

    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def memory_of(buffer: Any, *, writable: bool) -> TransferBuffer:
    """Return the bytes of a tensor, a `Buffer`, or anything with Python's buffer protocol (numpy array, bytearray).

    Raises:
        UsageError: a tensor that is not contiguous, has no memory of its own length (see `storage_of`), or has a lazy
            conjugate or negative bit; a read-only object that is to be filled; an array of Python objects.
        TypeError: it exposes no memory.
    """
    if isinstance(buffer, Buffer):
        return HostMemory(buffer.address, buffer.nbytes, buffer.bytes)
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous"):
        return _memory_of_tensor(buffer)
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError):  # numpy raises the second for dtypes that no buffer may have, such as dates
        raise TypeError(
            f"{type(buffer).__name__} has no memory to read or write: pass a tensor, a numpy array or a bytearray"
        ) from None
    if _POINTERS.search(re.sub(":[^:]*:", "", view.format)):  # names of fields stand between colons
        raise UsageError(
            f"a buffer of format {view.format!r} holds addresses of objects, which mean nothing in a file: pass an "
            "array of numbers"
        )
    if not view.c_contiguous:
        raise UsageError(f"a buffer of shape {view.shape} is not contiguous: pass a contiguous copy")
    if writable and view.readonly:
        raise UsageError(f"a read of {view.nbytes} bytes needs memory that can be written; this one is read-only")
    array = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    return HostMemory(array.ctypes.data, view.nbytes, array)


def _memory_of_tensor(tensor: Any) -> TransferBuffer:
    storage = storage_of(tensor)
    if not tensor.is_contiguous():
        raise UsageError(f"{described(tensor)} and stride {tensor.stride()} is not contiguous: call .contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{described(tensor)} is a lazy conjugate: call .resolve_conj().resolve_neg()")
    if not tensor.is_cpu:
        return DeviceMemory(tensor)
    address = storage.data_ptr() + tensor.storage_offset() * tensor.element_size() if tensor.nbytes else 0
    return HostMemory(address, tensor.nbytes, storage)


class Stage:
    """Slots that requests borrow if the caller's memory is misaligned or on another device.

    A write's slot is filled when it is taken; a read's is copied out after its request has finished, with the next one
    in flight already: there are slots for two full queues, if memory allows. One stage belongs to one thread,
    which keeps its memory from transfer to transfer.
    """

    passes_on: ClassVar[bool] = False

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._slots: Any = None
        self._held = self._address = 0
        self._pinned = False

    def _allocate(self, nbytes: int, pinned: bool) -> None:
        """Allocate memory for slots; for the memory of another device, page-locked and known to its driver."""
        if pinned:
            import torch

            locked = torch.accelerator.is_available()
            self._slots = torch.empty(nbytes + PAGE, dtype=torch.uint8, pin_memory=locked)
            self._address = -(-self._slots.data_ptr() // PAGE) * PAGE
        else:
            self._slots = Buffer(nbytes)
            self._address = self._slots.address
        self._held, self._pinned = nbytes, pinned

    def prepare(self, memory: TransferBuffer, origin: int, requests: Requests) -> Stage:
        slot = -(-int(requests.lengths[0]) // PAGE) * PAGE
        count = min(2 * self._depth, max(_LARGEST_STAGE // slot, 1), len(requests))
        pinned = not memory.address
        if self._held < count * slot or pinned > self._pinned:
            self._allocate(count * slot, pinned or self._pinned)
        self._free = [self._address + i * slot for i in range(count)]
        self._memory, self._write = memory, requests.write
        self._at = (requests.offsets - origin).tolist()
        self._lengths = requests.lengths.tolist()
        self._lent: dict[int, int] = {}
        return self

    def take(self, index: int) -> int | None:
        if not self._free:
            return None
        slot = self._lent[index] = self._free.pop()
        if self._write:
            self._memory.copy_out(self._at[index], slot, self._lengths[index])
        return slot

    def give(self, index: int, completed: bool) -> None:
        slot = self._lent.pop(index)
        if completed and not self._write:
            self._memory.copy_in(self._at[index], slot, self._lengths[index])
        self._free.append(slot)

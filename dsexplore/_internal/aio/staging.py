"""The caller's memory, and the staging memory that requests use if the disk cannot reach the caller's directly."""

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
"""Codes of addresses in the format of a buffer; ``Zd`` is a complex number."""


class TransferBuffer(Protocol):
    """Contiguous memory, which is kept alive as long as a transfer needs it."""

    nbytes: int
    address: int
    """Address if the CPU can reach the memory; 0 for memory of another device."""

    def copy_in(self, at: int, source: int, nbytes: int) -> None:
        """Fill bytes ``at … at + nbytes − 1`` from the address `source`."""

    def copy_out(self, at: int, target: int, nbytes: int) -> None:
        """Copy bytes ``at … at + nbytes − 1`` to the address `target`."""


class Slots(Protocol):
    """Memory that requests borrow while they are in flight, if they cannot use the caller's."""

    passes_on: ClassVar[bool] = False
    """True if a request may reuse the memory of a finished one at once, without `give` and `take`."""

    def take(self, index: int) -> int | None:
        """Return an address for a request, with its bytes if it is a write; None if all memory is lent."""

    def give(self, index: int, completed: bool) -> None:
        """Take back the memory of a request; if it is a read and `completed`, copy it to the caller's memory."""


class SlotPool(Protocol):
    """Memory that serves the requests of one table after another."""

    def prepare(self, memory: TransferBuffer, origin: int, requests: Requests) -> Slots:
        """Return slots for the requests of a transfer.

        Args:
            memory: the caller's memory.
            origin: position in the file of the memory's first byte.
            requests: requests of the transfer.
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
            torch.accelerator.synchronize(tensor.device)  # the caller may have queued kernels on the tensor

    def copy_in(self, at: int, source: int, nbytes: int) -> None:
        self._bytes[at : at + nbytes].copy_(_tensor_at(source, nbytes))

    def copy_out(self, at: int, target: int, nbytes: int) -> None:
        _tensor_at(target, nbytes).copy_(self._bytes[at : at + nbytes])


def _tensor_at(address: int, nbytes: int) -> Any:
    """Return a tensor of bytes on memory that the CPU reaches."""
    import torch

    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def memory_of(buffer: Any, *, writable: bool) -> TransferBuffer:
    """Return the memory of a tensor, a `Buffer`, or an object with Python's buffer protocol (numpy array, bytearray).

    Args:
        buffer: the object.
        writable: True if the memory is to be filled.

    Raises:
        UsageError: a tensor that is not contiguous, has no memory (see `storage_of`), or is a lazy conjugate or
            negative; a read-only object that is to be filled; an array of Python objects.
        TypeError: the object exposes no memory.
    """
    if isinstance(buffer, Buffer):
        return HostMemory(buffer.address, buffer.nbytes, buffer.bytes)
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous"):
        return _memory_of_tensor(buffer)
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError):  # numpy raises ValueError for dtypes that a buffer cannot have, such as dates
        raise TypeError(
            f"{type(buffer).__name__} has no memory to read or write: pass a tensor, a numpy array or a bytearray"
        ) from None
    if _POINTERS.search(re.sub(":[^:]*:", "", view.format)):  # names of fields are between colons
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
    """Return the memory of a tensor; raise UsageError if its elements are not in memory in their order."""
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

    The slot of a write is filled when it is taken. That of a read is copied out when its request has finished, while
    the next one is in flight; so there are slots for two full queues, if memory allows. A stage belongs to one thread,
    and keeps its memory for the next transfer.
    """

    passes_on: ClassVar[bool] = False

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._slots: Any = None
        """Keeps the memory of the slots alive."""
        self._nbytes = self._address = 0
        self._is_pinned = False

    def _allocate(self, nbytes: int, pinned: bool) -> None:
        """Allocate memory for slots; pinned memory is for copies to and from another device."""
        if pinned:
            import torch

            can_pin = torch.accelerator.is_available()
            self._slots = torch.empty(nbytes + PAGE, dtype=torch.uint8, pin_memory=can_pin)
            self._address = -(-self._slots.data_ptr() // PAGE) * PAGE
        else:
            self._slots = Buffer(nbytes)
            self._address = self._slots.address
        self._nbytes, self._is_pinned = nbytes, pinned

    def prepare(self, memory: TransferBuffer, origin: int, requests: Requests) -> Stage:
        slot_bytes = -(-int(requests.lengths[0]) // PAGE) * PAGE
        count = min(2 * self._depth, max(_LARGEST_STAGE // slot_bytes, 1), len(requests))
        needs_pinned = not memory.address
        if self._nbytes < count * slot_bytes or (needs_pinned and not self._is_pinned):
            self._allocate(count * slot_bytes, pinned=needs_pinned or self._is_pinned)
        self._free = [self._address + i * slot_bytes for i in range(count)]
        self._memory, self._write = memory, requests.write
        self._at = (requests.offsets - origin).tolist()
        self._lengths = requests.lengths.tolist()
        self._lent: dict[int, int] = {}
        """{index of a request: address of its slot}."""
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

"""`TensorsFromPeers`: one remark if the program reads a value from other ranks, which on a cluster may be different.

A simulated rank receives zeros or a copy of its own part, and the result of its reductions is its own input. If a line
of the program reads such a tensor (``if flag.item():``, ``int(count)``, ``if flag == 1:``), one remark names the lines.
Tensors are identified by their storage, so views count too. Results of comparisons count; other results do not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from dsexplore._internal.capture.stack.frame_kinds import OF_CALLER, kind_of
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.tensors import TENSOR_COMPARISONS, TENSOR_READS, no_subclass_function
from dsexplore._internal.worlds.remarks import Remarks

RECEIVED = (
    "a value that another rank sends was read, and no process runs that rank: on a real cluster the value may differ, "
    "and the program may branch differently"
)
REDUCED = (
    "the result of a reduction was read, which is this rank's own value here: on a real cluster all ranks of the group "
    "contribute to it, and the program may branch differently"
)


class TensorsFromPeers:
    """Weak references to the storages of tensors to which other ranks contribute."""

    def __init__(self) -> None:
        self._storages: WeakKeyDictionary[torch.UntypedStorage, str] = WeakKeyDictionary()

    def add_received(self, tensors: Any) -> None:
        """Add a tensor, a list of tensors, or a list of such lists, that other ranks send."""
        self._add(tensors, RECEIVED)

    def add_reduced(self, tensors: Any) -> None:
        """Add a tensor, a list of tensors, or a list of such lists, that ranks reduce together."""
        self._add(tensors, REDUCED)

    def _add(self, tensors: Any, remark: str) -> None:
        for tensor in _flattened(tensors):
            storage = _storage(tensor)
            if storage is not None:
                self._storages[storage] = remark

    def discard(self, tensor: torch.Tensor) -> None:
        """Remove a tensor that was overwritten with values of this rank."""
        storage = _storage(tensor)
        if storage is not None:
            self._storages.pop(storage, None)

    def remark_on(self, tensor: object) -> str:
        """Return the remark on a read of a tensor; empty if no other rank contributes to it."""
        if not self._storages or not isinstance(tensor, torch.Tensor):
            return ""
        storage = _storage(tensor)
        return "" if storage is None else self._storages.get(storage, "")

    def follow(self, result: object, *sources: object) -> None:
        """Add the result of a comparison if another rank contributes to one of its arguments."""
        remark = next(filter(None, map(self.remark_on, sources)), "")
        if remark:
            self._add(result, remark)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor; None if it has no single storage, as a DTensor or a sparse tensor."""
    try:
        with no_subclass_function():
            return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _flattened(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, Iterable):
        for inner in tensors:
            yield from _flattened(inner)


def _remark_on_read(read: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a method that reads a tensor's values to make the remark if a line of the program calls it."""
    received, remarks = parts[TensorsFromPeers], parts[Remarks]

    @wraps(read)
    def remarked(tensor: torch.Tensor, *args: Any) -> Any:
        remark = received.remark_on(tensor)
        if remark and kind_of(sys._getframe(1).f_code) in OF_CALLER:
            remarks.say(remark, quiet=remark is REDUCED)  # programs often log reduced values
        return read(tensor, *args)

    return remarked


def _follow_comparison(compare: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a comparison to add its result to the tensors from peers if an argument is one of them."""
    received = parts[TensorsFromPeers]

    @wraps(compare)
    def followed(tensor: torch.Tensor, other: Any) -> Any:
        result = compare(tensor, other)
        received.follow(result, tensor, other)
        return result

    return followed


PATCHES: tuple[Entry, ...] = (
    *(Patch(read, "the program may branch differently on a real cluster", _remark_on_read) for read in TENSOR_READS),
    *(Patch(compare, "the program may read its result", _follow_comparison) for compare in TENSOR_COMPARISONS),
)

"""Values of other ranks that a program reads: it may go another way on a real cluster, which is said once.

What a simulated rank receives is what was in that memory before, zeros where only another rank sends, or a copy of its
own part. Where a line of the program
reads such a tensor (``if flag.item():``, ``int(count)``, ``if flag == 1:``), the value would come from another rank.
Received tensors are known by their storage, so that views of them count too, and results of comparisons with them.
Results of reductions are not followed, nor anything else that is computed from a received tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from dsexplore.capture.frame_kinds import USER, USER_HOOK, kind_of
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks

RECEIVED = (
    "a value that another rank sends was read, and no process plays that rank: on a real cluster it may be another, "
    "and with it what the program does then"
)
_FILLED = (
    *("recv", "recv_anysource", "broadcast", "scatter", "allgather", "_allgather_base", "all_gather_single"),
    *("allgather_into_tensor_coalesced", "gather", "alltoall", "alltoall_base", "all_to_all_single"),
)
"""Methods of ``ProcessGroup`` whose first argument is filled with what other ranks send."""
_FROM_ANOTHER = frozenset({"recv", "recv_anysource", "scatter"})
"""Methods of ``ProcessGroup`` that fill their whole argument with what another rank sends: unwritten memory here."""
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_MANY = 1024
"""Storages that are kept until those that are gone are looked for."""


def patch_reads_of_received(patches: Patches, received: Received, remarks: Remarks) -> None:
    """Report the lines of the program that read what another rank sends."""
    for name in _FILLED:
        method = vars(dist.ProcessGroup).get(name)
        if method is not None:
            patches.attribute(dist.ProcessGroup, name, _filling(method, received))
    for name in _READS:
        patches.attribute(torch.Tensor, name, _reading(getattr(torch.Tensor, name), received, remarks))
    for name in _COMPARISONS:
        patches.attribute(torch.Tensor, name, _comparing(getattr(torch.Tensor, name), received))


class Received:
    """The storages of tensors that other ranks fill, none of which is kept alive."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor among them."""
        reference = _storage_of(tensor)
        if reference is None:
            return
        if len(self._storages) > _MANY:
            self._storages = {key: one for key, one in self._storages.items() if not one.expired()}
        # As long as a weak reference to a storage exists, no other has its number.
        self._storages[reference.cdata] = reference

    def discard(self, tensor: torch.Tensor) -> None:
        """Count a tensor among them no longer: it was given values of this rank."""
        reference = _storage_of(tensor)
        if reference is not None:
            self._storages.pop(reference.cdata, None)

    def __contains__(self, tensor: object) -> bool:
        if not self._storages or not isinstance(tensor, torch.Tensor):
            return False
        reference = _storage_of(tensor)
        return reference is not None and reference.cdata in self._storages


def _storage_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    """The storage of a tensor; None for one without a storage of its own, such as a DTensor."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def _filling(method: Callable[..., Any], received: Received) -> Callable[..., Any]:
    @wraps(method)
    def collective(group: dist.ProcessGroup, filled: Any, *args: Any, **kwargs: Any) -> Any:
        work = method(group, filled, *args, **kwargs)
        options = next((one for one in (*args, *kwargs.values()) if hasattr(one, "rootRank")), None)
        if options is None or options.rootRank != group.rank():
            for tensor in _tensors(filled):
                received.add(tensor)
                if method.__name__ in _FROM_ANOTHER:
                    _clear(tensor)
        return work

    return collective


def _clear(tensor: torch.Tensor) -> None:
    """Write zeros, seen by no mode: what lies in new memory may be NaN, which ends scripts that look at their loss."""
    if type(tensor) is not FakeTensor:
        with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
            tensor.zero_()


def _tensors(filled: Any) -> Iterator[torch.Tensor]:
    if isinstance(filled, torch.Tensor):
        yield filled
    elif isinstance(filled, Iterable):
        for one in filled:
            yield from _tensors(one)


def _reading(read: Callable[..., Any], received: Received, remarks: Remarks) -> Callable[..., Any]:
    @wraps(read)
    def value(tensor: torch.Tensor, *args: Any) -> Any:
        if tensor in received and kind_of(sys._getframe(1).f_code) in (USER, USER_HOOK):
            remarks.say(RECEIVED)
        return read(tensor, *args)

    return value


def _comparing(compare: Callable[..., Any], received: Received) -> Callable[..., Any]:
    @wraps(compare)
    def compared(tensor: torch.Tensor, other: Any) -> Any:
        result = compare(tensor, other)
        if isinstance(result, torch.Tensor) and (tensor in received or other in received):
            received.add(result)
        return result

    return compared

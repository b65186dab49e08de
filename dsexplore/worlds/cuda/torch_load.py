"""``torch.load`` onto a GPU that is not there: what is put on ``cuda`` stays in CPU memory and is marked.

Files hold CPU tensors, as torch finds them when saving; a file of a real GPU loads too, wherever its map says. What
``pickle`` takes keeps its device, as object collectives and copies through bytes do: it is loaded where a GPU is, or is
stood in for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, serialization
from torch.storage import _StorageBase as StorageBase

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import ATTRIBUTE, mark
from dsexplore.worlds.cuda.function_mode import StandInMode

LOCATION = re.compile(r"cuda(:\d+)?$")


def patch_files(patches: Patches, mode: StandInMode) -> None:
    """Make storages that are loaded onto, or moved to, ``cuda`` stay where they are, marked with that device."""
    _patch_loading(patches, mode)
    _patch_pickling(patches)
    move = torch.UntypedStorage.to

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if mode.read(device) is None:
            return move(storage, device=torch.device(device), non_blocking=non_blocking)
        return _placed(storage.clone(), device, mode)

    def cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return _placed(storage.clone(), "cuda" if device is None else device, mode)

    patches.attribute(torch.UntypedStorage, "to", to)
    patches.attribute(torch.UntypedStorage, "cuda", cuda)


def _placed(storage: Any, device: Any, mode: StandInMode) -> Any:
    setattr(storage, ATTRIBUTE, mode.read(device))
    return storage


def _patch_loading(patches: Patches, mode: StandInMode) -> None:
    """Mark storages that a file says were on ``cuda``, and the tensors that are made of them."""

    def deserialize(original: Callable[..., Any]) -> Callable[..., Any]:
        def onto(backend: str, storage: Any, location: str) -> Any:
            if backend == "cuda" and LOCATION.match(location):
                return _placed(storage, location, mode)
            return original(backend, storage, location)

        return onto

    def rebuild(original: Callable[..., Any]) -> Callable[..., Any]:
        def rebuilt(storage: Any, *args: Any) -> Any:
            tensor = original(storage, *args)
            mark(tensor, getattr(storage._untyped_storage, ATTRIBUTE, None))
            return tensor

        return rebuilt

    patches.function(serialization._deserialize, deserialize)
    patches.function(torch._utils._rebuild_tensor, rebuild)


def _patch_pickling(patches: Patches) -> None:
    """Write the device that a storage is marked with, where torch writes the device that it is on."""
    pickled: list[str] = []  # the device of the storage that is pickled now

    def tagged(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda storage: pickled[-1] if pickled else original(storage)

    def with_tag(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def reduced(storage: Any) -> Any:
            device = getattr(_untyped(storage), ATTRIBUTE, None)
            if device is None:
                return reduce(storage)
            pickled.append(str(device))
            try:
                return reduce(storage)
            finally:
                pickled.pop()

        return reduced

    for kind in (torch.TypedStorage, StorageBase):
        patches.attribute(kind, "__reduce__", with_tag(kind.__reduce__))
    patches.attribute(Tensor, "_reduce_ex_internal", _with_marked_storage(Tensor._reduce_ex_internal))
    patches.function(serialization.location_tag, tagged)


def _with_marked_storage(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Make a tensor that is taken apart hand its mark to its storage, which is pickled by itself."""

    def reduced(tensor: Tensor, protocol: int) -> Any:
        parts = reduce(tensor, protocol)
        device = tensor._dsexplore_cuda_device  # type: ignore[attr-defined]
        storage = parts[1][0] if parts[1] else None
        if device is not None and isinstance(storage, (torch.TypedStorage, torch.UntypedStorage)):
            setattr(_untyped(storage), ATTRIBUTE, device)
        return parts

    return reduced


def _untyped(storage: Any) -> Any:
    return storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage

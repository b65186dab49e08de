"""``torch.load`` under the CUDA stand-in: tensors mapped to ``cuda`` stay in CPU memory, marked with that device.

``torch.save`` writes CPU tensors. Files from a real GPU load too, with any ``map_location``. Pickled tensors, such as
those of object collectives, keep their device, so they load only where there is a GPU, real or simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.checkpoint import (
    LOCATION_OF_STORAGE,
    PUT_STORAGE,
    REBUILD_TENSOR,
    REDUCE_STORAGES,
    REDUCE_TENSOR,
    RESTORE_DEVICE,
    STORAGE_CUDA,
    STORAGE_TO,
    untyped,
)
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.cuda.device_marks import ATTRIBUTE, CPU, place
from dsexplore._internal.worlds.cuda.function_mode import StandInMode

LOCATION = re.compile(r"cuda(:\d+)?$")


def _storage_to(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a storage's ``to`` to copy it in CPU memory, marked, where the call names a CUDA device."""
    mode = parts[StandInMode]

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if mode.read(device) is None:
            return original(self, device=torch.device(device), non_blocking=non_blocking)
        return _mark(self.clone(), device, mode)

    return to


def _storage_cuda(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Replace a storage's ``cuda`` by a copy in CPU memory, marked with the device."""
    mode = parts[StandInMode]

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return _mark(self.clone(), "cuda" if device is None else device, mode)

    return cuda


def _mark(storage: Any, device: Any, mode: StandInMode) -> Any:
    setattr(storage, ATTRIBUTE, mode.read(device))
    return storage


def _put_storage(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the step of ``torch.load`` that moves a storage to its device: mark it where that is a CUDA device."""
    mode = parts[StandInMode]

    def deserialize(backend_name: str, obj: Any, location: str) -> Any:
        if backend_name == "cuda" and LOCATION.match(location):
            return _mark(obj, location, mode)
        return original(backend_name, obj, location)

    return deserialize


def _rebuilt_on_device(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the function that makes a tensor of a loaded storage, to mark it with the device of the storage."""

    def rebuild(storage: Any, storage_offset: Any, size: Any, stride: Any) -> Any:
        tensor = original(storage, storage_offset, size, stride)
        place(tensor, getattr(untyped(storage), ATTRIBUTE, None))
        return tensor

    return rebuild


def _restored(original: Callable[..., Tensor], parts: Parts) -> Callable[..., Tensor]:
    """Wrap torch's restoring of a loaded fake tensor: put it on the CPU, marked.

    torch's autograd ends the process when it meets a fake tensor on ``cuda`` without a GPU.
    """
    mode = parts[StandInMode]

    def restore(tensor: Tensor) -> Tensor:
        restored = original(tensor)
        if isinstance(restored, FakeTensor) and (device := mode.read(restored.fake_device)) is not None:
            restored.fake_device = CPU
            place(restored, device)
        return restored

    return restore


class _Pickled:
    """Devices of the storages that are being pickled, innermost last, in torch's form: ``"cuda:0"``."""

    def __init__(self) -> None:
        self.locations: list[str] = []


def _located(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the function that names the device of a storage in a pickle, to name the one it is marked with."""
    locations = parts[_Pickled].locations

    def location_tag(storage: Any) -> Any:
        return locations[-1] if locations else original(storage)

    return location_tag


def _reduced_with_location(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``__reduce__`` of a storage, so that the pickle names the device it is marked with."""
    locations = parts[_Pickled].locations

    def reduce(self: Any) -> Any:
        device = getattr(_untyped(self), ATTRIBUTE, None)
        if device is None:
            return original(self)
        locations.append(str(device))
        try:
            return original(self)
        finally:
            locations.pop()

    return reduce


def _reduced_with_storage(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``__reduce_ex__`` to give a tensor's device to its storage, which is pickled separately."""

    def reduce(self: Tensor, proto: int) -> Any:
        reduced = original(self, proto)
        device = self._dsexplore_cuda_device  # type: ignore[attr-defined]
        storage = reduced[1][0] if reduced[1] else None
        if device is not None and isinstance(storage, (torch.TypedStorage, torch.UntypedStorage)):
            setattr(_untyped(storage), ATTRIBUTE, device)
        return reduced

    return reduce


def _untyped(storage: Any) -> Any:
    return untyped(storage) if isinstance(storage, torch.TypedStorage) else storage


PATCHES: tuple[Entry, ...] = (
    Patch(PUT_STORAGE, "torch has no memory on that device", _put_storage, when="cuda device", by_code=True),
    Patch(REBUILD_TENSOR, "it makes a tensor from a storage", _rebuilt_on_device, when="cuda device", by_code=True),
    Patch(RESTORE_DEVICE, "autograd needs CUDA for such a tensor", _restored, when="cuda device", by_code=True),
    *(
        Patch(target, "its pickle names its device", _reduced_with_location, when="cuda device")
        for target in REDUCE_STORAGES
    ),
    Patch(REDUCE_TENSOR, "its storage is pickled by itself", _reduced_with_storage, when="cuda device"),
    Patch(LOCATION_OF_STORAGE, "it finds storages on the CPU", _located, when="cuda device", by_code=True),
    Patch(STORAGE_TO, "torch has no memory on that device", _storage_to, when="cuda device"),
    Patch(STORAGE_CUDA, "torch has no memory on that device", _storage_cuda, when="cuda device"),
)

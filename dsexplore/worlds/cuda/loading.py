"""``torch.load`` onto a GPU that is not there: what is put on ``cuda`` stays in CPU memory and is marked.

Files hold CPU tensors, as torch finds them when saving; a file of a real GPU loads too, wherever its map says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import serialization

from dsexplore.worlds.cuda.function_mode import StandInMode
from dsexplore.worlds.cuda.marks import ATTRIBUTE, mark
from dsexplore.worlds.patches import Patches

LOCATION = re.compile(r"cuda(:\d+)?$")


def patch_files(patches: Patches, mode: StandInMode) -> None:
    """Make storages that are loaded onto, or moved to, ``cuda`` stay where they are, marked with that device."""

    def placed(storage: Any, device: Any) -> Any:
        setattr(storage, ATTRIBUTE, mode.read(device))
        return storage

    def deserialize(original: Callable[..., Any]) -> Callable[..., Any]:
        def onto(backend: str, storage: Any, location: str) -> Any:
            if backend == "cuda" and LOCATION.match(location):
                return placed(storage, location)
            return original(backend, storage, location)

        return onto

    def rebuild(original: Callable[..., Any]) -> Callable[..., Any]:
        def rebuilt(storage: Any, *args: Any) -> Any:
            tensor = original(storage, *args)
            mark(tensor, getattr(storage._untyped_storage, ATTRIBUTE, None))
            return tensor

        return rebuilt

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if mode.read(device) is None:
            return move(storage, device=torch.device(device), non_blocking=non_blocking)
        return placed(storage.clone(), device)

    move = torch.UntypedStorage.to
    patches.function(serialization._deserialize, deserialize)
    patches.function(torch._utils._rebuild_tensor, rebuild)
    patches.attribute(torch.UntypedStorage, "to", to)
    patches.attribute(
        torch.UntypedStorage,
        "cuda",
        lambda storage, device=None, non_blocking=False: placed(storage.clone(), "cuda" if device is None else device),
    )

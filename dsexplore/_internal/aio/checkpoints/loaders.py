"""The calls that people load checkpoints with, and the tensors that they load into.

`loading` times each call of `loaders_of`, and copies what it returns into `new_targets`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint, Kind
from dsexplore._internal.aio.checkpoints.direct_files import header_of, read_tensors, torch_dtype
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.errors import UsageError

if TYPE_CHECKING:
    import torch

DIRECT = "dsexplore.aio.load_file"
NO_SAFETENSORS = "safetensors is not installed (pip install 'dsexplore[checkpoints]'), so its own call is not measured."

Tensors = dict[str, "torch.Tensor"]
LoadFunction = Callable[[Checkpoint, Tensors], Iterator[Mapping[str, object]]]
"""Takes a checkpoint and the tensors to fill. Yields the content of each file, or one empty dict if it fills them."""


@dataclass(frozen=True)
class Loader:
    """A way to load a checkpoint."""

    name: str
    """The call, as one types it."""
    load: LoadFunction
    maps: bool = False
    """True if its call maps the file and returns before its bytes are read."""


def loaders_of(checkpoint: Checkpoint) -> list[Loader]:
    """Return the ways to load a checkpoint here; the first is the customary one."""
    if checkpoint.kind == "DCP":
        return [Loader("torch.distributed.checkpoint.load", _load_dcp)]
    of_library = _safetensors_loaders() if checkpoint.kind == "safetensors" else _torch_loaders(checkpoint)
    return [*of_library, Loader(DIRECT, _load_direct)]


def _file_by_file(load: Callable[[Path], Mapping[str, object]]) -> LoadFunction:
    return lambda checkpoint, targets: map(load, checkpoint.files)


def _safetensors_loaders() -> list[Loader]:
    """Return the loaders of safetensors, which maps files; from version 0.8 on it can also read them."""
    if find_spec("safetensors") is None:
        return []
    from safetensors.torch import load_file

    loaders = [Loader("safetensors.torch.load_file", _file_by_file(load_file), maps=True)]
    if "backend" in signature(load_file).parameters:
        read = _file_by_file(partial(load_file, backend="pread"))
        loaders.append(Loader('safetensors.torch.load_file(backend="pread")', read))
    return loaders


def _torch_loaders(checkpoint: Checkpoint) -> list[Loader]:
    """Return the loaders of ``torch.save``'s files; the last one maps them if they can be mapped."""
    import torch

    load = partial(torch.load, map_location="cpu", weights_only=True)
    loaders = [Loader("torch.load", _file_by_file(load))]
    if checkpoint.is_zip:
        loaders.append(Loader("torch.load(mmap=True)", _file_by_file(partial(load, mmap=True)), maps=True))
    return loaders


def _load_direct(checkpoint: Checkpoint, targets: Tensors) -> Iterator[Mapping[str, object]]:
    with aio_handle.from_config(NEAR_LIMIT) as handle:
        for file in checkpoint.files:
            yield read_tensors(handle, checkpoint, file)


def _load_dcp(checkpoint: Checkpoint, targets: Tensors) -> Iterator[Mapping[str, object]]:
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is what is measured
        load(dict(targets), checkpoint_id=checkpoint.path, no_dist=True)
    yield {}


def tensors_in(loaded: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dicts and lists, with names such as ``optimizer.state.0.exp_avg``."""
    import torch

    if isinstance(loaded, torch.Tensor):
        yield name, loaded
        return
    if isinstance(loaded, Mapping):
        entries = [(str(key), value) for key, value in loaded.items()]
    elif isinstance(loaded, (list, tuple)):
        entries = [(str(at), value) for at, value in enumerate(loaded)]
    else:
        return
    for key, value in entries:
        yield from tensors_in(value, f"{name}.{key}" if name else key)


def new_targets(checkpoint: Checkpoint) -> Tensors:
    """Return tensors for all that a checkpoint holds, in memory that was written, as a model's parameters are.

    Raises:
        UsageError: it holds no tensors, or a file of ``torch.save`` more than tensors and plain values.
    """
    import torch

    shapes: dict[Kind, Callable[[Checkpoint], Iterator[tuple[str, torch.Tensor]]]] = {
        "safetensors": _safetensors_shapes,
        "torch.save": _torch_shapes,
        "DCP": _dcp_shapes,
    }
    likes = shapes[checkpoint.kind](checkpoint)
    targets = {name: torch.empty(like.shape, dtype=like.dtype).zero_() for name, like in likes}
    if not targets:
        raise UsageError(f"{checkpoint.path} holds no tensors, so there is nothing to load")
    return targets


def _safetensors_shapes(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    for file in checkpoint.files:
        for name, entry in header_of(file)[0].items():
            yield name, torch.empty(entry["shape"], dtype=torch_dtype(entry["dtype"], file), device="meta")


def _torch_shapes(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    from pickle import UnpicklingError

    try:
        for loaded in _torch_loaders(checkpoint)[-1].load(checkpoint, {}):
            yield from tensors_in(loaded)
    except UnpicklingError as error:
        raise UsageError(
            f"{checkpoint.path} holds more than tensors and plain values, and nothing else is unpickled here: save its "
            f"state dict alone. torch: {str(error).splitlines()[0]}"
        ) from None


def _dcp_shapes(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    for name, entry in FileSystemReader(checkpoint.path).read_metadata().state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield name, torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")

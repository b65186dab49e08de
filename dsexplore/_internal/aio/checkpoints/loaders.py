"""The calls that load a checkpoint, and the tensors to load into.

`loading` times each call of `loaders_of`, and copies the tensors that it returns into those of `new_targets`.
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
"""Called with a checkpoint and the tensors to fill; yields the content of each file, or an empty dict if it has filled
the tensors itself."""


@dataclass(frozen=True)
class Loader:
    """A call that loads a checkpoint."""

    name: str
    """The call, as a user writes it."""
    load: LoadFunction
    """Loads the checkpoint."""
    maps: bool = False
    """True if the call maps the file, and returns before its bytes are read."""


def loaders_of(checkpoint: Checkpoint) -> list[Loader]:
    """Return the calls that can load a checkpoint here, the customary one first."""
    if checkpoint.kind == "DCP":
        return [Loader("torch.distributed.checkpoint.load", _load_dcp)]
    library_loaders = _safetensors_loaders() if checkpoint.kind == "safetensors" else _torch_loaders(checkpoint)
    return [*library_loaders, Loader(DIRECT, _load_direct)]


def _file_by_file(load: Callable[[Path], Mapping[str, object]]) -> LoadFunction:
    """Return a function that loads the files of a checkpoint one after another."""
    return lambda checkpoint, targets: map(load, checkpoint.files)


def _safetensors_loaders() -> list[Loader]:
    """Return the calls of safetensors, which maps files; since version 0.8 it can also read them."""
    if find_spec("safetensors") is None:
        return []
    from safetensors.torch import load_file

    loaders = [Loader("safetensors.torch.load_file", _file_by_file(load_file), maps=True)]
    if "backend" in signature(load_file).parameters:
        read = _file_by_file(partial(load_file, backend="pread"))
        loaders.append(Loader('safetensors.torch.load_file(backend="pread")', read))
    return loaders


def _torch_loaders(checkpoint: Checkpoint) -> list[Loader]:
    """Return the calls that load files of ``torch.save``; the last one maps them if that is possible."""
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
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as intended: one process is measured
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
    """Return a tensor for each tensor in a checkpoint, in memory that is allocated, as that of a model's parameters.

    Raises:
        UsageError: the checkpoint holds no tensors, or a file of ``torch.save`` holds other objects.
    """
    import torch

    shapes: dict[Kind, Callable[[Checkpoint], Iterator[tuple[str, torch.Tensor]]]] = {
        "safetensors": _safetensors_shapes,
        "torch.save": _torch_shapes,
        "DCP": _dcp_shapes,
    }
    targets = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype).zero_()
        for name, tensor in shapes[checkpoint.kind](checkpoint)
    }
    if not targets:
        raise UsageError(f"{checkpoint.path} holds no tensors, so there is nothing to load")
    return targets


def _safetensors_shapes(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a meta tensor for each tensor in the headers of safetensors files."""
    import torch

    for file in checkpoint.files:
        for name, entry in header_of(file)[0].items():
            yield name, torch.empty(entry["shape"], dtype=torch_dtype(entry["dtype"], file), device="meta")


def _torch_shapes(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of files of ``torch.save``; raise UsageError if they hold other objects."""
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
    """Yield a meta tensor for each tensor in the metadata of ``torch.distributed.checkpoint``."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    for name, entry in FileSystemReader(checkpoint.path).read_metadata().state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield name, torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")

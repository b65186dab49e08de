"""The calls that people load checkpoints with, each as a function that yields what one file holds after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint, Kind
from dsexplore._internal.aio.checkpoints.direct_reading import header_of, read_tensors, torch_dtype
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.errors import UsageError

if TYPE_CHECKING:
    import torch

DIRECT = "dsexplore.aio.load_file"
NO_SAFETENSORS = "safetensors is not installed (pip install 'dsexplore[checkpoints]'), so its own call is not measured."

Tensors = dict[str, "torch.Tensor"]
LoadFunction = Callable[[Checkpoint, Tensors], Iterator[Mapping[str, object]]]
"""Takes a checkpoint and the tensors to fill, and yields the content of each file; nothing if it fills them itself."""


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
    direct = Loader(DIRECT, _load_direct)
    if checkpoint.kind == "safetensors":
        return [*_safetensors_loaders(), direct]
    plain = Loader("torch.load", _load_torch)
    mapped = Loader("torch.load(mmap=True)", _load_torch_mapped, maps=True)
    return [plain, *([mapped] if checkpoint.is_zip else []), direct]


def _safetensors_loaders() -> list[Loader]:
    if find_spec("safetensors") is None:
        return []
    from safetensors.torch import load_file

    def mapped(checkpoint: Checkpoint, targets: Tensors) -> Iterator[Mapping[str, object]]:
        for file in checkpoint.files:
            yield load_file(file)

    def read(checkpoint: Checkpoint, targets: Tensors) -> Iterator[Mapping[str, object]]:
        for file in checkpoint.files:
            yield load_file(file, backend="pread")

    loaders = [Loader("safetensors.torch.load_file", mapped, maps=True)]
    if "backend" in signature(load_file).parameters:  # from safetensors 0.8 on
        loaders.append(Loader('safetensors.torch.load_file(backend="pread")', read))
    return loaders


def _load_torch(checkpoint: Checkpoint, targets: Tensors) -> Iterator[Mapping[str, object]]:
    import torch

    for file in checkpoint.files:
        yield torch.load(file, map_location="cpu", weights_only=True)


def _load_torch_mapped(checkpoint: Checkpoint, targets: Tensors) -> Iterator[Mapping[str, object]]:
    import torch

    for file in checkpoint.files:
        yield torch.load(file, map_location="cpu", weights_only=True, mmap=True)


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
        "safetensors": _empty_of_safetensors,
        "torch.save": _loaded_for_shapes,
        "DCP": _empty_of_dcp,
    }
    likes = shapes[checkpoint.kind](checkpoint)
    targets = {name: torch.empty(like.shape, dtype=like.dtype).zero_() for name, like in likes}
    if not targets:
        raise UsageError(f"{checkpoint.path} holds no tensors, so there is nothing to load")
    return targets


def _empty_of_safetensors(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    for file in checkpoint.files:
        for name, entry in header_of(file)[0].items():
            yield name, torch.empty(entry["shape"], dtype=torch_dtype(entry["dtype"], file), device="meta")


def _loaded_for_shapes(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    from pickle import UnpicklingError

    load = _load_torch_mapped if checkpoint.is_zip else _load_torch
    try:
        for loaded in load(checkpoint, {}):
            yield from tensors_in(loaded)
    except UnpicklingError as error:
        raise UsageError(
            f"{checkpoint.path} holds more than tensors and plain values, and nothing else is unpickled here: save its "
            f"state dict alone. torch: {str(error).splitlines()[0]}"
        ) from None


def _empty_of_dcp(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    for name, entry in FileSystemReader(checkpoint.path).read_metadata().state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield name, torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")

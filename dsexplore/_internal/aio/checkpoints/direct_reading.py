"""Files of tensors read with direct I/O: past the page cache, with many requests in flight."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint, find_checkpoint
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments

if TYPE_CHECKING:
    import torch

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
"""The names of dtypes in the header of a safetensors file, and torch's."""


@names_arguments
def load_file(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read a state dict with direct I/O: a safetensors file, a file of ``torch.save``, or shards with an index.

    A cold file loads about as fast as the disk can read. A file that is in the page cache is read from the disk
    nevertheless, and loads faster with the library's own call. `dsexplore.aio.loading` measures both::

        model.load_state_dict(dsexplore.aio.load_file("model.safetensors"), assign=True)

    Tensors are on the CPU and share the memory that their file was read into. No pickled code is run: files of
    ``torch.save`` are read as by ``torch.load(weights_only=True)``.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: no checkpoint, one of ``torch.distributed.checkpoint``, or a file that holds no dict.
        OSError: the disk fails.

    Examples:
        >>> dsexplore.aio.save_file({"weight": torch.ones(2, 3)}, "model.safetensors")
        >>> dsexplore.aio.load_file("model.safetensors")["weight"].shape
        torch.Size([2, 3])
    """
    checkpoint = find_checkpoint(path)
    if checkpoint.kind == "DCP":
        raise UsageError(f"{path} is a checkpoint of torch.distributed.checkpoint: load it with its load()")
    loaded: dict[str, object] = {}
    with aio_handle.from_config(NEAR_LIMIT) as handle:
        for file in checkpoint.files:
            loaded.update(read_tensors(handle, checkpoint, file))
    return loaded


def read_tensors(handle: aio_handle, checkpoint: Checkpoint, file: Path) -> Mapping[str, object]:
    """Read one file of a checkpoint; the tensors share the memory that it was read into."""
    import torch

    memory = Buffer(file.stat().st_size)
    handle.sync_pread(memory, file)
    if checkpoint.kind == "safetensors":
        return _safetensors(file, memory)
    loaded = torch.load(io.BufferedReader(_MemoryFile(memory)), map_location="cpu", weights_only=True)
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{file} holds a {type(loaded).__name__}, not a dict of tensors: load it with torch.load")
    return loaded


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """Return the entries of a safetensors file by name, and the position of the first tensor's bytes."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > file.stat().st_size - 8:
            raise UsageError(f"{file} is not a whole safetensors file: its header has {length} bytes")
        try:
            entries = json.loads(opened.read(length))
        except ValueError as error:
            raise UsageError(f"{file} is not a safetensors file: its header is not JSON ({error})") from None
    entries.pop("__metadata__", None)
    return entries, 8 + length


def torch_dtype(name: str, file: Path) -> torch.dtype:
    """Return the dtype that a safetensors header names.

    Raises:
        UsageError: this torch has no such dtype.
    """
    import torch

    dtype = getattr(torch, _DTYPES.get(name, ""), None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"{file}: dtype {name} is not known to this torch: load it with safetensors.torch.load_file")
    return dtype


def name_of_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype in the header of a safetensors file.

    Raises:
        UsageError: safetensors has no name for it.
    """
    word = str(dtype).removeprefix("torch.")
    for name, its in _DTYPES.items():
        if its == word:
            return name
    raise UsageError(f"safetensors has no name for {dtype}: convert the tensor, or save it with torch.save")


def _safetensors(file: Path, memory: Buffer) -> dict[str, object]:
    import torch

    entries, origin = header_of(file)
    whole = torch.from_numpy(memory.bytes)
    tensors: dict[str, object] = {}
    for name, entry in entries.items():
        begin, end = (origin + at for at in entry["data_offsets"])
        dtype = torch_dtype(entry["dtype"], file)
        part = whole[begin:end]
        if begin % dtype.itemsize:  # a view of it would not be aligned
            part = part.clone()
        tensors[name] = part.view(dtype).view(entry["shape"])
    return tensors


class _MemoryFile(io.RawIOBase):
    """A file held in a buffer, which ``readinto`` copies once."""

    def __init__(self, memory: Buffer) -> None:
        self._bytes, self._at = memory.bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._bytes)}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, into: Any) -> int:
        target = np.frombuffer(memoryview(into).cast("B"), np.uint8)
        part = self._bytes[self._at : self._at + len(target)]
        target[: len(part)] = part
        self._at += len(part)
        return len(part)

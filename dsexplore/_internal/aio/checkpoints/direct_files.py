"""Read and write files of tensors with direct I/O: past the page cache, with many requests in flight."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint, find_checkpoint
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.transfer_file import make_durable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.tensor_memory import storage_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

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
"""{name of a dtype in the header of a safetensors file: torch's name}."""


@names_arguments
def load_file(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read a state dict with direct I/O: a safetensors file, a file of ``torch.save``, or shards with an index.

    A cold file loads about as fast as the disk can read. A file that is in the page cache is read from the disk, too,
    and loads faster with the library's own call. `dsexplore.aio.loading` measures both::

        model.load_state_dict(dsexplore.aio.load_file("model.safetensors"), assign=True)

    Tensors are on the CPU and share the memory that their file was read into. No pickled code is run: files of
    ``torch.save`` are read as ``torch.load(weights_only=True)`` reads them.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: not a checkpoint, one of ``torch.distributed.checkpoint``, or a file that holds no dict.
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
    torch_name = str(dtype).removeprefix("torch.")
    for name, known_name in _DTYPES.items():
        if known_name == torch_name:
            return name
    raise UsageError(f"safetensors has no name for {dtype}: convert the tensor, or save it with torch.save")


def _safetensors(file: Path, memory: Buffer) -> dict[str, object]:
    """Return the tensors of a safetensors file that was read into a buffer."""
    import torch

    entries, origin = header_of(file)
    file_bytes = torch.from_numpy(memory.bytes)
    tensors: dict[str, object] = {}
    for name, entry in entries.items():
        begin, end = (origin + offset for offset in entry["data_offsets"])
        dtype = torch_dtype(entry["dtype"], file)
        tensor_bytes = file_bytes[begin:end]
        if begin % dtype.itemsize:  # a view would not be aligned
            tensor_bytes = tensor_bytes.clone()
        tensors[name] = tensor_bytes.view(dtype).view(entry["shape"])
    return tensors


class _MemoryFile(io.RawIOBase):
    """A file whose bytes are in a buffer; ``readinto`` copies them once."""

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
        source = self._bytes[self._at : self._at + len(target)]
        target[: len(source)] = source
        self._at += len(source)
        return len(source)


_PIECE = 32 << 20
"""Bytes that are written at a time, while the next ones are copied."""


@names_arguments
def save_file(tensors: Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write tensors to a safetensors file with direct I/O, and return when every byte is on the disk.

    The page cache stays free for other data, and the disk is busy from the first byte on. An existing file is replaced
    once the new one is complete::

        dsexplore.aio.save_file(model.state_dict(), "/nvme/step1000.safetensors")

    Tensors on other devices are copied to the CPU one at a time. A tensor with two names is written twice.

    Raises:
        UsageError: a value that is not a tensor, a tensor without memory, or a dtype that safetensors does not have.
        OSError: the disk fails, or is full; an existing file stays as it was.

    Examples:
        >>> dsexplore.aio.save_file({"weight": torch.ones(2, 3)}, "model.safetensors")
        >>> Path("model.safetensors").exists()
        True
    """
    target = Path(path)
    header, contents = _layout(tensors)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(b"")  # a killed process with the same number may have left a longer file
        with aio_handle.from_config(NEAR_LIMIT) as handle:
            _write(handle, unfinished, header, contents)
        _make_durable(unfinished)
        unfinished.replace(target)
        _make_durable(target.parent)  # the file's new name
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _make_durable(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        make_durable(fd)
    finally:
        os.close(fd)


def _layout(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, list[torch.Tensor]]:
    """Return the header of the file, and the tensors in the order in the file: the widest dtypes first."""
    import torch

    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"{name!r} is {type(tensor).__name__}: a safetensors file holds tensors alone")
        storage_of(tensor)
    names = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    entries: dict[str, object] = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        span = [at, at + tensor.nbytes]
        entries[name] = {"dtype": name_of_dtype(tensor.dtype), "shape": list(tensor.shape), "data_offsets": span}
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned in the file
    return len(text).to_bytes(8, "little") + text, [tensors[name] for name in names]


def _write(handle: aio_handle, path: Path, header: bytes, contents: list[torch.Tensor]) -> None:
    """Write header and tensors through two buffers in turn: one is written while the other is filled."""
    total = len(header) + sum(tensor.nbytes for tensor in contents)
    piece = min(_PIECE, -(-total // PAGE) * PAGE)
    buffers = [Buffer(piece).populate(), Buffer(piece).populate()]
    turn = used = at = 0  # buffer to fill, its used bytes, and their position in the file
    is_writing = False
    for source in (np.frombuffer(header, np.uint8), *_bytes_of(contents)):
        begin = 0
        while begin < len(source):
            count = min(piece - used, len(source) - begin)
            buffers[turn].bytes[used : used + count] = source[begin : begin + count]
            begin, used = begin + count, used + count
            if used == piece:
                if is_writing:
                    handle.wait()
                handle.async_pwrite(buffers[turn], path, at)
                is_writing = True
                turn, used, at = 1 - turn, 0, at + piece
    if is_writing:
        handle.wait()
    if used:
        handle.sync_pwrite(buffers[turn].bytes[:used], path, at)


def _bytes_of(contents: list[torch.Tensor]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of each tensor on the CPU; tensors without elements are omitted."""
    import torch

    for tensor in contents:
        if tensor.numel():
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

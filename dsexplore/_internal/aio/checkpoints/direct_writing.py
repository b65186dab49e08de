"""Tensors written with direct I/O as a safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.aio.checkpoints.direct_reading import name_of_dtype
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.transfer_file import make_durable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.tensor_memory import storage_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

_PIECE = 32 << 20
"""Bytes that are written at a time, while the next ones are copied."""


@names_arguments
def save_file(tensors: Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write tensors to a safetensors file with direct I/O, and return when every byte is on the disk.

    The page cache stays free for data, and the disk is busy from the first byte on. A file of that name is replaced
    once the new one is whole::

        dsexplore.aio.save_file(model.state_dict(), "/nvme/step1000.safetensors")

    Tensors on other devices are copied to the CPU one at a time. Two names of one tensor are written twice.

    Raises:
        UsageError: a value that is not a tensor, a tensor without memory, or a dtype that safetensors has no name for.
        OSError: the disk fails, or is full; the file of that name stays as it was.

    Examples:
        >>> dsexplore.aio.save_file({"weight": torch.ones(2, 3)}, "model.safetensors")
        >>> Path("model.safetensors").exists()
        True
    """
    target = Path(path)
    header, contents = _laid_out(tensors)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(b"")  # what a process of this number left when it was killed may be longer
        with aio_handle.from_config(NEAR_LIMIT) as handle:
            _write(handle, unfinished, header, contents)
        _make_durable(unfinished)
        unfinished.replace(target)
        _make_durable(target.parent)  # its new name
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _make_durable(path: Path) -> None:
    """Wait until the disk has a file's bytes, or a folder's names."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        make_durable(fd)
    finally:
        os.close(fd)


def _laid_out(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, list[torch.Tensor]]:
    """Return the header of the file, and the tensors in the order of their bytes: the widest dtypes first."""
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
    """Copy header and tensors through two buffers in turn: one is written while the other is filled."""
    import numpy as np

    total = len(header) + sum(tensor.nbytes for tensor in contents)
    piece = min(_PIECE, -(-total // PAGE) * PAGE)
    buffers = [Buffer(piece).populate(), Buffer(piece).populate()]
    turn = used = at = 0
    is_writing = False
    for part in (np.frombuffer(header, np.uint8), *_bytes_of(contents)):
        begin = 0
        while begin < len(part):
            count = min(piece - used, len(part) - begin)
            buffers[turn].bytes[used : used + count] = part[begin : begin + count]
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
    import torch

    for tensor in contents:
        if tensor.numel():
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

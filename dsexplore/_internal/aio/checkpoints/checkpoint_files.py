"""The files of a checkpoint in three formats: find them under a path, and save a model's state dict."""

from __future__ import annotations

import json
import os
import pickle
import warnings
import zipfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dsexplore._internal.errors import UsageError
from dsexplore._internal.tensor_memory import storage_of

if TYPE_CHECKING:
    import torch
    from torch import nn

Kind = Literal["safetensors", "torch.save", "DCP"]
KINDS: tuple[Kind, ...] = ("safetensors", "torch.save", "DCP")

_SUFFIXES: dict[str, Kind] = {
    ".safetensors": "safetensors",
    ".bin": "torch.save",
    ".pt": "torch.save",
    ".pth": "torch.save",
    ".ckpt": "torch.save",
}
_INDEX = ".index.json"
_PICKLE_START = pickle.PROTO
"""First byte of a pickle."""


@dataclass(frozen=True)
class Checkpoint:
    """Files that hold one state dict."""

    path: Path
    """Path that the caller passed: a file, an index, or a folder."""
    kind: Kind
    """Format of the files."""
    files: tuple[Path, ...]
    """Files to read, in order."""
    sizes: tuple[int, ...]
    """Bytes of each file."""
    left_out: int = 0
    """Number of further files that are not read."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)

    @property
    def is_zip(self) -> bool:
        """True if all files are zip files, which can be mapped; ``torch.save`` writes them since torch 1.6."""
        return all(map(zipfile.is_zipfile, self.files))


def find_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint at a path.

    Args:
        path: a ``.safetensors`` file, a file of ``torch.save``, the ``…index.json`` of shards, or a folder with one of
            these, or with a checkpoint of ``torch.distributed.checkpoint``.

    Raises:
        FileNotFoundError: there is no such path, or a shard that the index names is missing.
        UsageError: the path holds no checkpoint, or several.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    if path.is_dir():
        return _folder_checkpoint(path)
    if path.name.endswith(_INDEX):
        return _checkpoint_of(path, _shards(path))
    return _checkpoint_of(path, [path])


def first_files(checkpoint: Checkpoint, most: int) -> Checkpoint:
    """Return the checkpoint with its first files alone, as many as hold up to `most` bytes together, at least one.

    A DCP folder stays whole, because each of its files may hold a piece of any tensor.
    """
    count = total = 0
    for size in checkpoint.sizes:
        total += size
        if count and total > most:
            break
        count += 1
    if checkpoint.kind == "DCP" or count == len(checkpoint.files):
        return checkpoint
    return replace(
        checkpoint,
        files=checkpoint.files[:count],
        sizes=checkpoint.sizes[:count],
        left_out=len(checkpoint.files) - count,
    )


def _folder_checkpoint(folder: Path) -> Checkpoint:
    """Return the only checkpoint in a folder; raise UsageError if there is none, or several."""
    if (folder / ".metadata").is_file():
        files = sorted(folder.glob("*.distcp"))
        return Checkpoint(folder, kind="DCP", files=tuple(files), sizes=_sizes(files))
    indices = sorted(folder.glob(f"*{_INDEX}"))
    if len(indices) > 1:  # of the same shards in two formats, safetensors are read
        safetensors = [index for index in indices if ".safetensors" in index.name]
        indices = safetensors if len(safetensors) == 1 else indices
    if len(indices) == 1:
        return _checkpoint_of(folder, _shards(indices[0]))
    files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    kinds = {_SUFFIXES[file.suffix] for file in files}
    if len(indices) > 1 or len(kinds) > 1 or (len(files) > 1 and kinds == {"torch.save"}):
        names = ", ".join(file.name for file in (indices or files)[:4])
        raise UsageError(f"{folder} holds several checkpoints ({names}): name one of them")
    if not files:
        raise UsageError(
            f"{folder} holds no checkpoint: give a .safetensors file, a file of torch.save, the .index.json of "
            "shards, or a folder that torch.distributed.checkpoint.save wrote"
        )
    return _checkpoint_of(folder, files)


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{index} is not an index of shards, which has a 'weight_map' of names to files: {error}"
        ) from None
    files = [index.parent / str(name) for name in names]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing}: {index.name} names this shard, and it is not there")
    return files


def _checkpoint_of(path: Path, files: list[Path]) -> Checkpoint:
    """Return the checkpoint in these files; raise UsageError if their formats differ."""
    kinds = {_kind_of(file) for file in files}
    if len(kinds) != 1:
        raise UsageError(f"{path} names files of several kinds ({', '.join(sorted(kinds))}): give those of one kind")
    return Checkpoint(path, kind=kinds.pop(), files=tuple(files), sizes=_sizes(files))


def _kind_of(file: Path) -> Kind:
    """Return the format of a file by its first bytes, whatever its name."""
    with file.open("rb") as opened:
        start = opened.read(9)
    if start[8:9] == b"{":  # the header's length in eight bytes, then its JSON
        return "safetensors"
    if start[:4] == b"PK\x03\x04" or start[:1] == _PICKLE_START:
        return "torch.save"
    raise UsageError(
        f"{file} is not a checkpoint that is known: it begins neither as safetensors nor as torch.save. Of a folder "
        "that torch.distributed.checkpoint wrote, give the folder"
    )


def _sizes(files: list[Path]) -> tuple[int, ...]:
    return tuple(file.stat().st_size for file in files)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a model's state dict on the CPU; of tensors that share their memory, only the first.

    Raises:
        UsageError: not a model, or its tensors have no memory.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{type(model).__name__} is neither a path nor a model: give the path of a checkpoint")
    state: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        memory = storage_of(tensor).data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()
        if memory not in seen or not tensor.numel():
            state[name] = tensor.detach().cpu().contiguous()
        seen.add(memory)
    if not state:
        raise UsageError(f"{type(model).__name__} has no parameters, so its checkpoint holds nothing")
    return state


def why_not_saved(kind: Kind) -> str | None:
    """Return why a format cannot be saved here; None if it can."""
    if kind == "safetensors" and find_spec("safetensors") is None:
        return "safetensors is not installed"
    return None


def save_as(kind: Kind, state: dict[str, torch.Tensor], folder: Path) -> Path:
    """Save a state dict in a folder and return the checkpoint's path."""
    if kind == "safetensors":
        from safetensors.torch import save_file

        target = folder / "model.safetensors"
        save_file(state, target)
        return target
    if kind == "torch.save":
        import torch

        target = folder / "model.pt"
        torch.save(state, target)
        return target
    from torch.distributed.checkpoint.state_dict_saver import save

    target = folder / "dcp"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        save(dict(state), checkpoint_id=target, no_dist=True)
    return target

"""A model's state dict saved in the formats that people use."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore._internal.aio.checkpoints.checkpoint_files import Kind
from dsexplore._internal.errors import UsageError
from dsexplore._internal.tensor_memory import storage_of

if TYPE_CHECKING:
    import torch
    from torch import nn


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a model's state dict on the CPU, each shared one once.

    Raises:
        UsageError: no model, or one whose tensors have no memory here.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{type(model).__name__} is neither a path nor a model: give the path of a checkpoint")
    state: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        place = storage_of(tensor).data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()
        if place not in seen or not tensor.numel():
            state[name] = tensor.detach().cpu().contiguous()
        seen.add(place)
    if not state:
        raise UsageError(f"{type(model).__name__} has no parameters, so its checkpoint holds nothing")
    return state


def why_not_saved(kind: Kind) -> str | None:
    """Return why a format cannot be saved here; None if it can."""
    return "safetensors is not installed" if kind == "safetensors" and find_spec("safetensors") is None else None


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

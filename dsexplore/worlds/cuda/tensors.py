"""Calls of `torch.Tensor` that pass by every function mode: tensors made of another one's memory, as parameters are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsexplore.worlds.cuda.marks import CPU, mark
from dsexplore.worlds.patches import Patches


def patch_tensors(patches: Patches) -> None:
    """Change the calls of `torch.Tensor` that no function mode sees."""
    make: Callable[..., Tensor] = Tensor._make_subclass
    wrap: Callable[..., Tensor] = Tensor._make_wrapper_subclass

    def make_subclass(cls: type, data: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = make(cls, data, *args, **kwargs)
        mark(made, data._dsexplore_cuda_device)  # type: ignore[attr-defined]
        return made

    def make_wrapper(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda":
            return wrap(cls, *args, device=device, **kwargs)
        made = wrap(cls, *args, device=CPU, **kwargs)
        mark(made, torch.device(device))
        return made

    patches.attribute(Tensor, "_make_subclass", staticmethod(make_subclass))
    patches.attribute(Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper))
    # torch reads the arguments before a mode sees the call, and our streams are none to it.
    patches.attribute(Tensor, "record_stream", lambda tensor, stream: None)

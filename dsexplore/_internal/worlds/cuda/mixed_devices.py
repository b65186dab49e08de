"""The error of a GPU where an op gets tensors on different devices, and the CPU that stands in would compute it.

It is raised for what programs forget to move: a batch, targets, a mask, a module. So the tensor that is elsewhere must
be one that no op with a gradient made, outside of backward and ``torch.func``: tensors that C++ hands to Python there
carry no device, and would pass for tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.autograd import current_graph_task, functorch_level
from dsexplore._internal.torch_internals.dispatch import OpOverload, OpOverloadPacket
from dsexplore._internal.worlds.cuda.device_marks import PLAIN_CLASSES

_MAY_MIX = frozenset(
    (
        *(Tensor.__getitem__, Tensor.index_put, torch.index_put),  # indices may be on the CPU
        *(Tensor.view_as, Tensor.expand_as, Tensor.reshape_as),  # the other's shape alone
        *(Tensor.new_tensor, Tensor.new_full, torch.full_like, torch.tensor, torch.as_tensor),  # data is copied
        *(torch.nn.functional.ctc_loss, torch.ctc_loss),  # lengths are on the CPU
    )
)


def refuse_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, device: torch.device) -> None:
    """Raise torch's error if an op that computes on a CUDA device got a tensor that is elsewhere.

    Args:
        func: the op.
        args: its arguments.
        kwargs: its keyword arguments.
        device: the first CUDA device that its tensors carry.

    Raises:
        RuntimeError: as torch words it.
    """
    for arg in args if not kwargs else (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            if arg._dsexplore_cuda_device is not device:  # type: ignore[attr-defined]
                _check(func, (arg,), device)
        elif type(arg) in (list, tuple):
            _check(func, arg, device)


def _check(func: Any, tensors: Iterable[Any], device: torch.device) -> None:
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or type(tensor) not in PLAIN_CLASSES or not tensor.dim():
            continue
        other: torch.device = tensor._dsexplore_cuda_device or tensor.device  # type: ignore[attr-defined]
        if other == device or other.type == "meta" or _is_excused(func, tensor):
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device} and {other}!"
        )


def _is_excused(func: Any, tensor: Tensor) -> bool:
    """Return True if an op takes tensors of several devices, or the device of a tensor is not known for sure."""
    return func in _MAY_MIX or isinstance(func, (OpOverload, OpOverloadPacket)) or is_device_unsure(tensor)


def is_device_unsure(tensor: Tensor) -> bool:
    """Return True if a tensor without a recorded device may be on a GPU.

    It may be if an op with a gradient made it, in backward or in ``torch.func``.
    """
    return tensor.grad_fn is not None or current_graph_task() != -1 or functorch_level() is not None

"""The error of a GPU where an op gets tensors on different devices, and the CPU that stands in would compute it.

Raised is for what scripts forget to move: a batch, targets, a mask, a module. So the tensor that is elsewhere must be
one that no op with a gradient made, outside of backward and ``torch.func``: tensors that C++ hands to Python there have
no mark, and would be taken to be on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from dsexplore.worlds.cuda.device_marks import PLAIN

_MAY_MIX = frozenset(
    (
        *(Tensor.__getitem__, Tensor.index_put, torch.index_put),  # indices may be on the CPU
        *(Tensor.view_as, Tensor.expand_as, Tensor.reshape_as, Tensor.type_as),  # the other's shape or type alone
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
        device: the device of the first of its tensors that is believed to be on one.

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
        if not isinstance(tensor, Tensor) or type(tensor) not in PLAIN or not tensor.dim():
            continue
        where: torch.device = tensor._dsexplore_cuda_device or tensor.device  # type: ignore[attr-defined]
        if where == device or where.type == "meta" or _is_excused(func, tensor):
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device} and {where}!"
        )


def _is_excused(func: Any, tensor: Tensor) -> bool:
    """Whether an op takes tensors of several devices, or the device of a tensor is not known for sure."""
    return func in _MAY_MIX or isinstance(func, (OpOverload, OpOverloadPacket)) or is_device_unsure(tensor)


def is_device_unsure(tensor: Tensor) -> bool:
    """Whether a tensor without a mark may be on a GPU: made by an op with a gradient, in backward or ``torch.func``."""
    return (
        tensor.grad_fn is not None
        or torch._C._current_graph_task_id() != -1
        or torch._C._functorch.peek_interpreter_stack() is not None
    )

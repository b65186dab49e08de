"""torch's error for an op of tensors on different devices, which the CPU would compute without complaint.

It is for tensors that programs forget to move: a batch, targets, a mask, a module. Results of ops with a gradient, and
tensors in backward and in ``torch.func``, are not checked: C++ hands tensors to Python there that carry no device,
although they belong to a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.autograd import functorch_level, is_in_backward
from dsexplore._internal.torch_internals.dispatch import OpOverload, OpOverloadPacket
from dsexplore._internal.worlds.cuda.device_marks import PLAIN_CLASSES

_MIXING = frozenset(
    (
        *(Tensor.__getitem__, Tensor.index_put, torch.index_put),  # indices may be on the CPU
        *(Tensor.view_as, Tensor.expand_as, Tensor.reshape_as),  # they read only the other tensor's shape
        *(Tensor.new_tensor, Tensor.new_full, torch.full_like, torch.tensor, torch.as_tensor),  # data is copied
        *(torch.nn.functional.ctc_loss, torch.ctc_loss),  # lengths are on the CPU
    )
)
"""Functions that take tensors of several devices."""


def refuse_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, device: torch.device) -> None:
    """Raise torch's error if an op on a CUDA device got a tensor that is on another device.

    Args:
        func: function of torch that computes the op.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call; None for no arguments.
        device: first CUDA device among the tensors of the call.

    Raises:
        RuntimeError: a tensor is on another device; the message is torch's.
    """
    if kwargs:
        args = (*args, *kwargs.values())
    for arg in args:
        if isinstance(arg, Tensor):
            if arg._dsexplore_cuda_device is not device:  # type: ignore[attr-defined]
                _check(func, (arg,), device)
        elif type(arg) in (list, tuple):
            _check(func, arg, device)


def _check(func: Any, tensors: Iterable[Any], device: torch.device) -> None:
    """Raise if one of the tensors is certainly on another device, and the function does not allow that."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or type(tensor) not in PLAIN_CLASSES or not tensor.dim():
            continue
        other: torch.device = tensor._dsexplore_cuda_device or tensor.device  # type: ignore[attr-defined]
        if other == device or other.type == "meta" or _takes_any_device(func) or is_device_unsure(tensor):
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device} and {other}!"
        )


def _takes_any_device(func: Any) -> bool:
    return func in _MIXING or isinstance(func, (OpOverload, OpOverloadPacket))


def is_device_unsure(tensor: Tensor) -> bool:
    """Return True if a tensor without a recorded device may be on a GPU.

    It may be if an op with a gradient made it, in backward or in ``torch.func``.
    """
    return tensor.grad_fn is not None or is_in_backward() or functorch_level() is not None

"""The error of NCCL for a tensor on the CPU, which a world in which the CPU stands in for GPUs would send.

Raised is for what a script forgot to move, in calls that the script or a package of its own makes: torch's own calls
send tensors that C++ may have handed to it, which have no mark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from dsexplore.torch_internals.patches import Patches, is_jump
from dsexplore.worlds.cuda.device_marks import PLAIN
from dsexplore.worlds.cuda.mixed_devices import is_device_unsure

NCCL_ALONE = frozenset(("nccl", "cuda:nccl"))
"""Names of backends with which a group sends no tensor that is on the CPU."""

BackendOf = Callable[[dist.ProcessGroup | None], str | None]
"""Returns the backend that the program chose for a group, in lower case; None where it chose none, and torch would open
gloo for the CPU beside NCCL."""

_DECORATORS = ("torch.distributed.c10d_logger", "torch.overrides", "typing_extensions", "warnings", "dsexplore.")
"""Modules whose frames may lie between a function of ``torch.distributed`` and the one that called it."""


def patch_sent_tensors(patches: Patches, backend_of: BackendOf) -> None:
    """Make collectives and messages of tensors on the CPU raise in groups that have NCCL alone.

    Args:
        patches: where the changes are kept.
        backend_of: see `BackendOf`.
    """
    check_one, check_list = c10d._check_single_tensor, c10d._check_tensor_list

    def check_single_tensor(param: Any, param_name: str) -> None:
        check_one(param, param_name)
        _refuse_cpu((param,), param_name, sys._getframe(1), backend_of)

    def check_tensor_list(param: Any, param_name: str) -> None:
        check_list(param, param_name)
        _refuse_cpu(param, param_name, sys._getframe(1), backend_of)

    patches.attribute(c10d, "_check_single_tensor", check_single_tensor)
    patches.attribute(c10d, "_check_tensor_list", check_tensor_list)


def _refuse_cpu(tensors: Iterable[Tensor], name: str, frame: FrameType, backend_of: BackendOf) -> None:
    """Raise if one of the tensors that a function of ``torch.distributed`` checks, in this frame, cannot be sent."""
    tensor = next(filter(_is_on_cpu, tensors), None)
    if tensor is None or backend_of(frame.f_locals.get("group")) not in NCCL_ALONE:
        return
    op = _called_by_program(frame)
    if op is not None:
        raise RuntimeError(
            f"No backend type associated with device type cpu: {op} got a tensor of shape {tuple(tensor.shape)} on "
            f"the CPU as {name}, and nccl, which the program chose for this group, sends from GPUs alone: move the "
            'tensor to the GPU, or choose "cpu:gloo,cuda:nccl"'
        )


def _is_on_cpu(tensor: Tensor) -> bool:
    return (
        tensor._dsexplore_cuda_device is None  # type: ignore[attr-defined]
        and type(tensor) in PLAIN
        and tensor.device.type == "cpu"
        and not is_device_unsure(tensor)
    )


def _called_by_program(frame: FrameType) -> str | None:
    """The function of ``torch.distributed`` that the program, or a package, called to come to this frame of it; None
    where torch called it, and for a function of objects, which torch makes tensors of."""
    names = []
    caller: FrameType | None = frame
    while caller is not None:
        module = caller.f_globals.get("__name__", "")
        if module == c10d.__name__:
            if not is_jump(caller.f_code):
                names.append(caller.f_code.co_name)
        elif not module.startswith(_DECORATORS):
            break
        caller = caller.f_back
    by_torch = caller is None or module.startswith("torch.")
    # A P2POp, which `__new__` makes, is not sent yet: its send or receive checks the tensor again.
    return None if by_torch or any("object" in name or name == "__new__" for name in names) else names[-1]

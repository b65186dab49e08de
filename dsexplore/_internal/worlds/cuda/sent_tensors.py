"""torch's error for a CPU tensor that a program sends with NCCL because it forgot to move it to the GPU.

Without this check, a simulated world would send the tensor. The error is raised only for calls by the program or a
third-party package: torch itself may send tensors created in C++, which have no mark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, is_jump
from dsexplore._internal.torch_internals.process_groups import CHECK_TENSOR, CHECK_TENSOR_LIST
from dsexplore._internal.worlds.cuda.device_marks import PLAIN_CLASSES
from dsexplore._internal.worlds.cuda.mixed_devices import is_device_unsure

NCCL_ALONE = frozenset(("nccl", "cuda:nccl"))
"""Names of backends whose groups send no CPU tensors."""
_DECORATORS = ("torch.distributed.c10d_logger", "torch.overrides", "typing_extensions", "warnings", "dsexplore.")
"""Modules whose frames may lie between a function of ``torch.distributed`` and its caller."""


class ChosenBackends:
    """The backends that a program chose for its groups.

    Args:
        backend_of: returns the backend that the program chose for a group, in lower case; None if it chose none:
            torch would then use gloo for CPU tensors.
    """

    def __init__(self, backend_of: Callable[[dist.ProcessGroup | None], str | None] = lambda group: None) -> None:
        self._backend_of = backend_of

    def are_nccl_alone(self, group: dist.ProcessGroup | None) -> bool:
        """Return True if a group sends no CPU tensors."""
        return self._backend_of(group) in NCCL_ALONE


def _check(original: Callable[[Any, str], None], parts: Parts) -> Callable[[Any, str], None]:
    """Wrap torch's check of an argument, a tensor or a list of tensors, to refuse CPU tensors too."""
    backends = parts[ChosenBackends]

    def check(param: Any, param_name: str) -> None:
        original(param, param_name)
        tensors = (param,) if isinstance(param, Tensor) else param
        _refuse_cpu(tensors, param_name, sys._getframe(1), backends)

    return check


def _refuse_cpu(tensors: Iterable[Tensor], name: str, frame: FrameType, backends: ChosenBackends) -> None:
    """Raise if one of the tensors passed to a function of ``torch.distributed`` is a CPU tensor of an NCCL group.

    Args:
        tensors: tensors that the function sends or receives.
        name: name of its argument, for the error.
        frame: frame of the function.
        backends: the backends of the groups.
    """
    tensor = next(filter(_is_on_cpu, tensors), None)
    if tensor is None or not backends.are_nccl_alone(frame.f_locals.get("group")):
        return
    op = _called_by_program(frame)
    if op is not None:
        raise RuntimeError(
            f"No backend type associated with device type cpu: the {name} of {op} is a CPU tensor of shape "
            f"{tuple(tensor.shape)}, and the backend of this group, nccl, sends GPU tensors only: move the "
            'tensor to the GPU, or choose the backend "cpu:gloo,cuda:nccl"'
        )


def _is_on_cpu(tensor: Tensor) -> bool:
    return (
        tensor._dsexplore_cuda_device is None  # type: ignore[attr-defined]
        and type(tensor) in PLAIN_CLASSES
        and tensor.device.type == "cpu"
        and not is_device_unsure(tensor)
    )


def _called_by_program(frame: FrameType) -> str | None:
    """Return the function of ``torch.distributed`` through which the program, or a package, reached this frame.

    Returns:
        Name of the function; None if torch called it, or if it sends objects, which torch turns into tensors.
    """
    names = []
    caller: FrameType | None = frame
    while caller is not None:
        module = caller.f_globals.get("__name__", "")
        if module == distributed_c10d.__name__:
            if not is_jump(caller.f_code):
                names.append(caller.f_code.co_name)
        elif not module.startswith(_DECORATORS):
            break
        caller = caller.f_back
    if caller is None or module.startswith("torch."):
        return None
    # P2POp.__new__ sends nothing yet; the send or receive checks the tensor again.
    if any("object" in name or name == "__new__" for name in names):
        return None
    return names[-1]


PATCHES: tuple[Entry, ...] = tuple(
    Patch(target, "the backend here sends tensors on the CPU, and NCCL does not", _check, when="cuda device")
    for target in (CHECK_TENSOR, CHECK_TENSOR_LIST)
)

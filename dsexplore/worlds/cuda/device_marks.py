"""The CUDA device that a script believes a tensor to be on: remembered on the tensor itself.

All memory is the CPU's. A tensor that the script made on, or moved to, ``cuda`` carries that device in an attribute;
a tensor without one is on the CPU for the script too. A DTensor is on the device of its mesh, on ``meta`` as long as it
has no memory, or on the CPU where it carries the CPU as its mark: the script moved it there, or FSDP offloads it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from dsexplore.torch_internals.patches import Patches

ATTRIBUTE = "_dsexplore_cuda_device"
CPU = torch.device("cpu")
PLAIN = frozenset((Tensor, torch.nn.Parameter, FakeTensor))
"""The classes of tensors that hold their own data."""
_CONTAINERS = (tuple, list)
_any = False
"""Whether any tensor got a mark since the marks were last removed."""


def patch_marks(patches: Patches) -> None:
    """Give every tensor the attribute, as None, and keep marks out of what is pickled; undoing removes all marks."""
    patches.callback(_remove_all)
    patches.attribute(Tensor, ATTRIBUTE, None)
    patches.function(torch._utils._get_obj_state, _without_mark)


def _without_mark(original: Any) -> Any:
    def state_of(obj: Any) -> Any:
        state = original(obj)
        if isinstance(state, dict) and ATTRIBUTE in state:
            state = {name: value for name, value in state.items() if name != ATTRIBUTE}
        return state

    return state_of


def _remove_all() -> None:
    global _any
    if not _any:  # nothing was put on a device: no need to look at every object of the process
        return
    _any = False
    for tensor in tensors_alive():
        vars(tensor).pop(ATTRIBUTE, None)


def tensors_alive() -> list[Tensor]:
    """Every tensor that Python holds; finding them looks at all objects, tens of milliseconds.

    Tensors refer to their class, and asking who does takes half the time of looking at the class of each object.
    """
    kinds = {Tensor}
    found = [Tensor]
    while found:
        found = [kind for each in found for kind in each.__subclasses__() if kind not in kinds]
        kinds.update(found)
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds]


def mark(result: Any, device: torch.device | None) -> None:
    """Put a tensor, or the tensors of a list or tuple, on a device.

    Args:
        result: a tensor, a list or tuple, or what is neither and has no device.
        device: `CPU` or None for the CPU; for a DTensor None is the device of its mesh.
    """
    global _any
    if isinstance(result, Tensor):
        if device == CPU and not isinstance(result, DTensor):
            device = None
        if device is not None:
            _any = True  # other marks are handed on from tensors that have one
            result._dsexplore_cuda_device = device  # type: ignore[attr-defined]
        elif result._dsexplore_cuda_device is not None:  # type: ignore[attr-defined]
            del result._dsexplore_cuda_device  # type: ignore[attr-defined]
        if type(result) not in PLAIN:
            mark_parts(result, device)
    elif isinstance(result, _CONTAINERS):
        for each in result:
            mark(each, device)


def mark_parts(tensor: Tensor, device: torch.device | None) -> None:
    """Put the tensors that a tensor of a subclass consists of on its device: torch makes them below every function
    mode, and scripts reach for them, as for ``dtensor._local_tensor``."""
    device = None if device == CPU else device
    for part in _parts(tensor):
        if part._dsexplore_cuda_device != device:  # type: ignore[attr-defined]
            mark(part, device)


def _parts(tensor: Tensor) -> Iterable[Tensor]:
    if isinstance(tensor, DTensor):
        return (tensor._local_tensor,)
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return ()
    # Not by __tensor_flatten__, which fails on a tensor that is still being made.
    values = [*vars(tensor).values(), *(getattr(tensor, name, None) for name in _slots(type(tensor)))]
    return [value for value in values if isinstance(value, Tensor)]


def _slots(kind: type) -> tuple[str, ...]:
    """The names of a class's slots, such as the ``elem`` of torch's ``AsyncCollectiveTensor``."""
    slots = (vars(each).get("__slots__", ()) for each in kind.__mro__)
    return tuple(name for names in slots for name in ((names,) if isinstance(names, str) else names))


def marked(args: Any) -> torch.device | None:
    """The device of the first tensor with a mark among arguments, lists of tensors included; `CPU` where no tensor but
    DTensors on the CPU has one."""
    found: torch.device | None = None
    for arg in args:
        device: torch.device | None
        if isinstance(arg, Tensor):
            device = arg._dsexplore_cuda_device  # type: ignore[attr-defined]
        elif type(arg) in _CONTAINERS:
            device = marked(arg[:8])
        else:
            continue
        if device == CPU:
            found = CPU
        elif device is not None:
            return device
    return found


def device_of(tensor: Tensor, current: int) -> torch.device | None:
    """The CUDA device that a tensor is believed to be on, or None.

    Args:
        tensor: any tensor.
        current: index of the current CUDA device, for DTensors: a mesh has none.
    """
    device: torch.device | None = tensor._dsexplore_cuda_device  # type: ignore[attr-defined]
    if isinstance(tensor, DTensor):
        if device == CPU or tensor.device_mesh.device_type != "cuda" or tensor.is_meta:
            return None
        return torch.device("cuda", current)
    return device

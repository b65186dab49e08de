"""Marks: the CUDA device of a tensor as the program sees it, stored in an attribute of the tensor.

All memory is the CPU's. A tensor that the program created on ``cuda`` or moved there is marked with that device; for
the program, a tensor without a mark is on the CPU. A DTensor is on the device of its mesh unless it has a mark, which
it has if the program moved it to the CPU or FSDP offloads it. A DTensor on ``meta`` has no mark.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals.checkpoint import OBJECT_STATE
from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches

ATTRIBUTE = "_dsexplore_cuda_device"
CPU = torch.device("cpu")
PLAIN_CLASSES = frozenset((Tensor, torch.nn.Parameter, FakeTensor))
"""Classes of tensors that have no inner tensors."""
_SEQUENCES = (tuple, list)
_any_placed = False
"""True if a tensor was marked since the attributes were last removed."""
_when_placed: Callable[[], None] | None = None
"""Callback before the first tensor is marked with a CUDA device."""


def place(result: Any, device: torch.device | None) -> None:
    """Mark a tensor, or the tensors of a list or tuple, with a device.

    Args:
        result: a tensor, or a list or tuple; anything else is ignored.
        device: a CUDA device; `CPU` or None for the CPU.
    """
    global _any_placed
    if isinstance(result, Tensor):
        if _when_placed is not None and device is not None and device.type == "cuda":
            _call_when_placed()
        device = _tensor_device(result, device)
        if device is not None:
            _any_placed = True
            result._dsexplore_cuda_device = device  # type: ignore[attr-defined]
        elif result._dsexplore_cuda_device is not None:  # type: ignore[attr-defined]
            del result._dsexplore_cuda_device  # type: ignore[attr-defined]
        if type(result) not in PLAIN_CLASSES:
            place_parts(result)
    elif isinstance(result, _SEQUENCES):
        for item in result:
            place(item, device)


def when_first_placed(call: Callable[[], None]) -> None:
    """Call a function before the first tensor is marked with a CUDA device."""
    global _when_placed
    _when_placed = call


def _call_when_placed() -> None:
    global _when_placed
    call, _when_placed = _when_placed, None
    if call is not None:
        call()


def _tensor_device(tensor: Tensor, device: torch.device | None) -> torch.device | None:
    """Return the mark of a tensor on `device`: None if the tensor, or its mesh, implies the device."""
    on_cuda = device is not None and device.type == "cuda"
    if isinstance(tensor, DTensor):
        if tensor.is_meta or on_cuda == (tensor.device_mesh.device_type == "cuda"):
            return None
        return device if on_cuda else CPU
    return device if on_cuda else None


def place_parts(tensor: Tensor) -> None:
    """Mark the inner tensors of a tensor subclass with the device of the outer one.

    torch creates them below every function mode, and programs read them: a DTensor's local tensor, for example.
    """
    device = device_of(tensor)
    for part in _parts(tensor):
        if part._dsexplore_cuda_device != device:  # type: ignore[attr-defined]
            place(part, device)


def _parts(tensor: Tensor) -> Iterable[Tensor]:
    if isinstance(tensor, DTensor):
        return (local_tensor(tensor),)
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return ()
    # __tensor_flatten__ fails on a tensor that is still being created.
    values = [*vars(tensor).values(), *(getattr(tensor, name, None) for name in _slots(type(tensor)))]
    return [value for value in values if isinstance(value, Tensor)]


def _slots(kind: type) -> list[str]:
    """Return the names of a class's slots, such as the ``elem`` of torch's ``AsyncCollectiveTensor``."""
    slots: list[str] = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        slots.extend([names] if isinstance(names, str) else names)
    return slots


def device_among(args: Any) -> torch.device | None:
    """Return the first CUDA device that tensors among arguments are marked with.

    Of a list or tuple, the first eight items are looked at.

    Returns:
        The CUDA device; `CPU` if DTensors that were moved to the CPU have the only marks; None if there are no marks.
    """
    device_of_dtensors: torch.device | None = None
    for arg in args:
        device: torch.device | None
        if isinstance(arg, Tensor):
            device = arg._dsexplore_cuda_device  # type: ignore[attr-defined]
        elif type(arg) in _SEQUENCES:
            device = device_among(arg[:8])
        else:
            continue
        if device == CPU:
            device_of_dtensors = CPU
        elif device is not None:
            return device
    return device_of_dtensors


def device_of(tensor: Tensor) -> torch.device | None:
    """Return the CUDA device of a tensor as the program sees it; None if it is on another device."""
    device: torch.device | None = tensor._dsexplore_cuda_device  # type: ignore[attr-defined]
    if not isinstance(tensor, DTensor):
        return device
    if device is not None:
        return None if device == CPU else device
    if tensor.device_mesh.device_type != "cuda" or tensor.is_meta:
        return None
    return torch.device("cuda", torch.cuda.current_device())


def tensors_alive() -> list[Tensor]:
    """Return every tensor that Python holds; this takes tens of milliseconds, as it inspects all objects.

    Asking for the referrers of the tensor classes takes half the time of checking the class of each object.
    """
    classes = {Tensor}
    newest = [Tensor]
    while newest:
        newest = [subclass for base in newest for subclass in base.__subclasses__() if subclass not in classes]
        classes.update(newest)
    return [tensor for tensor in gc.get_referrers(*classes) if type(tensor) in classes]


def _give_attribute(patches: Patches, parts: Parts) -> None:
    """Give each tensor the attribute of its mark, None at first; remove all marks at the end of the block."""
    patches.callback(_remove_attributes)
    patches.attribute(Tensor, ATTRIBUTE, None)


def _remove_attributes() -> None:
    global _any_placed, _when_placed
    _when_placed = None
    if not _any_placed:  # then no object has to be inspected
        return
    _any_placed = False
    for tensor in tensors_alive():
        vars(tensor).pop(ATTRIBUTE, None)


def _drop_attribute(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Wrap ``torch._utils._get_obj_state``, which pickles and copies call, to leave out the attribute of the mark."""

    def state_of(obj: Any) -> Any:
        state = original(obj)
        if isinstance(state, dict) and ATTRIBUTE in state:
            state = {name: value for name, value in state.items() if name != ATTRIBUTE}
        return state

    return state_of


PATCHES: tuple[Entry, ...] = (
    Change(
        "an attribute of every tensor", "it holds the device that the program sees", _give_attribute, when="cuda device"
    ),
    Patch(
        OBJECT_STATE,
        "a pickle must not contain the attribute",
        _drop_attribute,
        when="cuda device",
        by_code=True,
    ),
)

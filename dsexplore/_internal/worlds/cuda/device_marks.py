"""The CUDA device of a tensor as the program sees it, kept in an attribute of the tensor.

All memory is the CPU's. A tensor that the program made on, or moved to, ``cuda`` carries that device; a tensor without
one is on the CPU for the program too. A DTensor is on the device of its mesh unless it carries another one, as those
that the program moved to the CPU or that FSDP offloads do; a DTensor without memory is on ``meta``.
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
"""The classes of tensors that hold their own data."""
_SEQUENCES = (tuple, list)
_any_placed = False
"""True if any tensor was put on a CUDA device since the attributes were last removed."""
_when_placed: Callable[[], None] | None = None
"""What to call before the first tensor is put on a CUDA device."""


def place(result: Any, device: torch.device | None) -> None:
    """Put a tensor, or the tensors of a list or tuple, on a device.

    Args:
        result: a tensor, a list or tuple, or anything else, which has no device.
        device: a CUDA device; `CPU` or None for the CPU.
    """
    global _any_placed
    if isinstance(result, Tensor):
        if _when_placed is not None and device is not None and device.type == "cuda":
            _call_when_placed()
        device = _tensor_device(result, device)
        if device is not None:
            _any_placed = True  # other devices are copied from tensors that have one
            result._dsexplore_cuda_device = device  # type: ignore[attr-defined]
        elif result._dsexplore_cuda_device is not None:  # type: ignore[attr-defined]
            del result._dsexplore_cuda_device  # type: ignore[attr-defined]
        if type(result) not in PLAIN_CLASSES:
            place_parts(result)
    elif isinstance(result, _SEQUENCES):
        for item in result:
            place(item, device)


def when_first_placed(call: Callable[[], None]) -> None:
    """Call a function before the first tensor is put on a CUDA device."""
    global _when_placed
    _when_placed = call


def _call_when_placed() -> None:
    global _when_placed
    call, _when_placed = _when_placed, None
    if call is not None:
        call()


def _tensor_device(tensor: Tensor, device: torch.device | None) -> torch.device | None:
    """Return the device to store in a tensor's attribute if the tensor is on `device`."""
    on_cuda = device is not None and device.type == "cuda"
    if isinstance(tensor, DTensor):
        if tensor.is_meta or on_cuda == (tensor.device_mesh.device_type == "cuda"):
            return None
        return device if on_cuda else CPU
    return device if on_cuda else None


def place_parts(tensor: Tensor) -> None:
    """Move the inner tensors of a tensor subclass to the device of the outer one.

    torch makes them below every function mode, and programs read them, such as a DTensor's local tensor.
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
    # Not by __tensor_flatten__, which fails on a tensor that is still being made.
    values = [*vars(tensor).values(), *(getattr(tensor, name, None) for name in _slots(type(tensor)))]
    return [value for value in values if isinstance(value, Tensor)]


def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of a class's slots, such as the ``elem`` of torch's ``AsyncCollectiveTensor``."""
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    return tuple(name for names in slots for name in ((names,) if isinstance(names, str) else names))


def device_among(args: Any) -> torch.device | None:
    """Return the first device that tensors among arguments carry, lists of tensors included.

    Returns:
        The CUDA device; `CPU` where only DTensors on the CPU carry one; None where nothing does, as on the CPU.
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
    """Return the CUDA device of a tensor as the program sees it; None where it is elsewhere."""
    device: torch.device | None = tensor._dsexplore_cuda_device  # type: ignore[attr-defined]
    if not isinstance(tensor, DTensor):
        return device
    if device is not None:
        return None if device == CPU else device
    if tensor.device_mesh.device_type != "cuda" or tensor.is_meta:
        return None
    return torch.device("cuda", torch.cuda.current_device())


def tensors_alive() -> list[Tensor]:
    """Return every tensor that Python holds; this looks at all objects, which takes tens of milliseconds.

    Tensors refer to their class, and asking who does takes half the time of looking at the class of each object.
    """
    classes = {Tensor}
    newest = [Tensor]
    while newest:
        newest = [subclass for base in newest for subclass in base.__subclasses__() if subclass not in classes]
        classes.update(newest)
    return [tensor for tensor in gc.get_referrers(*classes) if type(tensor) in classes]


def _give_attribute(patches: Patches, parts: Parts) -> None:
    patches.callback(_remove_attributes)
    patches.attribute(Tensor, ATTRIBUTE, None)


def _remove_attributes() -> None:
    global _any_placed, _when_placed
    _when_placed = None
    if not _any_placed:  # no need to look at every object of the process
        return
    _any_placed = False
    for tensor in tensors_alive():
        vars(tensor).pop(ATTRIBUTE, None)


def _drop_attribute(original: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    def state_of(obj: Any) -> Any:
        state = original(obj)
        if isinstance(state, dict) and ATTRIBUTE in state:
            state = {name: value for name, value in state.items() if name != ATTRIBUTE}
        return state

    return state_of


PATCHES: tuple[Entry, ...] = (
    Change("an attribute of every tensor", "it holds the device that the program sees", _give_attribute, "cuda device"),
    Patch(
        OBJECT_STATE,
        "what is pickled must not know of the attribute",
        _drop_attribute,
        when="cuda device",
        by_code=True,
    ),
)

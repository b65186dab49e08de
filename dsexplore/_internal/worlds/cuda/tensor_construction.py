"""Devices of tensors that torch creates or reads below every function mode.

These are parameters and other tensors made from another's memory, the parts of DTensors, fake tensors, and the block
masks of FlexAttention, which are computed under ``torch.func.vmap``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals.autograd import DESCRIBE_SAVED, SAVE_ON_CPU_INIT
from dsexplore._internal.torch_internals.cuda import CREATE_BLOCK_MASK
from dsexplore._internal.torch_internals.dtensor import DTENSOR_INIT, FROM_LOCAL, TO_LOCAL
from dsexplore._internal.torch_internals.fake_tensors import FAKE_DEVICE, FAKE_DISPATCH
from dsexplore._internal.torch_internals.function_modes import active_function_modes, is_any_function_mode_active
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.torch_internals.tensors import GROUP_BY_DEVICE, MAKE_SUBCLASS, MAKE_WRAPPER, no_torch_function
from dsexplore._internal.worlds.cuda.device_marks import CPU, device_of, place, place_parts
from dsexplore._internal.worlds.cuda.function_mode import StandInMode

_DEVICE = 6
"""Position of ``device`` among the arguments of ``_make_wrapper_subclass`` after the class."""


def _make_subclass(original: Callable[..., Tensor], parts: Parts) -> Any:
    """Wrap ``Tensor._make_subclass`` to mark the new tensor with the device of its data."""

    @wraps(original)
    def make(cls: type, data: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = original(cls, data, *args, **kwargs)
        place(made, device_of(data))
        return made

    return staticmethod(make)


def _make_wrapper(original: Callable[..., Tensor], parts: Parts) -> Any:
    """Wrap ``Tensor._make_wrapper_subclass`` to create the tensor on the CPU, and mark it with the CUDA device."""

    @wraps(original)
    def make(cls: type, *args: Any, **kwargs: Any) -> Tensor:
        device = args[_DEVICE] if len(args) > _DEVICE else kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return original(cls, *args, **kwargs)
        if len(args) > _DEVICE:
            args = (*args[:_DEVICE], CPU, *args[_DEVICE + 1 :])
        else:
            kwargs["device"] = CPU
        made = original(cls, *args, **kwargs)
        place(made, torch.device(device))
        return made

    return staticmethod(make)


def _copy_with_device(patches: Patches, parts: Parts) -> None:
    """Replace ``Tensor.__copy__`` by a method that marks the copy too."""

    def copied(self: Tensor) -> Tensor:
        made: Tensor = copy._reconstruct(self, None, *self.__reduce_ex__(4))  # type: ignore[attr-defined]
        place(made, device_of(self))
        return made

    patches.attribute(Tensor, "__copy__", copied)


def _place_parts(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``DTensor.__init__`` to mark the local tensor with the device of the DTensor."""

    @wraps(original)
    def init(self: DTensor, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        place_parts(self)

    return init


def _enter_mode(original: Callable[..., DTensor], parts: Parts) -> Any:
    """Wrap ``DTensor.from_local`` to run in the function mode, also where torch has disabled it."""
    mode = parts[StandInMode]

    @wraps(original)
    def from_local(*args: Any, **kwargs: Any) -> DTensor:
        if mode in active_function_modes():
            return original(*args, **kwargs)
        with mode:
            return original(*args, **kwargs)

    return staticmethod(from_local)


def _placed_local(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``DTensor.to_local`` to mark the local tensor with the device of the DTensor."""

    @wraps(original)
    def to_local(self: DTensor, **kwargs: Any) -> Any:
        local = original(self, **kwargs)
        place(local, device_of(self))
        return local

    return to_local


def _device_of_fake(original: property, parts: Parts) -> property:
    """Return a property that shows the CUDA device to programs, and the true device to torch's fake tensor mode.

    In backward, C++ calls the fake tensor mode while the function mode is active.
    """
    mode = parts[StandInMode]
    true_device: Callable[[Any], torch.device] = original.fget  # type: ignore[assignment] # it is not None

    def device(tensor: Any) -> torch.device:
        seen: torch.device | None = tensor._dsexplore_cuda_device
        if seen is None or not is_any_function_mode_active():
            return true_device(tensor)
        return seen if mode in active_function_modes() else true_device(tensor)

    return property(device)


def below_function_modes(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a function of torch to run below all function modes, where tensors are on the CPU."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with no_torch_function():
            return original(*args, **kwargs)

    return call


def _grouped_by_device(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap torch's grouping of tensors by device and dtype, by which foreach optimizers work, to split by marks."""

    def group(tensorlistlist: Sequence[Sequence[Any]], with_indices: bool = False) -> dict[Any, tuple[list[Any], Any]]:
        groups: dict[Any, tuple[list[Any], list[int]]] = {}
        for (device, dtype), (lists, indices) in original(tensorlistlist, with_indices).items():
            for position, tensor in enumerate(lists[0]):
                key = device_of(tensor) or device, dtype
                group_lists, group_indices = groups.setdefault(key, ([[] for _ in lists], []))
                for group_list, whole_list in zip(group_lists, lists, strict=True):
                    group_list += whole_list[position : position + 1]  # a list without tensors stays empty
                group_indices += indices[position : position + 1]
        return groups

    return group


def _skip_pinning(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``save_on_cpu.__init__`` to ignore ``pin_memory``."""

    @wraps(original)
    def init(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        original(self, False, device_type)

    return init


def _place_mask(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``create_block_mask`` to mark the tensors of the mask with the device that the call names."""
    mode, arguments = parts[StandInMode], signature(original)

    def create_block_mask(*args: Any, **kwargs: Any) -> Any:
        mask = original(*args, **kwargs)
        device = arguments.bind(*args, **kwargs).arguments.get("device")
        place([*vars(mask).values()], mode.read("cuda" if device is None else device))
        return mask

    return create_block_mask


PATCHES: tuple[Entry, ...] = (
    Change("copies of tensors", "fake tensors are copied without their mark", _copy_with_device, when="cuda device"),
    Patch(DTENSOR_INIT, "its local tensor must have the mark of the DTensor", _place_parts, when="cuda device"),
    Patch(MAKE_SUBCLASS, "no function mode sees it", _make_subclass, when="cuda device"),
    Patch(
        MAKE_WRAPPER,
        "no function mode sees it, and torch has no memory on that device",
        _make_wrapper,
        when="cuda device",
    ),
    Patch(FAKE_DEVICE, "no function mode sees it", _device_of_fake, when="cuda device"),
    Patch(FAKE_DISPATCH, "it has to see tensors on the CPU", below_function_modes, when="cuda device"),
    Patch(
        DESCRIBE_SAVED,
        "forward describes tensors below the function mode, recomputation within it",
        below_function_modes,
        when="cuda device",
        by_code=True,
    ),
    Patch(SAVE_ON_CPU_INIT, "there is no memory to pin", _skip_pinning, when="cuda device"),
    Patch(GROUP_BY_DEVICE, "C++ finds all tensors on the CPU", _grouped_by_device, when="cuda device", by_code=True),
    Patch(
        FROM_LOCAL,
        "it moves tensors to the mesh's device, also where torch has disabled the mode",
        _enter_mode,
        when="cuda device",
    ),
    Patch(TO_LOCAL, "no function mode sees it", _placed_local, when="cuda device"),
    Patch(
        CREATE_BLOCK_MASK,
        "results of torch.func have no mark",
        _place_mask,
        when="cuda device",
        by_code=True,
        on_import=True,
    ),
)

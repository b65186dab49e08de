"""Function modes: the stack of active ones, the mode of the default device, and functions that only modes reach."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from dsexplore._internal.torch_internals.names import TorchName, internal, is_there

Result = TypeVar("Result")

active_function_modes: Callable[[], list[Any]] = internal("torch.overrides:_get_current_function_mode_stack")
"""Return the function modes that are active in this thread, outermost first."""

is_any_function_mode_active: Callable[[], bool] = internal(
    "torch._C:_is_torch_function_mode_enabled", otherwise=lambda: True
)
"""Return False if no function mode is active in this thread."""

_push = internal("torch.overrides:_push_mode")
_pop = internal("torch.overrides:_pop_mode")


def remove_function_mode(mode: Any) -> None:
    """Remove a mode from this thread's stack, even if the program left other modes open above it."""
    above = []
    while mode in active_function_modes():
        top = _pop()
        if top is not mode:
            above.append(top)
    for other in reversed(above):
        _push(other)


def enter_function_mode_below(mode: Any) -> None:
    """Push a mode below all others of this thread, so that their blocks can exit in their usual order."""
    above = []
    while active_function_modes():
        above.append(_pop())
    for other in (mode, *reversed(above)):
        _push(other)


def inside_mode(mode: Any, run: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that calls `run` with a mode active, entering it if necessary.

    torch disables modes while it runs backward, so hooks and Python functions would run there without them.
    """

    def inside(*args: Any, **kwargs: Any) -> Result:
        if mode in active_function_modes():
            return run(*args, **kwargs)
        with mode:
            return run(*args, **kwargs)

    return inside


@contextmanager
def without_mode(mode: Any) -> Iterator[None]:
    """Remove a mode from this thread's stack for a block; then push it below all others again."""
    was_active = mode in active_function_modes()
    remove_function_mode(mode)
    try:
        yield
    finally:
        if was_active:
            enter_function_mode_below(mode)


takes_default_device: Callable[[], Collection[Any]] = internal(
    "torch.utils._device:_device_constructors", otherwise=tuple
)
"""Return the functions that make a tensor on the default device if they are not given one."""

_set_default = internal("torch:_GLOBAL_DEVICE_CONTEXT")


def default_device() -> torch.device:
    """Return the default device, also where torch 2.9 raises because a default was reset."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def reset_default_device() -> None:
    """Reset the default device to the CPU."""
    torch.set_default_device(None)
    if is_there(_set_default):
        vars(_set_default).pop("device_context", None)  # a None there would make torch 2.9 raise


DEFAULT_DEVICE = TorchName("torch.utils._device:DeviceContext.__torch_function__")
"""Method of the mode that ``with torch.device(...)`` and ``set_default_device`` push; the device is ``self.device``."""

parse_to: Any = internal("torch._C:_nn._parse_to")
"""Function that parses the arguments of ``module.to``."""

pack_padded_sequence: Any = internal("torch._VF:_pack_padded_sequence")
"""Function that returns data and batch sizes of a packed sequence."""

foreach_functions: tuple[Any, ...] = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_"))
"""Functions that apply one op to each tensor of a list."""

tensor_text: Callable[..., str] = internal("torch._tensor_str:_str")
"""Return the text of a tensor; function modes are not called for it."""

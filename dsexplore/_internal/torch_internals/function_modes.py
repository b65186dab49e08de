"""Function modes: the stack of those that are active in a thread, the default device's, and what only they reach."""

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
    """Remove a mode from this thread's stack, also from below modes that a program left open."""
    above = []
    while mode in active_function_modes():
        top = _pop()
        if top is not mode:
            above.append(top)
    for other in reversed(above):
        _push(other)


def enter_function_mode_below(mode: Any) -> None:
    """Push a mode below all others of this thread, so that their blocks exit as without it."""
    above = []
    while active_function_modes():
        above.append(_pop())
    for other in (mode, *reversed(above)):
        _push(other)


def inside_mode(mode: Any, run: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that calls another inside of a mode, which it enters unless it is active in this thread.

    Torch takes modes off while it runs backward, so hooks and functions of Python do not meet them there.
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
"""Return the functions that make a tensor on the default device unless given another."""

_set_default = internal("torch:_GLOBAL_DEVICE_CONTEXT")


def default_device() -> torch.device:
    """Return the default device; torch 2.9 raises once a default was reset."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def take_back_default_device() -> None:
    """Reset the default device to the CPU."""
    torch.set_default_device(None)
    if is_there(_set_default):
        vars(_set_default).pop("device_context", None)  # the None by which torch 2.9 fails


DEFAULT_DEVICE = TorchName("torch.utils._device:DeviceContext.__torch_function__")
"""The method of the mode of ``with torch.device(...)`` and ``set_default_device``; ``self.device`` is theirs."""

parse_to: Any = internal("torch._C:_nn._parse_to")
"""The function that reads the arguments of ``module.to``."""

pack_padded_sequence: Any = internal("torch._VF:_pack_padded_sequence")
"""The function that returns data and sizes of a packed sequence."""

foreach_functions: tuple[Any, ...] = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_"))
"""The functions that do the same with each tensor of a list."""

tensor_text: Callable[..., str] = internal("torch._tensor_str:_str")
"""Return the text of a tensor, without calling function modes for the text itself."""

"""`StandInMode`: the function mode that runs ``cuda`` calls on the CPU and shows the tensors as on the GPU.

Every call from Python into torch passes a `TorchFunctionMode`. Device arguments are rewritten there, and results carry
the device that the program sees (`device_marks`). Functions that need more, such as ``tensor.to`` and
``tensor.device``, have implementations in `tensor_functions`. Calls from C++, such as autograd and DDP's reducer, see
CPU tensors.

torch disables the mode while one of its functions is handled, and ``backward`` is such a function. The mode is entered
again there, so that hooks of FSDP, checkpointing and the program see the same devices as in forward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from dsexplore._internal.torch_internals.autograd import RUN_BACKWARD
from dsexplore._internal.torch_internals.function_modes import (
    DEFAULT_DEVICE,
    default_device,
    enter_function_mode_below,
    inside_mode,
    remove_function_mode,
    reset_default_device,
    takes_default_device,
)
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.torch_internals.tensors import no_torch_function
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.cuda.device_marks import CPU, PLAIN_CLASSES, device_among, device_of, place, place_parts
from dsexplore._internal.worlds.cuda.mixed_devices import refuse_mixed

Implementation = Callable[["StandInMode", Any, tuple[Any, ...], dict[str, Any]], Any]
_IMPLEMENTATIONS: dict[Any, Implementation] = {}


def implements(*functions: Any) -> Callable[[Implementation], Implementation]:
    """Register the decorated function to be called for each of ``functions`` while the mode is active."""

    def register(implementation: Implementation) -> Implementation:
        _IMPLEMENTATIONS.update(dict.fromkeys(functions, implementation))
        return implementation

    return register


class StandInMode(TorchFunctionMode):
    """Runs ``cuda`` calls on the CPU.

    Args:
        driver: holds the index of the current device.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver
        self._closed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch for a program on a GPU."""
        if self._closed:  # a thread of the program that outlived the block
            return func(*args, **(kwargs or {}))
        implementation = _IMPLEMENTATIONS.get(func)
        if implementation is not None:
            return implementation(self, func, args, kwargs or {})
        if kwargs:
            if kwargs.get("device") is not None:
                return self.on_device(func, args, kwargs)
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            result = func(*args, **kwargs)
        else:
            result = func(*args)
        if isinstance(result, Tensor):
            # A tensor that the function wrote to, such as copy_ does, stays on its device.
            if result._dsexplore_cuda_device is None and not (args and result is args[0]):  # type: ignore[attr-defined]
                device = device_among(args) or (device_among(kwargs.values()) if kwargs else None)
                if device is None:
                    if type(result) is DTensor:
                        place_parts(result)
                    elif args and isinstance(args[0], DTensor):  # new_tensor, for example
                        place(result, device_of(args[0]))
                    return result
                if device.type == "cuda" and (kwargs or len(args) > 1 or type(args[0]) in (list, tuple)):
                    refuse_mixed(func, args, kwargs, device)
                if device.type == "cuda" and type(result) in PLAIN_CLASSES:
                    result._dsexplore_cuda_device = device  # type: ignore[attr-defined]
                else:
                    place(result, device)
        elif isinstance(result, (tuple, list)) and type(result) is not torch.Size:
            device = device_among(args) or (device_among(kwargs.values()) if kwargs else None)
            _place_new(result, device, args)
        return result

    def read(self, device: Any) -> torch.device | None:
        """Return the CUDA device that an argument names, with its index; None if it names no CUDA device."""
        if isinstance(device, torch.device):
            if device.type != "cuda":
                return None
            return device if device.index is not None else torch.device("cuda", self._driver.current)
        if isinstance(device, str):
            return self.read(torch.device(device)) if device.startswith("cuda") else None
        if isinstance(device, int) and not isinstance(device, bool):
            return torch.device("cuda", device)
        return None

    def on_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function whose keyword arguments name a device."""
        device = self.read(kwargs["device"])
        if device is not None or kwargs.get("pin_memory"):
            kwargs = {**kwargs, "device": CPU if device is not None else kwargs["device"]}
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
        return moved(func(*args, **kwargs), args, device)

    def close(self) -> None:
        """Leave the mode, wherever the program's own modes left it on this thread's mode stack."""
        self._closed = True
        remove_function_mode(self)


def _place_new(results: Iterable[Any], device: torch.device | None, args: tuple[Any, ...]) -> None:
    """Mark the tensors that a function created with a device; its arguments keep theirs."""
    for result in results:
        if isinstance(result, Tensor):
            if result._dsexplore_cuda_device is not None:  # type: ignore[attr-defined]
                continue
            if device is not None and not _is_among(result, args):
                place(result, device)
            elif type(result) is DTensor:
                place_parts(result)
        elif isinstance(result, (tuple, list)) and type(result) is not torch.Size:
            _place_new(result, device, args)


def _is_among(tensor: Tensor, args: Iterable[Any]) -> bool:
    return any(arg is tensor or (type(arg) in (list, tuple) and _is_among(tensor, arg)) for arg in args)


def moved(result: Any, sources: tuple[Any, ...], device: torch.device | None) -> Any:
    """Return the result of a call that moves tensors, marked with the new device.

    A result that is one of the arguments is copied if it is on another device, as torch would have copied it.

    Args:
        result: the call's result; all its tensors are in CPU memory.
        sources: the call's arguments.
        device: CUDA device to move to; None for the CPU.
    """
    if isinstance(result, Tensor) and any(result is source for source in sources):
        if device_of(result) == device:
            return result
        with no_torch_function():
            result = _cast(result.clone(), type(result))
    place(result, device)
    return result


def _cast(tensor: Any, cls: type[Tensor]) -> Any:
    """Return a new tensor with the class that torch gives to results of ops on this class."""
    makes_plain = issubclass(cls, Parameter) or cls.__torch_function__ == Parameter.__torch_function__
    if issubclass(cls, type(tensor)) and not makes_plain:
        tensor.__class__ = cls
    return tensor


def _enter_in_threads(original: Callable[[threading.Thread], None], parts: Parts) -> Callable[[threading.Thread], None]:
    """Wrap ``Thread.start`` to enter the mode in the new thread."""
    mode = parts[StandInMode]

    def start(self: threading.Thread) -> None:
        run = self.run

        def run_in_mode() -> None:
            with mode:
                run()

        self.run = run_in_mode  # type: ignore[method-assign]
        original(self)

    return start


def _place_on_default_device(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the function mode of ``torch.set_default_device``, so that a default of ``cuda`` means CPU memory."""
    mode = parts[StandInMode]

    def call(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None or func not in takes_default_device():
            return func(*args, **kwargs)
        return mode.on_device(func, args, {**kwargs, "device": self.device})

    return call


def _enter(patches: Patches, parts: Parts) -> None:
    """Enter the function mode below those of the program, and close it at the end of the block."""
    mode = parts[StandInMode]
    enter_function_mode_below(mode)
    patches.callback(mode.close)


def _keep_default_device(patches: Patches, parts: Parts) -> None:
    """Restore the default device at the end of the block."""
    patches.callback(_restore_default_device, default_device())


def _restore_default_device(before: torch.device) -> None:
    if default_device() != before:
        reset_default_device()
        if before != CPU and default_device() != before:
            torch.set_default_device(before)


PATCHES: tuple[Entry, ...] = (
    Patch(
        RUN_BACKWARD,
        "hooks and backward functions of Python run below function modes",
        lambda original, parts: inside_mode(parts[StandInMode], original),
        when="cuda device",
        by_code=True,
    ),
    Patch(
        TorchName("threading:Thread.start"),
        "a function mode belongs to one thread",
        _enter_in_threads,
        when="cuda device",
    ),
    Change("the function mode", "it reads cuda as the CPU", _enter, when="cuda device"),
    Patch(DEFAULT_DEVICE, "torch has no memory on that device", _place_on_default_device, when="cuda device"),
    Change(
        "the default device", "a program's setting must end with the block", _keep_default_device, when="cuda device"
    ),
)

"""Gradients that autograd hands to hooks and backward functions: each is on the device of the tensor it belongs to.

C++ makes them, so they carry no mark; a script may keep one, and compute with it or send it once the backward is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import mark, marked
from dsexplore.worlds.cuda.function_mode import StandInMode, handles

_DEVICE = "_dsexplore_gradients_device"
"""The attribute of an autograd node with the device of the gradients that it gets."""


def patch_gradients(patches: Patches) -> None:
    """Mark the gradients that backward functions of Python get, of which torch makes one for a module's hook, too."""
    apply = Function.apply.__func__  # type: ignore[attr-defined] # it is a class method
    run: Callable[..., Any] = BackwardCFunction.apply
    run_boxed: Callable[..., Any] = BackwardCFunction.apply_boxed

    @wraps(apply)
    def applied(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        made = apply(function, *args, **kwargs)
        for each in made if isinstance(made, tuple) else (made,):
            if isinstance(each, Tensor) and isinstance(each.grad_fn, BackwardCFunction):
                setattr(each.grad_fn, _DEVICE, marked((made,)))
                break
        return made

    def run_marked(node: BackwardCFunction, *gradients: Any) -> Any:
        _mark(gradients, getattr(node, _DEVICE, None))
        return run(node, *gradients)

    def run_boxed_marked(node: BackwardCFunction, gradients: list[Any]) -> Any:
        _mark(gradients, getattr(node, _DEVICE, None))
        return run_boxed(node, gradients)

    patches.attribute(Function, "apply", classmethod(applied))
    patches.attribute(BackwardCFunction, "apply", run_marked)
    patches.attribute(BackwardCFunction, "apply_boxed", run_boxed_marked)


@handles(Tensor.register_hook)
def _register_hook(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, hook = args if len(args) == 2 else (args[0], kwargs["hook"])
    device = mode.believed(tensor)

    @wraps(hook)
    def called(gradient: Any) -> Any:
        _mark(gradient, device)
        return hook(gradient)

    return func(tensor, called)


def _mark(gradients: Any, device: torch.device | None) -> None:
    """Put a gradient, or a list or tuple of them, on a CUDA device."""
    if device is not None and device.type == "cuda":
        mark(gradients, device)

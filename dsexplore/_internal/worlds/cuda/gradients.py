"""Devices of the gradients that autograd hands to hooks and backward functions: each has that of its tensor.

C++ creates them without a mark. A program may keep one, and compute with it or send it after the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import GradientEdge

from dsexplore._internal.torch_internals.autograd import APPLY_FUNCTION, RUN_NODE, RUN_NODE_BOXED
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.cuda.device_marks import device_among, device_of, place
from dsexplore._internal.worlds.cuda.function_mode import StandInMode, implements

_DEVICE = "_dsexplore_gradients_device"
"""Attribute of an autograd node: the device of the gradients that it receives."""


def _keep_device(original: Any, parts: Parts) -> Any:
    """Wrap ``Function.apply`` to store the device of its outputs in their node."""
    bind = vars(Function)["apply"].__get__  # a class method, in Python or in C, by version of torch

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        made = bind(None, cls)(*args, **kwargs)
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor) and isinstance(tensor.grad_fn, BackwardCFunction):
                setattr(tensor.grad_fn, _DEVICE, device_among((made,)))
                break
        return made

    return classmethod(apply)


def _place_gradients(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the backward of a Python function to mark the gradients that it receives with the device of its outputs."""

    def run(self: BackwardCFunction, *args: Any) -> Any:
        _place(args, getattr(self, _DEVICE, None))
        return original(self, *args)

    return run


def _place(gradients: Any, device: torch.device | None) -> None:
    """Mark a gradient, or a list or tuple of them, if the device is a CUDA device."""
    if device is not None and device.type == "cuda":
        place(gradients, device)


@implements(Tensor.register_hook)
def _register_hook(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Register a hook that gets its gradient marked with the device of the tensor."""
    tensor, hook = args if len(args) == 2 else (args[0], kwargs["hook"])
    device = device_of(tensor)

    @wraps(hook)
    def called(gradient: Any) -> Any:
        _place(gradient, device)
        return hook(gradient)

    return func(tensor, called)


@implements(torch.autograd.grad)
def _grad(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return gradients, each on the device of its input."""
    gradients = func(*args, **kwargs)
    inputs = args[1] if len(args) > 1 else kwargs["inputs"]
    if isinstance(inputs, dict):
        pairs = [(inputs[name], gradient) for name, gradient in gradients.items()]
    else:
        sources = (inputs,) if isinstance(inputs, (Tensor, GradientEdge)) else inputs
        pairs = [*zip(sources, gradients, strict=True)]
    for source, gradient in pairs:
        place(gradient, device_of(source) if isinstance(source, Tensor) else device_among(args[:1]))
    return gradients


PATCHES: tuple[Entry, ...] = (
    Patch(APPLY_FUNCTION, "its node has to know the device of its gradients", _keep_device, when="cuda device"),
    Patch(RUN_NODE, "gradients carry no device", _place_gradients, when="cuda device"),
    Patch(RUN_NODE_BOXED, "gradients carry no device", _place_gradients, when="cuda device"),
)

"""``torch.export`` under the CUDA stand-in; `torch.distributed.pipelining.pipeline` traces models with it.

It makes fake tensors of parameters and inputs, and calls the model on them. They have to be on the CPU: C++ ends the
process when autograd meets a fake tensor on ``cuda`` without a GPU. But the model has to see them on ``cuda``. So
torch's own code runs outside the function mode, and the model's ``forward`` inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor, nn

from dsexplore._internal.torch_internals.cuda import EXPORTS
from dsexplore._internal.torch_internals.fake_tensors import FAKE_FROM_REAL, TRACING_DISPATCH
from dsexplore._internal.torch_internals.function_modes import inside_mode, without_mode
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.tensors import no_torch_function
from dsexplore._internal.worlds.cuda.device_marks import device_of, place
from dsexplore._internal.worlds.cuda.function_mode import StandInMode
from dsexplore._internal.worlds.cuda.tensor_construction import below_function_modes
from dsexplore._internal.worlds.remarks import Remarks

NOT_STRICT = "torch.export ignores strict=True where a CPU stands in for a GPU: it traces the model by running it"


def _outside_mode(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``torch.export.export`` to run outside the function mode, and never strictly."""
    mode, remarks = parts[StandInMode], parts[Remarks]

    @wraps(original)
    def export(mod: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(mod, nn.Module):
            return original(mod, *args, **kwargs)  # raises
        if kwargs.pop("strict", False):
            remarks.say(NOT_STRICT)
        with _forward_inside(mode, mod), without_mode(mode):
            return original(mod, *args, strict=False, **kwargs)

    return export


@contextmanager
def _forward_inside(mode: StandInMode, module: nn.Module) -> Iterator[None]:
    """Make a module's ``forward`` run inside the mode during a block."""
    attribute = vars(module).get("forward")
    forward = module.forward
    vars(module)["forward"] = wraps(forward)(inside_mode(mode, forward))
    try:
        yield
    finally:
        if attribute is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = attribute


def _keep_device(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the conversion of a real tensor to a fake one: make it on the CPU, with the mark of the real tensor."""

    @wraps(original)
    def make(self: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        with no_torch_function():
            made = original(self, tensor, *args, **kwargs)
        place(made, device_of(tensor))
        return made

    return make


PATCHES: tuple[Entry, ...] = (
    *(
        Patch(target, "its own code has to find tensors on the CPU", _outside_mode, when="cuda device", on_import=True)
        for target in EXPORTS
    ),
    Patch(FAKE_FROM_REAL, "autograd takes no fake tensor on a GPU", _keep_device, when="cuda device"),
    Patch(
        TRACING_DISPATCH,
        "it has to see tensors on the CPU",
        below_function_modes,
        when="cuda device",
        on_import=True,
    ),
)

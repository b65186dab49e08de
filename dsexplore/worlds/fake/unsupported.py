"""Parts of torch that have no form on fake tensors: each gives one error that names it and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.nested
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches

_NESTED = "pad the sequences to one length for this run"
_TRACED = "leave it out for this run, as the module itself sends the same"
_UNALLOCATED = "its data is not allocated yet"
"""A part of what torch raises where its C++ reads the memory of a fake tensor."""
_WITHOUT_SHAPES = "fake impl"
"""A part of what torch raises for an op that has no function for tensors without memory."""
_SMALLER = "run a smaller model without --fake (fake=False)"


def patch_unsupported(patches: Patches) -> None:
    """Refuse nested tensors, whose sizes torch keeps in memory, and ``torch.jit.trace``, which compares values."""
    for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "masked_select"):
        if hasattr(torch.nested, name):  # of some versions of torch
            patches.function(getattr(torch.nested, name), _refused(f"torch.nested.{name}", _NESTED))
    for name in ("trace", "trace_module"):
        patches.function(getattr(torch.jit, name), _refused(f"torch.jit.{name}", _TRACED))


def _refused(what: str, remedy: str) -> Callable[[Any], Callable[..., NoReturn]]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"{what} reads the memory of tensors, and fake tensors have none: {remedy}, or {_SMALLER}")

    return lambda _original: refuse


@contextmanager
def explained() -> Iterator[None]:
    """Add a remedy to torch's errors about values and memory that fake tensors have not, where none is there yet."""
    try:
        yield
    except Exception as error:
        remedy = _remedy_for(error)
        if remedy and remedy not in getattr(error, "__notes__", ()):
            error.add_note(remedy)
        raise


def _remedy_for(error: Exception) -> str:
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)):
        return f"{error.func} needs the values of its tensors, and fake tensors have none: {_SMALLER}"
    if _UNALLOCATED in str(error):
        return (
            "torch reads the memory of tensors there, and fake tensors have none: in place of torch.tensor([a, b]) of "
            f"tensors write torch.stack([a, b]) or a.item(), else {_SMALLER}"
        )
    if _WITHOUT_SHAPES in str(error):
        return (
            "fake tensors need the shape of what this op returns: give it a function for that with "
            f"torch.library.register_fake, or {_SMALLER}"
        )
    return ""

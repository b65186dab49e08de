"""Errors for parts of torch that do not work on fake tensors; each names the part and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.fake_tensors import VALUES_NEEDED
from dsexplore._internal.torch_internals.modules import TRACE, TRACE_MODULE
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.tensors import NESTED_TENSORS

_NESTED = "pad the sequences to one length for this run"
_TRACED = "skip it in this run, as the module itself sends the same"
_UNALLOCATED = "its data is not allocated yet"
"""Part of torch's error message when C++ reads the memory of a fake tensor."""
_WITHOUT_SHAPES = "fake impl"
"""Part of torch's error message for an op without a fake implementation."""
_SMALLER = "run a smaller model without --fake (fake=False)"


def _refuse(name: str, remedy: str) -> Callable[[Any, Parts], Callable[..., NoReturn]]:
    """Return a factory of a function that raises `UsageError`, for one that reads the memory of tensors."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"{name} reads the memory of tensors, and fake tensors have none: {remedy}, or {_SMALLER}")

    return lambda _original, _parts: refuse


@contextmanager
def explained() -> Iterator[None]:
    """Add a note with a remedy to torch's errors about missing values or memory of fake tensors."""
    try:
        yield
    except Exception as error:
        remedy = _remedy_for(error)
        if remedy and remedy not in getattr(error, "__notes__", ()):
            error.add_note(remedy)
        raise


def _remedy_for(error: Exception) -> str:
    """Return a sentence with the cause and the remedy of an error; empty if fake tensors are not its cause."""
    if isinstance(error, VALUES_NEEDED):
        op: Any = getattr(error, "func", error)
        return f"{op} needs the values of its tensors, and fake tensors have none: {_SMALLER}"
    if _UNALLOCATED in str(error):
        return (
            "torch reads the memory of tensors there, and fake tensors have none: instead of torch.tensor([a, b]) with "
            f"tensors write torch.stack([a, b]) or a.item(), or {_SMALLER}"
        )
    if _WITHOUT_SHAPES in str(error):
        return (
            "fake tensors need the shape of this op's result: register a function that returns it with "
            f"torch.library.register_fake, or {_SMALLER}"
        )
    return ""


def _refusals(targets: Iterable[TorchName], why: str, remedy: str) -> Iterator[Patch]:
    """Yield patches that make parts of torch raise an error.

    Args:
        targets: names of the parts.
        why: reason why they do not work on fake tensors.
        remedy: advice in the error.
    """
    for target in targets:
        yield Patch(target, why, _refuse(target.path.replace(":", "."), remedy), when="fake", by_code=True)


PATCHES: tuple[Entry, ...] = (
    *_refusals(NESTED_TENSORS, "torch reads the sizes of their parts in memory", _NESTED),
    *_refusals((TRACE, TRACE_MODULE), "it compares values", _TRACED),
)

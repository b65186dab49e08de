"""Observes collectives on fake tensors inside the dispatch mode that runs them.

Such a mode handles ops in Python. A kernel of `substrate` in front of the op would cost a conversion of the arguments
to C++ and back. So the mode runs collectives with `call`, which reports them and calls the op's meta kernel directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch.compiler import is_compiling

from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.capture.collectives.observed_op import Observer, is_inside_observed
from dsexplore._internal.capture.collectives.ops import Communication
from dsexplore._internal.capture.stack import frame_kinds
from dsexplore._internal.torch_internals.dispatch import META_ALONE, current_tracing_context, redispatch_of, schema_of

_observer: Observer | None = None
"""The observer that `call` reports to; None while `ModeCollectives` is not installed."""


class ModeCollectives:
    """Observes the collectives that modes run with `call` while installed; one at a time per process."""

    def install(self, observer: Observer) -> None:
        """Begin to report to the observer."""
        global _observer
        _observer = observer

    def uninstall(self) -> None:
        """Stop reporting."""
        global _observer
        _observer = None


def call(op: Any, args: Sequence[Any], frames: int) -> Any:
    """Call a collective's op on meta tensors, and report it unless the kernel in front of it will.

    Args:
        op: an overload of the op.
        args: the op's positional arguments; fake tensors must count as meta tensors, as they do inside torch's
            ``in_kernel_invocation_manager``.
        frames: the number of Python frames between this call and the mode's ``__torch_dispatch__``.

    Returns:
        The result of the op.
    """
    observer = _observer
    described = _described(op) if observer is not None else None
    if (
        observer is None
        or described is None
        or is_inside_observed()
        or is_compiling()
        or current_tracing_context() is not None
    ):
        return op(*args)
    raw_op, entry = described
    pending = observer.begins(raw_op, entry, args, frame_kinds.caller_of_op(frames))
    if pending is None:
        return redispatch_of(op)(META_ALONE, *args)
    try:
        result = redispatch_of(op)(META_ALONE, *args)
    except BaseException as error:
        observer.raised(pending, error)
        raise
    observer.returned(pending, result)
    return result


@cache
def _described(op: Any) -> tuple[str, Communication] | None:
    """Return the name and the entry of an op; None if it does not communicate."""
    raw_op = schema_of(op).name
    entry = ops.lookup(raw_op)
    return (raw_op, entry) if entry is not None else None

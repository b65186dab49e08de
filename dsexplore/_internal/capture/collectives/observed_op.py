"""How one collective is observed: once when it is about to be issued, and again when it has returned.

`observed` makes the kernel that stands in front of an op's own; `substrate` puts it there. `pass_kernels_by` is for
what has observed a collective before its op is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch.compiler import is_compiling

from dsexplore._internal.capture.collectives.ops import Communication
from dsexplore._internal.capture.stack.frame_kinds import caller_of_op
from dsexplore._internal.torch_internals.dispatch import (
    AFTER_BACKEND_SELECT,
    BACKEND_SELECT,
    CAN_SKIP_KEYS,
    CPU,
    META,
    DispatchKeySet,
    active_dispatch_modes,
    current_tracing_context,
    exclude_key,
    include_key,
    is_key_excluded,
    is_key_included,
    leave_to_python,
)


class Pending(Protocol):
    """A collective between its issue and its return."""

    @property
    def needs_work(self) -> bool:
        """True if it is timed by the ``Work`` that its backend returns."""


class Observer(Protocol):
    """Receives every collective: when it is about to be issued, and again once it has returned."""

    def begins(self, raw_op: str, entry: Communication, args: Sequence[Any], caller: FrameType) -> Pending | None:
        """Record an op that is about to run; return None if it is not to be followed.

        Args:
            raw_op: the op.
            entry: how to read it.
            args: of the call.
            caller: the frame that calls it.
        """

    def begins_before_kernel(self, raw_op: str, entry: Communication, args: Sequence[Any]) -> Pending | None:
        """Record an op that is about to run, and whose kernel may be bypassed.

        Return None if the kernel must see the op, because its group's works do not report completion to the host.
        """

    def returned(self, pending: Any, result: Any, tensors: Any = None) -> None:
        """Record that the op has returned.

        Args:
            pending: what `begins` returned.
            result: the op's result; if it called a collective inside, that one's result.
            tensors: what the op itself returned if it called a collective inside: the program waits for these.
        """

    def raised(self, pending: Any, error: BaseException) -> None:
        """Record that the op has raised `error`; `pending` is what `begins` returned."""


Kernel = Callable[..., Any]


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Keys(NamedTuple):
    """Properties of a call that reached one of our kernels, from its dispatch keys."""

    behind: DispatchKeySet
    """The keys with which the call goes on."""
    has_meta: bool
    """True if a tensor is a meta or fake one."""
    has_cpu: bool


@cache
def _read_keys(raw: int) -> _Keys:
    """Read a set of dispatch keys from its bits."""
    keys = DispatchKeySet.from_raw_repr(raw)
    return _Keys(keys & AFTER_BACKEND_SELECT, keys.has(META), keys.has(CPU))


_NO_KEYS = _Keys(AFTER_BACKEND_SELECT, has_meta=True, has_cpu=False)
"""The keys of a call that comes from a mode of fake or local tensors, not from the dispatcher."""


class _Nesting(threading.local):
    """The observed collective that runs in this thread; collectives issued inside it are not events."""

    results: list[Any] | None = None
    """The results of the collectives issued inside; None while no collective is observed."""


nesting = _Nesting()


def observed(
    raw_op: str,
    entry: Communication,
    kernel: Kernel,
    observer: Observer,
    *,
    calls_twin: bool = False,
) -> Kernel:
    """Wrap a kernel to report to the observer.

    Args:
        raw_op: the op.
        entry: how to read it.
        kernel: the original; its first argument is the set of dispatch keys to continue with.
        observer: the observer.
        calls_twin: whether it is a functional op, whose kernel for CPU tensors calls its c10d twin. If that is not
            timed, it bypasses our kernel: a second Python kernel would cost 1.6 % of a training step of a small
            tensor-parallel Llama (`benchmarks/trace_overhead.py`, b).

    Returns:
        A kernel whose first argument is the set of dispatch keys of the call; None outside the dispatcher.
    """
    begins, returned, raised = observer.begins, observer.returned, observer.raised

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        behind, has_meta, has_cpu = _NO_KEYS if keys is None else _read_keys(keys.raw_repr())
        outer = nesting.results
        if outer is not None:  # a functional collective calls its c10d twin: the outer one is the event
            result = kernel(behind, *args, **kwargs)
            outer.append(result)
            return result
        if is_compiling() or (has_meta and current_tracing_context() is not None):
            return kernel(behind, *args, **kwargs)
        pending = begins(raw_op, entry, args, caller_of_op(0))
        if calls_twin and CAN_SKIP_KEYS and has_cpu and pending is not None and not pending.needs_work:
            result = pass_kernels_by(kernel, behind, *args, **kwargs)
            returned(pending, result)
            return result
        inner: list[Any] = []
        nesting.results = inner
        try:
            result = kernel(behind, *args, **kwargs)
        except BaseException as error:
            if pending is not None:
                raised(pending, error)
            raise
        finally:
            nesting.results = None
        if pending is not None:
            if inner:
                returned(pending, inner[-1], result)
            else:
                returned(pending, result)
        return result

    leave_to_python(recorded.__code__)
    return recorded


def is_plain(value: Any) -> bool:
    """Return True for a strided CPU tensor of torch's own types, or a list of one such tensor."""
    tensor = value[0] if type(value) is list and len(value) == 1 else value
    return type(tensor) in _PLAIN and tensor.is_cpu and tensor.layout is torch.strided


def is_inside_observed() -> bool:
    """Return True if the current call is part of a collective that is observed already."""
    return nesting.results is not None or is_key_excluded(BACKEND_SELECT)


def is_observed_elsewhere() -> bool:
    """Return True if a collective that is observed already includes the current call, or if it may not run at all.

    In a dispatch mode or under the compiler, these decide what becomes of the call.
    """
    return is_inside_observed() or bool(active_dispatch_modes()) or is_compiling()


def pass_kernels_by(function: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Call a function of CPU tensors whose collectives are recorded already, bypassing our kernels.

    Factory functions inside it need the key of those kernels to find its device, so the CPU key is included instead.
    """
    included = is_key_included(CPU)  # what two of torch's guards would do, without making them
    try:  # from the first of them on: Ctrl-C may come after any call
        include_key(CPU, True)
        exclude_key(BACKEND_SELECT, True)
        return function(*args, **kwargs)
    finally:
        try:
            exclude_key(BACKEND_SELECT, False)
        finally:
            include_key(CPU, included)

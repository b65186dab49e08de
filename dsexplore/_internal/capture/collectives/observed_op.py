"""Observes one collective twice: when it is about to be issued, and when it has returned.

`observed` makes the kernel in front of an op's own, and `substrate` registers it. `pass_kernels_by` calls an op whose
collective was observed already.
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
        """Record an op that is about to run.

        Args:
            raw_op: the op.
            entry: the op's entry.
            args: the op's positional arguments.
            caller: the frame that calls it.

        Returns:
            A handle for `returned` or `raised`; None if neither is to be called.
        """

    def begins_before_kernel(self, raw_op: str, entry: Communication, args: Sequence[Any]) -> Pending | None:
        """Record an op that is about to run and may bypass the kernel in front of it.

        Returns:
            A handle for `returned` or `raised`. None if the kernel must see the op, because its group's works do not
            report their end to the host.
        """

    def returned(self, pending: Any, result: Any, tensors: Any = None) -> None:
        """Record that the op has returned.

        Args:
            pending: the handle that `begins` returned.
            result: the op's result; if the op called another collective op inside, that op's result.
            tensors: the op's result if it called another collective op inside: the program waits for these tensors.
                None otherwise.
        """

    def raised(self, pending: Any, error: BaseException) -> None:
        """Record that the op has raised `error`; `pending` is the handle that `begins` returned."""


Kernel = Callable[..., Any]
"""A kernel that is registered with ``with_keyset=True``: its first argument is a set of dispatch keys."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Keys(NamedTuple):
    """Properties of a call that reached one of our kernels, from its dispatch keys."""

    behind: DispatchKeySet
    """The keys with which the call continues."""
    has_meta: bool
    """True if a tensor is a meta or fake tensor."""
    has_cpu: bool
    """True if a tensor is on the CPU."""


@cache
def _read_keys(raw: int) -> _Keys:
    """Read a set of dispatch keys from its bits."""
    keys = DispatchKeySet.from_raw_repr(raw)
    return _Keys(keys & AFTER_BACKEND_SELECT, keys.has(META), keys.has(CPU))


_NO_KEYS = _Keys(AFTER_BACKEND_SELECT, has_meta=True, has_cpu=False)
"""The keys of a call that comes from ``FakeTensorMode`` or ``LocalTensorMode``, not from the dispatcher."""


class _Nesting(threading.local):
    """The observed collective that runs in this thread. Collective ops that it calls are not events of their own."""

    results: list[Any] | None = None
    """The results of collective ops that it has called; None while no collective is observed."""


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
        entry: the op's entry.
        kernel: the original kernel, called with the dispatch keys to continue with.
        observer: the observer.
        calls_twin: whether it is a functional op, whose kernel for CPU tensors calls a c10d op. If that need not be
            timed, it bypasses our kernels: a second Python kernel would cost 1.6 % of a training step of a small
            tensor-parallel Llama (`benchmarks/trace_overhead.py`, b).

    Returns:
        A kernel to call with the dispatch keys of the call; with None for them from outside the dispatcher.
    """
    begins, returned, raised = observer.begins, observer.returned, observer.raised

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        behind, has_meta, has_cpu = _NO_KEYS if keys is None else _read_keys(keys.raw_repr())
        outer = nesting.results
        if outer is not None:  # a functional op has called its c10d op: the functional one is the event
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
    """Return True for a strided CPU tensor that is no subclass, or a list of one such tensor."""
    tensor = value[0] if type(value) is list and len(value) == 1 else value
    return type(tensor) in _PLAIN and tensor.is_cpu and tensor.layout is torch.strided


def is_inside_observed() -> bool:
    """Return True if the current call is part of a collective that was observed already."""
    return nesting.results is not None or is_key_excluded(BACKEND_SELECT)


def is_observed_elsewhere() -> bool:
    """Return True if the current call is part of a collective that was observed already, or may not run at all.

    Dispatch modes and the compiler decide whether a call runs.
    """
    return is_inside_observed() or bool(active_dispatch_modes()) or is_compiling()


def pass_kernels_by(function: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Call a function on CPU tensors whose collectives are recorded already, bypassing our kernels.

    Our kernels have the key ``BackendSelect``, which is excluded. Factory functions need it to select a device, so the
    CPU key is included in its place.
    """
    included = is_key_included(CPU)  # set by hand, as torch's two guard objects would take longer
    try:  # from the first change on, as Ctrl-C may come after any call
        include_key(CPU, True)
        exclude_key(BACKEND_SELECT, True)
        return function(*args, **kwargs)
    finally:
        try:
            exclude_key(BACKEND_SELECT, False)
        finally:
            include_key(CPU, included)

"""`WatchedOps` is the dispatch mode that sees each aten op of a program while its costs are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals.dispatch import (
    PlainDispatchMode,
    eval_frame_callback,
    leave_to_python,
    uncompiled,
)
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor

_PLAIN = frozenset({torch.Tensor, nn.Parameter, FakeTensor, nn.Buffer})
"""Classes of tensors without a ``__torch_dispatch__`` that could change an op."""
_LAZY = frozenset({nn.UninitializedParameter, nn.UninitializedBuffer})
"""Classes of tensors without a shape; their ops compute nothing and are left to torch."""


class RecordsOps(Protocol):
    """Receives the ops of a program."""

    paused: int
    """Above 0 while the ops are not the program's."""

    def dtensor_op(self, func: Any, given: Sequence[Any]) -> None:
        """Count an op on DTensors before it runs; ``given`` are its arguments."""

    def ran(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Record an op that has run on plain tensors."""


def _are_plain(types: Sequence[type]) -> bool:
    """Return True if no tensor class has to handle the op.

    Subclasses of `FakeTensor` are plain too: in a fake world, parameters of a custom class have such a class.
    """
    return all(kind in _PLAIN or issubclass(kind, FakeTensor) for kind in types)


_DEVICE = torch.ops.prim.device.default
_META = torch.device("meta")


class WatchedOps(PlainDispatchMode):
    """Reports each op of a program to a recording."""

    supports_higher_order_operators = True

    def __init__(self, recording: RecordsOps) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # answered first, as autograd calls it more often than all other ops together
            tensor = args[0]
            if type(tensor) is FakeTensor:  # the answer of its mode
                return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device
            return func(*args)
        if not _PLAIN.issuperset(types) and not _are_plain(types):
            if DTensor in types:
                self._recording.dtensor_op(func, [*args, *(kwargs or {}).values()])
            return func(*args, **(kwargs or {})) if _LAZY.issuperset(types) else NotImplemented
        run = _run if eval_frame_callback() is None else _run_uncompiled
        return run(self._recording, func, args, dict(kwargs or {}))


leave_to_python(WatchedOps.__torch_dispatch__.__code__)


def _run(recording: RecordsOps, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an op, record it unless the recording is paused, and return its result."""
    result = func(*args, **kwargs)
    if not recording.paused:
        recording.ran(func, args, kwargs, result)
    return result


_run_uncompiled = uncompiled(_run)
"""`_run` for ops of compiled code; the compiler does not trace into it."""

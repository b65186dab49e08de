"""Measures how long a program blocks in ``wait_tensor`` for a functional collective, such as DTensor issues.

``wait_tensor`` does not call ``Work.wait``: torch finds the work by the storage of the tensor that the collective
returned, and waits for it in C++. So a kernel is registered in front of ``wait_tensor``. That happens at the first
functional collective that takes time, so a simulation is not slowed down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from dsexplore._internal.capture.timing.work_timing import Timed
from dsexplore._internal.torch_internals.dispatch import (
    AFTER_BACKEND_SELECT,
    BACKEND_SELECT,
    find_op,
    leave_to_python,
    redispatch_of,
    remove_kernels,
)
from dsexplore._internal.torch_internals.tensors import storage_number

_WAITS = ("wait_tensor", "wait_tensors")
"""The ops that wait; torch 2.13 has only the first."""


class TensorWaits:
    """Measures the waits for functional collectives.

    Args:
        ticks: returns nanoseconds of a monotonic clock.
    """

    def __init__(self, ticks: Callable[[], int]) -> None:
        self._ticks = ticks
        self._events: dict[int, Timed] = {}
        """{storage of a tensor that a collective returned: the collective}, until the program waits for the tensor."""
        self._library: torch.library.Library | None = None
        self._lock = threading.Lock()

    def expect(self, event: Timed, returned: Any) -> None:
        """Add to ``event.waited`` when the program waits for a tensor that the collective returned."""
        if self._library is None:
            self._install()
        for tensor in returned if isinstance(returned, (list, tuple)) else (returned,):
            if isinstance(tensor, torch.Tensor):
                self._events[storage_number(tensor.untyped_storage())] = event

    def _install(self) -> None:
        """Register the kernel in front of each op that waits; once."""
        with self._lock:
            if self._library is not None:
                return
            library = torch.library.Library("_c10d_functional", "IMPL")
            try:
                for name in _WAITS:
                    op = find_op(f"_c10d_functional::{name}")
                    if op is not None:
                        measured = self._measured(redispatch_of(op.default))
                        library.impl(name, measured, BACKEND_SELECT.name, with_keyset=True)
            except BaseException:
                remove_kernels(library)
                raise
            self._library = library

    def _measured(self, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a kernel of an op that waits to measure how long it takes."""
        events, ticks = self._events, self._ticks

        def wait(keys: Any, awaited: Any) -> Any:
            event = None
            if events:
                for tensor in awaited if isinstance(awaited, (list, tuple)) else (awaited,):
                    event = events.pop(storage_number(tensor.untyped_storage()), None) or event
            if event is None:
                return redispatch(keys & AFTER_BACKEND_SELECT, awaited)
            begun = ticks()
            try:
                return redispatch(keys & AFTER_BACKEND_SELECT, awaited)
            finally:
                event.waited = (event.waited or 0) + ticks() - begun

        leave_to_python(wait.__code__)
        return wait

    def release(self) -> None:
        """Remove the kernel, and drop all collectives."""
        with self._lock:
            self._events.clear()
            if self._library is not None:
                remove_kernels(self._library)
                self._library = None

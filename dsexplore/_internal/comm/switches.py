"""Switches that turn collectives off, to measure how long a step takes without them.

A switch acts on calls of `dsexplore.comm`, under every name of its collective. Tensors stay unchanged, so the program
computes wrong values while a collective is off: only the time of a step is meaningful.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as td

from dsexplore._internal.capture.recorder_in_use import note_switched_off
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.user_warnings import warn

SWITCHES: dict[str, tuple[str, ...]] = {
    "all_gather": ("all_gather",),
    "reduce_scatter": ("reduce_scatter",),
    "broadcast": ("broadcast",),
    "all_reduce": ("all_reduce",),
    "reduce": ("reduce",),
    "backward": ("all_gather", "reduce_scatter"),
}
"""{switch: ops that it turns off}; ``backward`` is for the collectives of a sharded backward pass."""

off: dict[str, str] = {}
"""{op that is off: the switch function that turned it off}. Empty in normal operation."""

_warned: set[str] = set()
_lock = threading.Lock()


class Noop:
    """The handle of a call that was switched off: already completed."""

    def wait(self, timeout: timedelta | None = None) -> None:
        """Return immediately."""
        return

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> torch.futures.Future[None]:
        """Return a completed future."""
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


@names_arguments
def all_gather_comm_off(flag: bool = False) -> None:
    """Turn every all_gather off if `flag`, else on again.

    Examples:
        >>> dist.all_gather_comm_off(True)
        >>> dist.all_gather_comm_off(False)
    """
    turn("all_gather", flag)


@names_arguments
def reduce_scatter_comm_off(flag: bool = False) -> None:
    """Turn every reduce_scatter off if `flag`, else on again.

    Examples:
        >>> dist.reduce_scatter_comm_off(True)
        >>> dist.reduce_scatter_comm_off(False)
    """
    turn("reduce_scatter", flag)


@names_arguments
def broadcast_comm_off(flag: bool = False) -> None:
    """Turn every broadcast off if `flag`, else on again.

    Examples:
        >>> dist.broadcast_comm_off(True)
        >>> dist.broadcast_comm_off(False)
    """
    turn("broadcast", flag)


@names_arguments
def all_reduce_comm_off(flag: bool = False) -> None:
    """Turn every all_reduce off if `flag`, else on again.

    Examples:
        >>> dist.all_reduce_comm_off(True)
        >>> dist.all_reduce_comm_off(False)
    """
    turn("all_reduce", flag)


@names_arguments
def reduce_comm_off(flag: bool = False) -> None:
    """Turn every reduce off if `flag`, else on again.

    Examples:
        >>> dist.reduce_comm_off(True)
        >>> dist.reduce_comm_off(False)
    """
    turn("reduce", flag)


@names_arguments
def backward_comm_off(flag: bool = False) -> None:
    """Turn every all_gather and reduce_scatter off if `flag`, else on again.

    Examples:
        >>> dist.backward_comm_off(True)
        >>> dist.backward_comm_off(False)
    """
    turn("backward", flag)


@contextmanager
def comm_off(*switches: str) -> Iterator[None]:
    """Turn collectives off inside a ``with`` block; the previous state is restored, also after an exception.

    Args:
        switches: ``all_gather``, ``reduce_scatter``, ``broadcast``, ``all_reduce``, ``reduce`` or ``backward``, one or
            several.

    Raises:
        UsageError: no such switch.

    Examples:
        >>> with dsexplore.simulate(4), dist.comm_off("all_reduce"):
        ...     _ = dist.all_reduce(torch.ones(8))  # sends nothing
    """
    for switch in switches:
        if switch not in SWITCHES:
            raise UsageError(f"comm_off({switch!r}): no such switch; there are {', '.join(SWITCHES)}")
    before = {op: off.get(op) for switch in switches for op in SWITCHES[switch]}
    for switch in switches:
        turn(switch, flag=True)
    try:
        yield
    finally:
        with _lock:
            for op, state in before.items():
                if state is None:
                    off.pop(op, None)
                else:
                    off[op] = state


def turn(switch: str, flag: bool) -> None:
    """Turn the ops of a switch off if `flag`, else on again."""
    with _lock:
        for op in SWITCHES[switch]:
            if flag:
                off[op] = f"{switch}_comm_off"
            else:
                off.pop(op, None)


def suppress(op: str, group: Any) -> None:
    """Record a call that is not made, and warn once per switch on rank 0."""
    switch = off[op]
    if switch not in _warned and td.is_initialized() and td.get_rank() == 0:
        _warned.add(switch)
        text = f"{switch}(True): {op} is off, its tensors stay as they are; results are wrong until {switch}(False)"
        warn(text, UserWarning)
    note_switched_off(op, group, switch)

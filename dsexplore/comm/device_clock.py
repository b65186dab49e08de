"""Times of CUDA ops by events on their streams, brought onto the host's clock.

An event is recorded before the op and one when it is over; neither makes the host wait. They are read when the
log is read. One event per device, whose host time is known, is the anchor of the device's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CudaClock:
    """Makes intervals on one logger's clock.

    Args:
        host_ns: the logger's clock.
        new_event: makes a timing event; ``torch.cuda.Event(enable_timing=True)`` unless told otherwise.
    """

    def __init__(self, host_ns: Callable[[], int], new_event: Callable[[], Any] | None = None) -> None:
        self._host_ns = host_ns
        self._new_event = new_event or _timing_event
        self._anchors: dict[int, tuple[Any, int]] = {}

    def begin(self, device: int) -> CudaInterval:
        """Start an interval on that device's current stream."""
        if device not in self._anchors:
            anchor = self._new_event()
            anchor.record()
            anchor.synchronize()  # once per device and logger
            self._anchors[device] = (anchor, self._host_ns())
        return CudaInterval(*self._anchors[device], self._new_event)


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


class CudaInterval:
    """One op between two events."""

    def __init__(self, anchor: Any, anchor_ns: int, new_event: Callable[[], Any]) -> None:
        self._anchor = anchor
        self._anchor_ns = anchor_ns
        self._new_event = new_event
        self._end: Any = None
        self._start = new_event()
        self._start.record()

    def finish(self) -> None:
        """The op's work is all on the current stream: it is over when the stream gets here."""
        if self._end is None:
            end = self._new_event()
            end.record()
            self._end = end

    def nanoseconds(self) -> tuple[int, int] | None:
        """Start and end on the host's clock; None while the op runs."""
        if self._end is None or not self._end.query():
            return None
        first, last = (int(self._anchor.elapsed_time(event) * 1e6) for event in (self._start, self._end))
        return self._anchor_ns + first, self._anchor_ns + last

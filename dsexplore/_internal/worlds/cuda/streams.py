"""`Stream` and `Event` of the CUDA stand-in: they keep no order, because everything runs in order on the CPU.

An event records the host's clock, so `elapsed_time` is this machine's time, not a GPU's.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any, cast

import torch

CUDA_DEVICE_TYPE = 1
"""CUDA's number in C++'s enumeration ``c10::DeviceType``."""
_numbers = count(1)


class Stream:
    """Stands in for ``torch.Stream`` and ``torch.cuda.Stream``; streams with the same id and device are equal."""

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = CUDA_DEVICE_TYPE,
        stream_ptr: int | None = None,
    ) -> None:
        self.device_index = torch.cuda.device(device).idx if device_index is None else device_index
        self.stream_id = next(_numbers) if stream_id is None else stream_id
        self.device_type, self.priority = device_type, priority

    @property
    def device(self) -> torch.device:
        """CUDA device of the stream."""
        return torch.device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        """Number in place of the stream's address."""
        return self.stream_id

    native_handle = cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, as CUDA has them."""
        return 0, -5

    def query(self) -> bool:
        """Return True: the work is done."""
        return True

    is_capturing = lambda self: False  # noqa: E731

    def synchronize(self) -> None:
        """Do nothing, as the work is done."""

    def wait_event(self, event: Any) -> None:
        """Do nothing, as work runs in order anyway."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing, as work runs in order anyway."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one by default."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._context = torch.cuda.stream(cast(Any, self))
        self._context.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return False
        return (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"


class Event:
    """Stands in for ``torch.Event`` and ``torch.cuda.Event``."""

    def __init__(self, *args: Any, enable_timing: bool = False, **kwargs: Any) -> None:
        self._seconds: float | None = None
        self._timing = bool(enable_timing or (args and args[0] is True))
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.event_id = self.cuda_event = next(_numbers)

    def record(self, stream: Any = None) -> None:
        """Record the host's time."""
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing, as work runs in order anyway."""

    def query(self) -> bool:
        """Return True: the work before the event is done."""
        return True

    def synchronize(self) -> None:
        """Do nothing, as the work before the event is done."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds of this machine between two recorded events.

        Raises:
            ValueError: one of them was created without ``enable_timing=True``.
            RuntimeError: one of them was not recorded.
        """
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.event_id:#x}>"

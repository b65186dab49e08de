"""One logged call: what moved, over which group, from when to when."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol

import torch.distributed as td

from dsexplore.comm.spellings import Size


@dataclass(frozen=True)
class GroupInfo:
    """A process group, as plain data that outlives it."""

    name: str
    ranks: tuple[int, ...]
    backend: str
    timing: str
    """How its ops are timed: ``cuda`` or ``work``, see `dsexplore.trace.schema.Timing`."""

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    @classmethod
    def of(cls, group: Any) -> GroupInfo:
        """Describe a live group."""
        backend = str(td.get_backend(group))
        timing = "cuda" if "nccl" in backend else "work"
        return cls(group.group_name, tuple(td.get_process_group_ranks(group)), backend, timing)


class DeviceInterval(Protocol):
    """Start and end of an op on a device's own clock, known some time after the op was issued."""

    def finish(self) -> None:
        """The op's work is all on the current stream; the first call counts."""

    def nanoseconds(self) -> tuple[int, int] | None:
        """Start and end in the logger's clock; None until the op is over."""


class Record:
    """One call. Times are nanoseconds of the logger's clock; ``end`` is None until the op is known to be over."""

    __slots__ = (
        "batch", "bytes", "call", "cause", "code", "device", "dtype", "end", "failed", "group", "instruction",
        "is_async", "is_object", "issued", "name", "op", "phase", "shape", "share", "start",
    )  # fmt: skip

    def __init__(self, op: str, call: str, name: str, group: GroupInfo, size: Size) -> None:
        self.op = op
        self.call = call  # the spelling
        self.name = name  # what it is logged under
        self.group = group
        self.bytes, self.dtype, self.shape = size
        self.is_async = False
        self.is_object = False
        self.batch: int | None = None
        self.share = 1.0  # of the time of its batch
        self.phase = "other"
        self.cause = ""
        self.code: CodeType | None = None
        self.instruction = 0
        self.failed = False
        self.device: DeviceInterval | None = None
        self.issued = 0  # when it was issued, which is the order of the log
        self.start: int | None = None
        self.end: int | None = None

    @property
    def switched_off(self) -> bool:
        """Whether a switch kept the call from being made."""
        return self.op.startswith(SWITCHED_OFF)

    @property
    def times(self) -> tuple[int, int] | None:
        """Start and end, where both are known and the op succeeded."""
        if self.device is not None and self.end is None:
            interval = self.device.nanoseconds()
            if interval is not None:
                self.start, self.end = interval
        if self.failed or self.switched_off or self.start is None or self.end is None:
            return None
        return self.start, max(self.end, self.start + 1)

    @property
    def seconds(self) -> float | None:
        """How long it took, for a member of a batch its share of that; above zero, so that rates exist."""
        times = self.times
        return None if times is None else (times[1] - times[0]) / 1e9 * (self.share or 1e-9)

    @property
    def source(self) -> str:
        """``"file:line"`` of the call in the user's code."""
        if self.code is None:
            return ""
        lines = (line for first, last, line in self.code.co_lines() if first <= self.instruction < last)
        return f"{self.code.co_filename}:{next(lines, None) or self.code.co_firstlineno}"


SWITCHED_OFF = "switched_off:"

"""`Issued` is one collective as the recorder saw it. Names and texts are formed later, together with the tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dsexplore._internal import placement_text
from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.ops import Communication, Message
from dsexplore._internal.capture.collectives.peers import Parties
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.stack.source_lines import Sources
from dsexplore._internal.capture.timing.device_timing import CudaSpan
from dsexplore._internal.trace.schema import Phase, State


class Redistribute(NamedTuple):
    """A change of a DTensor's placements that issued a collective."""

    reason: str
    """The op that needed it, such as ``aten.add``; ``redistribute`` where the program asked for it."""
    before: tuple[Any, ...]
    """One placement per mesh axis."""
    after: tuple[Any, ...]
    """One placement per mesh axis."""

    def __str__(self) -> str:
        return f"{self.reason} {placement_text.change(self.before, self.after)}"


class Origin(NamedTuple):
    """Where in the program a collective was issued, and why."""

    phase: Phase
    trigger: ModuleEntry | None
    """The module that was running; in backward, the module that made the running autograd node in forward."""
    owner: ModuleEntry | None
    """The module that owns the moved parameters; the trigger if none do."""
    sources: Sources
    """The user's lines."""
    cause: str = ""
    redistribute: Redistribute | None = None
    is_implicit: bool = False
    """True if it is a redistribute that the program did not ask for."""
    is_object: bool = False
    """True if it is part of an object collective, such as ``all_gather_object``."""

    @property
    def cause_text(self) -> str:
        """Cause and redistribute as one text, ``"FSDP post_backward: redistribute P→R"``; empty if there is neither."""
        return ": ".join(str(part) for part in (self.cause, self.redistribute) if part)


class IssuedObserver(Protocol):
    """An object that is told of issued collectives, such as a recording."""

    def begin(self, issued: Issued) -> None:
        """Take a collective of real ranks that is about to be issued."""

    def add(self, issued: Issued) -> None:
        """Append a collective that has been issued."""

    def drop(self, issued: Issued) -> None:
        """Remove a collective that was begun and then refused."""


class Label:
    """One call of a layer over torch, such as `dsexplore.comm`, which may issue several collectives.

    The layer sets ``current.label`` while it calls torch, and the recorder gives the label to each collective that this
    thread issues until then. The log of `dsexplore.comm` groups collectives by their labels.

    Args:
        ends_with_call: whether the call's collectives are over when it returns. The layer then calls
            `Recorder.end_label`, which spares each collective a callback in another thread.
    """

    __slots__ = ("ends_with_call", "issued")

    def __init__(self, ends_with_call: bool) -> None:
        self.ends_with_call = ends_with_call
        self.issued: list[Issued] = []
        """The collectives that the call issued, in order; each refers to its label."""


class _Current(threading.local):
    label: Label | None = None


current = _Current()
"""``current.label`` is the label of the collectives that this thread issues; None outside a labeled call."""


@dataclass(slots=True, eq=False)
class Issued:
    """A collective: one event per message."""

    raw_op: str
    """The dispatcher's name, such as ``c10d::allreduce_``."""
    messages: Sequence[Message]
    """One message, or several if calls were coalesced."""
    group: Group | None
    """Its process group; None if the op names none."""
    rank: int
    """The global rank that issued it."""
    origin: Origin
    is_async: bool = False
    """True if the op may return before the collective is done."""
    label: Label | None = None
    """The call of a layer over torch that issued it; None outside such a call."""
    parties: Parties | None = None
    """Its peers, root and split sizes; None if all ranks of the group take the same part."""
    batch: int | None = None
    """A number that the members of one coalesced call share; None outside such a call."""
    start: int | None = None
    """Nanoseconds since the epoch; None if nothing is measured, as on simulated ranks."""
    end: int | None = None
    """Nanoseconds since the epoch; None while it runs, and if nothing is measured."""
    span: CudaSpan | None = None
    """Start and end on the device, until `read_clock` has turned them into ``start`` and ``end``."""
    needs_work: bool = False
    """True if its time is measured, by the ``Work`` that its backend returns."""
    recordings: Sequence[IssuedObserver] = ()
    """The recordings that were open when it began, and that it is added to when it has returned."""
    ends_at_return: bool = False
    """True if ``end`` is the time at which the op returned, as its ``Work`` has no future that reports the end."""
    waited: int | None = None
    """Nanoseconds for which it blocked the program; None if that was not observed."""
    input: int = 0
    """The number of the tensor that its trigger was called with, see `ModuleCall.input`."""
    failure: str = ""
    """``"failed: RuntimeError"`` for one that raised, which has no end; else empty."""

    def read_clock(self, *, waits: bool = True) -> None:
        """Fill in start and end if they were measured on a device.

        Args:
            waits: True to wait for the device; False to leave the end of a collective that still runs None.
        """
        span = self.span  # another thread may set it to None
        if span is not None and (span.has_end if waits else span.is_over):
            if not self.failure:
                self.start, self.end = span.read()
            self.span = None

    @property
    def is_over(self) -> bool:
        """True if the collective has ended or failed, or if it is not measured."""
        span = self.span  # another thread may set it to None
        if span is not None:
            return bool(self.failure) or span.is_over
        return self.start is None or self.end is not None or bool(self.failure)

    @property
    def state(self) -> State:
        """State of the collective, once `read_clock` was called; empty if nothing is measured."""
        if self.failure:
            return "failed"
        if self.start is None and self.span is None:
            return ""
        return "completed" if self.end is not None else "scheduled"

    @property
    def cause_text(self) -> str:
        """Failure, or else why it was issued, see `Origin.cause_text`."""
        return self.failure or self.origin.cause_text


class Batches(threading.local):
    """Numbers coalesced calls in the order in which they begin, across all threads.

    One thread issues all members of a batch, so each thread keeps its current number.

    Args:
        numbers: the numbers to give, shared by all threads.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._current = 0

    def number_of(self, *, is_first: bool) -> int:
        """Return the number of a batch: a new one for its first member, this thread's current one for the others."""
        if is_first:
            self._current = next(self._numbers)
        return self._current


def is_async(entry: Communication, args: Sequence[Any]) -> bool:
    """Return True if an op may return before its collective is done.

    Args:
        entry: the op's entry.
        args: the op's positional arguments; trailing ones may be omitted.
    """
    if entry.always_sync:
        return False
    if entry.async_op is None or entry.async_op >= len(args):
        return True
    return bool(args[entry.async_op])

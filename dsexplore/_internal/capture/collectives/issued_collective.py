"""One collective as it was issued. Names and texts are made later, together with the tables."""

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
        """Cause and redistribute as one text: ``"FSDP post_backward: redistribute P→R"``; empty if both are."""
        return ": ".join(str(part) for part in (self.cause, self.redistribute) if part)


class Keeper(Protocol):
    """A keeper of issued collectives, such as a recording."""

    def begin(self, issued: Issued) -> None:
        """Write a collective of real ranks that is about to be issued."""

    def add(self, issued: Issued) -> None:
        """Append a collective that has been issued."""

    def drop(self, issued: Issued) -> None:
        """Take back a collective that was begun and refused."""


class Label:
    """One call of a layer over torch, which may issue several collectives; see `labels.current`.

    Args:
        ends_with_call: whether what the call issues is over when the call returns. The layer then calls
            `recorder.end_label`, and the recorder asks for no callback of the collective's own, which costs a switch
            of threads.
    """

    __slots__ = ("ends_with_call", "issued")

    def __init__(self, ends_with_call: bool) -> None:
        self.ends_with_call = ends_with_call
        self.issued: list[Issued] = []
        """The collectives that the call issued, in order; each refers to its label."""


@dataclass(slots=True, eq=False)
class Issued:
    """A collective: one event per message."""

    raw_op: str
    """The dispatcher's name, such as ``c10d::allreduce_``."""
    messages: Sequence[Message]
    """Several where calls were coalesced."""
    group: Group | None
    rank: int
    """The global rank that issued it."""
    origin: Origin
    is_async: bool = False
    """True if the op returned before it was done."""
    label: Label | None = None
    """Names the call of a layer over torch that issued it; None outside such a call."""
    parties: Parties | None = None
    """Its peers, root and split sizes; None if all ranks of the group take the same part."""
    batch: int | None = None
    """The number that the members of one coalesced call share; None outside one."""
    start: int | None = None
    """Nanoseconds since the epoch; None where nothing is measured, as on simulated ranks."""
    end: int | None = None
    span: CudaSpan | None = None
    """Start and end on the device, until `read_clock` has turned them into ``start`` and ``end``."""
    needs_work: bool = False
    """True if it takes time that is measured, by the ``Work`` that its backend returns."""
    recordings: Sequence[Keeper] = ()
    """The recordings that were open when it began: it is added to them when it has returned."""
    ends_at_return: bool = False
    """True if ``end`` is the time at which the op returned: its work has no future that says when it was over."""
    waited: int | None = None
    """Nanoseconds that the program was blocked by it; None if that was not observed."""
    input: int = 0
    """The number of the tensor that its trigger was called with, as of `ModuleCall`."""
    failure: str = ""
    """``"failed: RuntimeError"`` for one that raised, which has no end; else empty."""

    def read_clock(self, *, waits: bool = True) -> None:
        """Fill in start and end from the device, where they were measured there.

        Args:
            waits: whether to wait for a device that has not got there; else the collective has no end yet.
        """
        if self.span is not None and (self.span.has_end if waits else self.span.is_over):
            if not self.failure:
                self.start, self.end = self.span.read()
            self.span = None

    @property
    def is_over(self) -> bool:
        """True if nothing more is to be measured."""
        span = self.span  # another thread may read it
        if span is not None:
            return bool(self.failure) or span.is_over
        return self.start is None or self.end is not None or bool(self.failure)

    @property
    def state(self) -> State:
        """Its state, once `read_clock` has been called; empty if nothing is measured."""
        if self.failure:
            return "failed"
        if self.start is None and self.span is None:
            return ""
        return "completed" if self.end is not None else "scheduled"

    @property
    def cause_text(self) -> str:
        """Failure, else the reason why it was issued, as `Origin.cause_text`."""
        return self.failure or self.origin.cause_text


class Batches(threading.local):
    """Numbers coalesced calls in the order in which they begin, in any thread.

    The later members of a batch are issued by the thread that began it, so each thread keeps its current number.

    Args:
        numbers: to take from.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._current = 0

    def number_of(self, position: int) -> int:
        """Return the number of a batch: this thread's open one for a later member (`position` 2), else a new one."""
        if position < 2:
            self._current = next(self._numbers)
        return self._current


def is_async(entry: Communication, args: Sequence[Any]) -> bool:
    """Return True if an op returns before it is done.

    Args:
        entry: how to read the op.
        args: its positional arguments; trailing ones may be omitted.
    """
    if entry.always_sync:
        return False
    if entry.async_op is None or entry.async_op >= len(args):
        return True
    return bool(args[entry.async_op])

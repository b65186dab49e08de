"""One collective as it was issued: as cheap as it can be, texts are made when a table is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsexplore import placements
from dsexplore.capture.autograd_nodes import Call, NoCall, site
from dsexplore.capture.groups import Group, own_rank
from dsexplore.capture.labels import Label
from dsexplore.capture.modules import Module
from dsexplore.capture.ops import Communication, Message
from dsexplore.capture.source_lines import Sources
from dsexplore.capture.timing import CudaSpan
from dsexplore.trace.schema import Phase

if TYPE_CHECKING:
    from dsexplore.capture.recording import Recording

Placements = tuple[Any, ...]
"""One per mesh axis."""


@dataclass(slots=True, eq=False, init=False)
class Issued:
    """A collective: one event per message."""

    raw_op: str
    messages: Sequence[Message]
    """Several where calls were coalesced."""
    group: Group | None
    rank: int
    phase: Phase
    trigger: Module | None
    owner: Module | None
    cause: str
    asked_by: str
    """What asked for a redistribute; empty where the cause is none."""
    before: Placements
    after: Placements
    implicit: bool
    sources: Sources
    node: int
    """In backward: autograd's number of the node that issued it, until `answer`; else -1."""
    is_async: bool
    is_object: bool
    batch: int | None
    start: int | None
    end: int | None
    span: CudaSpan | None
    needs_work: bool
    """Whether it takes time that is measured, by the ``Work`` that its backend returns."""
    recordings: Sequence[Recording]
    """Those that it will be part of once it has returned; then empty."""
    label: Label | None
    """Of the call of a layer over torch that issued it."""

    def __init__(
        self,
        raw_op: str,
        messages: Sequence[Message],
        group: Group | None,
        phase: Phase,
        trigger: Module | None,
        owner: Module | None,
        sources: Sources,
        cause: str,
        asked_by: str = "",
        before: Placements = (),
        after: Placements = (),
    ) -> None:
        """Explicit, not async, in no batch and without times: what only some ops have is filled in later."""
        self.raw_op = raw_op
        self.messages = messages
        self.group = group
        if group is not None:
            self.rank = group.own_rank
            self.needs_work = group.timing != "none"
        else:
            self.rank = own_rank()
            self.needs_work = False
        self.phase = phase
        self.trigger = trigger
        self.owner = owner
        self.cause = cause
        self.asked_by = asked_by
        self.before = before
        self.after = after
        self.implicit = False
        self.sources = sources
        self.node = -1
        self.is_async = False
        self.is_object = False
        self.batch = self.start = self.end = self.span = None
        self.recordings = ()
        self.label = None

    def answer(self, call: Call | NoCall) -> None:
        """That call made the node that issued it."""
        if self.node >= 0:
            self.trigger = call[0]
            self.owner = self.owner or call[0]
            self.sources = site(call) + self.sources  # ``loss.backward()`` alone would tell nothing
            self.node = -1

    @property
    def cause_text(self) -> str:
        """``"FSDP post_backward: redistribute P→R"``."""
        if not self.asked_by:
            return self.cause
        change = f"{self.asked_by} {placements.change(self.before, self.after)}"
        return f"{self.cause}: {change}" if self.cause else change

    def read_clock(self) -> None:
        """Fill in start and end from the device, where they were measured there; waits for it."""
        if self.span is not None:
            self.start, self.end = self.span.read()
            self.span = None


class Batches(threading.local):
    """Numbers batches as they begin, in any thread; the later members of one come in the thread that began it.

    Args:
        numbers: to take from.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._current = 0

    def of(self, position: int) -> int:
        """The number of a batch: a new one, unless its member at that position is a later one of the last."""
        if position < 2:
            self._current = next(self._numbers)
        return self._current


def is_async(entry: Communication, args: tuple[Any, ...]) -> bool:
    """Whether the op returns before it is done."""
    if entry.always_sync:
        return False
    if entry.async_op is None or entry.async_op >= len(args):
        return True
    return bool(args[entry.async_op])

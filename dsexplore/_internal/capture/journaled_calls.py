"""Writes each call of a recording to a file at once, in case the process ends without saving its trace.

Calls that differ in time alone are one kind. A kind is described once, and each further call takes a microsecond.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from dsexplore._internal.capture.collectives.groups import launched_rank
from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.content.recorded_content import event_rows, group_rows, world_size_of
from dsexplore._internal.trace.call_journal import NOT_NUMBERED, CallJournal, JournalInfo, journal_file
from dsexplore._internal.trace.files import names_directory
from dsexplore._internal.trace.matching import is_numbered
from dsexplore._internal.trace.process_states import host_clock, start_ticks

_MOST_REMEMBERED = 10_000
"""Maximum number of kinds that are looked up by identity. It bounds memory where each call has new objects."""


class _JournaledKind(NamedTuple):
    """Calls that differ in time alone."""

    number: int
    """Its number in the journal."""
    raw_op: str
    is_numbered: bool
    """True if its calls are numbered in their group."""
    holds: tuple[object, ...]
    """The objects by whose identity it is looked up, kept alive so that no other object gets the same identity."""


class JournaledCalls:
    """Writes the calls of a recording into a `CallJournal`.

    Args:
        journal: the journal of this rank.
        stack_depth: the number of the user's lines to keep per call.
    """

    def __init__(self, journal: CallJournal, stack_depth: int) -> None:
        self._journal = journal
        self._stack_depth = stack_depth
        self._kind_by_identity: dict[Hashable, _JournaledKind] = {}
        """{common parts of calls, by identity: the kind}. Calls of one kind mostly share these objects."""
        self._kinds: dict[Hashable, _JournaledKind] = {}
        """{common parts of calls: the kind}."""
        self._numbers: dict[int, int] = {}
        """{identity of a group: number of its next collective}."""

    def add(self, issued: Issued) -> None:
        """Write a collective that is about to be issued, or has been.

        A collective that cannot be written is omitted, such as one with symbolic sizes.
        """
        with suppress(Exception):  # an error must not reach the program
            self._write(issued)

    def take_back(self, issued: Issued) -> None:
        """Remove a collective that was written and then refused, as for a tensor of a wrong shape."""
        group = id(issued.group)
        if group in self._numbers and is_numbered(issued.messages[0].op):
            self._numbers[group] -= len(issued.messages)
        self._journal.take_back(issued)

    def _write(self, issued: Issued) -> None:
        """Write one call per message; the kind is looked up by identity first, which is faster."""
        messages, group, sources = issued.messages, id(issued.group), issued.origin.sources
        code, offset = sources[0] if sources else (None, 0)
        kind = self._kind_by_identity.get((id(messages), group, issued.parties, id(code), offset))
        if kind is None or kind.raw_op != issued.raw_op:
            kind = self._kind(issued)
        number = NOT_NUMBERED
        for _ in messages:
            if kind.is_numbered:
                number = self._numbers.get(group, 0)
                self._numbers[group] = number + 1
            self._journal.add(kind.number, number, issued.start, issued)

    def _kind(self, issued: Issued) -> _JournaledKind:
        """Return the kind of a collective whose objects were not met before; describe it if it is new."""
        group, sources = issued.group, issued.origin.sources
        code, offset = sources[0] if sources else (None, 0)
        key = (tuple(issued.messages), id(group), issued.raw_op, issued.parties, id(code), offset)
        kind = self._kinds.get(key)
        if kind is None:
            row = next(iter(group_rows([group])), None) if group is not None else None
            number = self._journal.add_kind(event_rows(issued, self._stack_depth), row)
            in_group = group is not None and is_numbered(issued.messages[0].op)
            kind = self._kinds[key] = _JournaledKind(number, issued.raw_op, in_group, (group, code))
        if len(self._kind_by_identity) < _MOST_REMEMBERED:
            identity = (id(issued.messages), id(group), issued.parties, id(code), offset)
            self._kind_by_identity[identity] = kind._replace(holds=(issued.messages, group, code))
        return kind

    def settle(self) -> None:
        """Write which calls have ended by now."""
        self._journal.settle()

    def remove(self) -> None:
        """Remove the journal's file, once the trace is saved."""
        self._journal.remove()


def open_journal(save: str | os.PathLike[str], attempt: str, began: int, stack_depth: int) -> JournaledCalls | None:
    """Begin the journal of this rank in the directory that its trace is saved into.

    Args:
        save: the directory or file that the trace is saved to.
        attempt: the name of this attempt, see `TraceInfo.attempt`.
        began: the begin of the block, see `TraceInfo.began`.
        stack_depth: the number of the user's lines to keep per call.

    Returns:
        The journal; None if ``save`` is a single file, or its file system cannot map files into memory.
    """
    if not names_directory(save):
        return None
    rank = launched_rank()
    info = JournalInfo(
        rank=rank,
        world_size=world_size_of(()),
        attempt=attempt,
        began=began,
        clock=host_clock(),
        pid=os.getpid(),
        born=start_ticks(os.getpid()),
        torch_version=torch.__version__,
    )
    try:
        journal = CallJournal(Path(save) / journal_file(rank), info)
    except (OSError, ValueError):
        return None
    return JournaledCalls(journal, stack_depth)

"""The calls of a recording in a file that is always current, in case the process ends without saving.

Calls that differ in time alone are one kind, which is described once: a further call takes about a microsecond.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from dsexplore._internal.capture.collectives.groups import own_rank
from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.content.recorded_content import event_rows, group_rows, world_size_of
from dsexplore._internal.trace.call_journal import NOT_NUMBERED, CallJournal, JournalInfo, journal_file
from dsexplore._internal.trace.files import names_directory
from dsexplore._internal.trace.matching import is_numbered
from dsexplore._internal.trace.process_states import host_clock, start_ticks

_MOST_REMEMBERED = 10_000
"""Calls whose parts are remembered by identity; parts that are made anew for each call gain nothing by it."""


class _JournaledKind(NamedTuple):
    """Calls that differ in time alone."""

    number: int
    raw_op: str
    has_numbers: bool
    """True if its calls are numbered in their group."""
    holds: tuple[object, ...]
    """What is known by identity, and so must live as long."""


class JournaledCalls:
    """Writes the calls of a recording into a `CallJournal`.

    Args:
        journal: to write into.
        stack_depth: the user's lines to keep per call.
    """

    def __init__(self, journal: CallJournal, stack_depth: int) -> None:
        self._journal = journal
        self._stack_depth = stack_depth
        self._kind_by_identity: dict[Hashable, _JournaledKind] = {}
        """{what calls have in common, by identity where parts are mostly the same objects: the kind}."""
        self._kinds: dict[Hashable, _JournaledKind] = {}
        """{what calls have in common: the kind}."""
        self._numbers: dict[int, int] = {}
        """{identity of a group: number of its next collective}."""

    def add(self, issued: Issued) -> None:
        """Write a collective that is about to be issued, or has been; omit one that cannot be written.

        Such is one of sizes that are symbols.
        """
        with suppress(Exception):  # the program's own call goes on
            self._write(issued)

    def take_back(self, issued: Issued) -> None:
        """Remove a collective that was written and then refused, as for a tensor of a wrong shape."""
        of_group, messages = id(issued.group), len(issued.messages)
        if of_group in self._numbers and is_numbered(issued.messages[0][0]):
            self._numbers[of_group] -= messages
        self._journal.take_back(issued)

    def _write(self, issued: Issued) -> None:
        messages, of_group, sources = issued.messages, id(issued.group), issued.origin.sources
        code, offset = sources[0] if sources else (None, 0)
        kind = self._kind_by_identity.get((id(messages), of_group, issued.parties, id(code), offset))
        if kind is None or kind.raw_op != issued.raw_op:
            kind = self._kind(issued)
        number = NOT_NUMBERED
        for _ in messages:
            if kind.has_numbers:
                number = self._numbers.get(of_group, 0)
                self._numbers[of_group] = number + 1
            self._journal.add(kind.number, number, issued.start, issued)

    def _kind(self, issued: Issued) -> _JournaledKind:
        """Return the kind of a collective whose parts were not met before, or not as these objects."""
        group, sources = issued.group, issued.origin.sources
        code, offset = sources[0] if sources else (None, 0)
        key = (tuple(issued.messages), id(group), issued.raw_op, issued.parties, id(code), offset)
        kind = self._kinds.get(key)
        if kind is None:
            row = next(iter(group_rows([group])), None) if group is not None else None
            number = self._journal.add_kind(event_rows(issued, self._stack_depth), row)
            has_numbers = group is not None and is_numbered(issued.messages[0][0])
            kind = self._kinds[key] = _JournaledKind(number, issued.raw_op, has_numbers, (group, code))
        if len(self._kind_by_identity) < _MOST_REMEMBERED:
            identity = (id(issued.messages), id(group), issued.parties, id(code), offset)
            self._kind_by_identity[identity] = kind._replace(holds=(issued.messages, group, code))
        return kind

    def settle(self) -> None:
        """Write which calls have ended by now."""
        self._journal.settle()

    def remove(self) -> None:
        """Remove the journal, once a trace says more."""
        self._journal.remove()


def own_rank_or_launchers() -> int:
    """Return the rank of this process, from its launcher before there is a process group."""
    return own_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def open_journal(save: str | os.PathLike[str], attempt: str, began: int, stack_depth: int) -> JournaledCalls | None:
    """Begin the journal of this rank in the directory that its trace is saved into.

    Args:
        save: where the trace is saved.
        attempt: see `TraceInfo.attempt`.
        began: see `TraceInfo.began`.
        stack_depth: the user's lines to keep per call.

    Returns:
        None for a single file, of a program that is one process, and on a file system that maps no files.
    """
    if not names_directory(save):
        return None
    rank = own_rank_or_launchers()
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

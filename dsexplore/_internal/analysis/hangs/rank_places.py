"""Finds where ranks are that wait in no recorded call, and which of them hold up the job, from the ranks' stacks.

``new_group``, waits at the store, ``init_process_group`` and the code between collectives are not recorded, so only
stacks show them. `culprits_by_place` applies the first of these rules that fits:

1. Some ranks are in a call of torch.distributed and others have ended: these are waited for.
2. The error of a rank names ranks that did not come to a ``monitored_barrier``.
3. A signal killed ranks.
4. A minority of the ranks is elsewhere than the others, see `ranks_elsewhere`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import JobCalls
from dsexplore._internal.units import format_ranks
from dsexplore._internal.user_code import is_user_file

_FRAME = re.compile(r'File "([^"]*)", line (\d+),? in ([^\n]*)')
_WRAPPERS = frozenset({"wrapper", "inner", "_wrapper", "decorate_context", "_fn", "__enter__", "__exit__"})
"""Functions that wrap others: a call is named by the function inside them."""
_INSTALLED = "…/"
"""The folder of installed packages in shortened stacks."""


class _Frame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: str
    function: str

    @property
    def is_cell(self) -> bool:
        """True in a cell of a notebook."""
        return self.file.startswith("In[")

    @property
    def is_user(self) -> bool:
        """True in the user's code, False in an installed package."""
        return not self.file.startswith(_INSTALLED) and is_user_file(self.file)


class RankPlace(NamedTuple):
    """The place in the program where a rank is."""

    line: str
    """The innermost line of the user's code, ``"train.py:12"``; in a notebook, the innermost line of a cell."""
    call: str
    """The function of torch.distributed that this line called, such as ``new_group``; empty for other code."""

    @classmethod
    def of(cls, stack: str) -> RankPlace:
        """Read a stack, innermost call first, as Python or its fault handler writes it."""
        frames = [_Frame(file, line, function.strip()) for file, line, function in _FRAME.findall(stack)]
        if not frames:
            lines = stack.strip().splitlines()
            return cls(line=lines[0].strip() if lines else "an unknown line", call="")
        index = _innermost_user_frame(frames)
        called = [frame for frame in frames[:index] if frame.function not in _WRAPPERS]
        is_distributed = bool(called) and "torch/distributed/" in called[-1].file
        return cls(
            line=f"{PurePath(frames[index].file).name}:{frames[index].line}",
            call=called[-1].function if is_distributed else "",
        )

    @property
    def text(self) -> str:
        """``in new_group (train.py:52)``, or ``at train.py:53``."""
        return f"in {self.call} ({self.line})" if self.call else f"at {self.line}"


def _innermost_user_frame(frames: Sequence[_Frame]) -> int:
    """Return the index of the innermost frame in a cell; without cells, in other user code; without any, 0."""
    cells = [index for index, frame in enumerate(frames) if frame.is_cell]
    if cells:
        return cells[0]
    return next((index for index, frame in enumerate(frames) if frame.is_user), 0)


def ranks_elsewhere(places: Mapping[int, RankPlace]) -> tuple[int, ...]:
    """Return the ranks that the others wait for, judged by where each is.

    Ranks in a call of torch.distributed wait for those that are not in one. If all or none are in such a call, return
    the ranks that are not at the most common place.

    Args:
        places: {rank: its place}.

    Returns:
        The ranks; empty if they are more than half of all, or if no place is the most common one.
    """
    elsewhere = sorted(rank for rank, place in places.items() if not place.call)
    if elsewhere and len(elsewhere) < len(places):
        return tuple(elsewhere) if 2 * len(elsewhere) <= len(places) else ()
    return tuple(sorted(outnumbered(_ranks_by_place(places).values())))


def _ranks_by_place(places: Mapping[int, RankPlace]) -> dict[RankPlace, list[int]]:
    by_place: dict[RankPlace, list[int]] = defaultdict(list)
    for rank, place in places.items():
        by_place[place].append(rank)
    return by_place


def outnumbered(sides: Iterable[Collection[int]]) -> set[int]:
    """Return the ranks of all sides but the largest; empty if no side is larger than all others.

    Examples:
        >>> sorted(outnumbered([{0, 1, 2}, {3}, {4}]))
        [3, 4]
        >>> outnumbered([{0}, {1}]), outnumbered([])
        (set(), set())
    """
    by_size = sorted(sides, key=len, reverse=True)
    if len(by_size) < 2 or len(by_size[0]) == len(by_size[1]):
        return set()
    return set().union(*by_size[1:])


def places_text(places: Mapping[int, RankPlace], first: Iterable[int] = ()) -> str:
    """Return the places of ranks as text: ``ranks 0, 1 in new_group (train.py:52), rank 2 at train.py:53``.

    Args:
        places: {rank: its place}.
        first: the ranks to name first.
    """
    named_first = set(first)
    ordered = sorted(places, key=lambda rank: (rank not in named_first, rank))
    by_place = _ranks_by_place({rank: places[rank] for rank in ordered})
    return ", ".join(f"{format_ranks(ranks)} {place.text}" for place, ranks in by_place.items())


_NOT_AT_BARRIER = re.compile(r"Ranks? (\d+(?:, *\d+)*) failed to pass monitoredBarrier")
"""Error of ``monitored_barrier`` on rank 0."""


class Culprits(NamedTuple):
    """The ranks that hold up a job in which no rank waits in a recorded call."""

    culprits: tuple[int, ...]
    suspects: tuple[int, ...]
    """Without culprits, the ranks among which the cause is; else empty."""


def culprits_by_place(job: JobCalls) -> Culprits | None:
    """Return the ranks that hold up a job in which no rank waits in a recorded call.

    Returns:
        The ranks; None if the job is not known to be stuck, or if the stack of a running rank is unknown.
    """
    running = {rank: calls for rank, calls in job.ranks.items() if calls.end is None and calls.has_evidence}
    if job.no_progress_for is None or not running or not all(calls.stack for calls in running.values()):
        return None
    places = {rank: RankPlace.of(calls.stack) for rank, calls in running.items()}
    ends = {rank: calls.end for rank, calls in job.ranks.items() if calls.end is not None}
    unseen = job.ranks.keys() - running.keys() - ends.keys()
    if ends and any(place.call for place in places.values()):
        culprits = tuple(sorted(ends))
    else:
        missing = _missing_at_barrier(running, (end.text for end in ends.values()))
        killed = tuple(sorted(rank for rank, end in ends.items() if end.how == "killed"))
        culprits = missing or killed or ranks_elsewhere(places)
    return Culprits(culprits=culprits, suspects=() if culprits else tuple(sorted({*unseen, *running})))


def _missing_at_barrier(running: Iterable[int], errors: Iterable[str]) -> tuple[int, ...]:
    """Return the running ranks that did not come to a ``monitored_barrier``, by the errors of ranks that did."""
    named = {int(rank) for text in errors for ranks in _NOT_AT_BARRIER.findall(text) for rank in ranks.split(",")}
    return tuple(sorted(named.intersection(running)))

"""Finds out where ranks are that wait in no recorded call, and which of them hold up the job.

``new_group``, waits at the store, ``init_process_group`` and the code between collectives are no calls of a group. Only
stacks show that ranks are there. `blame` calls `outside` if no recorded call waits. If ranks are in a call of
torch.distributed, they wait for ranks that ended. If none is, the others wait for a rank that torch's own error names,
or else for one that a signal ended. Otherwise the ranks are odd that are elsewhere than most.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import JobCalls
from dsexplore._internal.units import format_ranks
from dsexplore._internal.user_code import is_user_file

_FRAME = re.compile(r'File "([^"]*)", line (\d+),? in ([^\n]*)')
_WRAPPERS = frozenset({"wrapper", "inner", "_wrapper", "decorate_context", "_fn", "__enter__", "__exit__"})
_INSTALLED = "…/"
"""The folder of installed packages in shortened stacks."""


class Standing(NamedTuple):
    """The place in the program where a rank is."""

    line: str
    """The innermost line of the program, ``"train.py:12"``; in a notebook, the innermost line of a cell."""
    call: str
    """The function of torch.distributed that this line called, such as ``new_group``; empty for other code."""

    @classmethod
    def of(cls, stack: str) -> Standing:
        """Read a stack, innermost call first, as Python or its fault handler writes it."""
        frames = [(file, line, name.strip()) for file, line, name in _FRAME.findall(stack)]
        if not frames:
            return cls((stack.strip().splitlines() or ["an unknown line"])[0].strip(), "")
        cells = [at for at, frame in enumerate(frames) if frame[0].startswith("In[")]
        program = cells or [at for at, frame in enumerate(frames) if _is_of_the_program(frame[0])] or [0]
        file, line, _ = frames[program[0]]
        inner = [frame for frame in reversed(frames[: program[0]]) if frame[2] not in _WRAPPERS]
        is_distributed = bool(inner) and "torch/distributed/" in inner[0][0]
        return cls(f"{PurePath(file).name}:{line}", inner[0][2] if is_distributed else "")

    @property
    def text(self) -> str:
        """``in new_group (train.py:52)``, or ``at train.py:53``."""
        return f"in {self.call} ({self.line})" if self.call else f"at {self.line}"


def _is_of_the_program(file: str) -> bool:
    return not file.startswith(_INSTALLED) and is_user_file(file)


def odd_ones(standing: Mapping[int, Standing]) -> tuple[int, ...]:
    """Return the ranks that the others wait for, judged by their places; empty if these do not show it.

    Ranks in torch.distributed wait for the ranks that are elsewhere. If all or none are in it, all ranks are odd that
    are not at the most common place.
    """
    elsewhere = sorted(rank for rank, place in standing.items() if not place.call)
    if elsewhere and len(elsewhere) < len(standing):
        return tuple(elsewhere) if 2 * len(elsewhere) <= len(standing) else ()
    sides: dict[Standing, list[int]] = defaultdict(list)
    for rank, place in sorted(standing.items()):
        sides[place].append(rank)
    return tuple(sorted(outnumbered(sides.values())))


def outnumbered(sides: Iterable[Collection[int]]) -> set[int]:
    """Return the ranks of all sides but the largest; empty if no side is larger than all others.

    Example:
        >>> sorted(outnumbered([{0, 1, 2}, {3}, {4}]))
        [3, 4]
    """
    most, *others = sorted(sides, key=len, reverse=True)
    return set().union(*others) if others and len(most) > len(others[0]) else set()


def places_text(standing: Mapping[int, Standing], first: Iterable[int] = ()) -> str:
    """Return the places of ranks as text: ``ranks 0, 1 in new_group (train.py:52), rank 2 at train.py:53``.

    Args:
        standing: {rank: its place}.
        first: the ranks to name first.
    """
    begin = set(first)
    together: dict[Standing, list[int]] = defaultdict(list)
    for rank in sorted(standing, key=lambda rank: (rank not in begin, rank)):
        together[standing[rank]].append(rank)
    return ", ".join(f"{format_ranks(ranks)} {place.text}" for place, ranks in together.items())


_NOT_AT_BARRIER = re.compile(r"Ranks? (\d+(?:, *\d+)*) failed to pass monitoredBarrier")
"""Error of ``monitored_barrier`` on rank 0."""


class Outside(NamedTuple):
    """The ranks that hold up a job in which no rank waits in a recorded call."""

    culprits: tuple[int, ...]
    suspects: tuple[int, ...]
    """Without culprits, the ranks among which the cause is; else empty."""


def outside(job: JobCalls) -> Outside | None:
    """Return the ranks that hold up a job in which no rank waits in a recorded call.

    Returns:
        The ranks; None if the job is not known to be stuck, or if the stack of a running rank is unknown.
    """
    running = {rank: calls for rank, calls in job.ranks.items() if calls.end is None and calls.has_evidence}
    if job.stood is None or not running or not all(calls.stack for calls in running.values()):
        return None
    standing = {rank: Standing.of(calls.stack) for rank, calls in running.items()}
    ends = {rank: calls.end for rank, calls in job.ranks.items() if calls.end is not None}
    unseen = job.ranks.keys() - running.keys() - ends.keys()
    killed = tuple(sorted(rank for rank, end in ends.items() if end.how == "killed"))
    if ends and any(place.call for place in standing.values()):
        culprits = tuple(sorted(ends))
    else:
        culprits = _missing_at_barrier(running, (end.text for end in ends.values())) or killed or odd_ones(standing)
    return Outside(culprits, () if culprits else tuple(sorted({*unseen, *running})))


def _missing_at_barrier(running: Iterable[int], errors: Iterable[str]) -> tuple[int, ...]:
    """Return the running ranks that did not come to a ``monitored_barrier``, by the errors of ranks that did."""
    named = {int(rank) for text in errors for ranks in _NOT_AT_BARRIER.findall(text) for rank in ranks.split(",")}
    return tuple(sorted(named.intersection(running)))

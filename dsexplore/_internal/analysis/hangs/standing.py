"""Where ranks stand that wait in no recorded call: in other calls of torch.distributed, or in code of their own.

``new_group``, waits at the store, ``init_process_group`` and all that a program does between its collectives are no
calls of a group, and their ranks are known by their stacks alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from dsexplore._internal.units import format_ranks
from dsexplore._internal.user_code import is_user_file

_FRAME = re.compile(r'File "([^"]*)", line (\d+),? in ([^\n]*)')
_WRAPPERS = frozenset({"wrapper", "inner", "_wrapper", "decorate_context", "_fn", "__enter__", "__exit__"})
_INSTALLED = "…/"
"""Stands for the folder of installed packages in stacks that were shortened."""


class Standing(NamedTuple):
    """Where a rank stands."""

    line: str
    """The innermost line of the program, ``"train.py:12"``; that of a notebook's cell if there is one."""
    call: str
    """The function of torch.distributed that this line called, such as ``new_group``; empty for any other code."""

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
    """Return the ranks that the others wait for, judged by where they stand; empty if that does not show.

    Ranks that wait in torch.distributed wait for those that are elsewhere. Where all or none of them do, those that
    stand where fewest do are odd.
    """
    elsewhere = sorted(rank for rank, place in standing.items() if not place.call)
    if elsewhere and len(elsewhere) < len(standing):
        return tuple(elsewhere) if 2 * len(elsewhere) <= len(standing) else ()
    sides: dict[Standing, list[int]] = defaultdict(list)
    for rank, place in sorted(standing.items()):
        sides[place].append(rank)
    return tuple(sorted(outnumbered(sides.values())))


def outnumbered(sides: Iterable[Collection[int]]) -> set[int]:
    """Return the ranks of all sides but the largest; none where no side is larger than each other one.

    Example:
        >>> sorted(outnumbered([{0, 1, 2}, {3}, {4}]))
        [3, 4]
    """
    most, *others = sorted(sides, key=len, reverse=True)
    return set().union(*others) if others and len(most) > len(others[0]) else set()


def places_text(standing: Mapping[int, Standing], first: Iterable[int] = ()) -> str:
    """Return the places of ranks as text: ``ranks 0, 1 in new_group (train.py:52), rank 2 at train.py:53``.

    Args:
        standing: by rank.
        first: the ranks to begin with.
    """
    begin = set(first)
    together: dict[Standing, list[int]] = defaultdict(list)
    for rank in sorted(standing, key=lambda rank: (rank not in begin, rank)):
        together[standing[rank]].append(rank)
    return ", ".join(f"{format_ranks(ranks)} {place.text}" for place, ranks in together.items())

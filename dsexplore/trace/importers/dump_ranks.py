"""Determine the rank that wrote each dump: dumps need not contain it, and their files may have any name.

A file's rank is, in this order: the dump's own ``rank``; the number after "rank" in its name; the number at the end of
its name; a number in it that differs in all files; the only rank that is in all groups of the dump. A rule counts only
if it gives every file a different rank; a rule whose ranks are in the dumps' groups takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dsexplore.errors import TraceFileError
from dsexplore.trace.importers.recorder_dump import groups_of

_SUFFIX = re.compile(r"(\.(json|pickle|pkl|pk|gz|txt|bin|dump|log|trace|pt))+$", re.IGNORECASE)
_AFTER_RANK = re.compile(r"(?:^|[^a-z])(?:global_?)?rank[^0-9a-z]{0,2}(\d+)", re.IGNORECASE)

_PROCESS_AND_TIME = re.compile(r"(?<!\d)\d+\.\d{12,}$")
"""Ends the name that torch's handler for TensorBoard gives a profile, ``host_1234.1712345678901234567``."""
_TOO_MANY = 1 << 20
"""A number from here on is no rank: it is a time, or the number of a job."""

Guess = dict[Path, int]


def ranks_of_files(contents: Mapping[Path, Any]) -> Guess:
    """Return {file: rank of the dump in it}.

    Args:
        contents: what each file holds, None for an empty one.

    Raises:
        TraceFileError: neither names nor contents say it, or all contents do and two say the same.
    """
    possible = {file: _possible(content) for file, content in contents.items()}
    stems = {file: _PROCESS_AND_TIME.sub("", _SUFFIX.sub("", file.name)) for file in contents}
    _check_written(contents, stems.values())
    most = max((len(re.findall(r"\d+", stem)) for stem in stems.values()), default=0)
    guesses: list[Callable[[Path], int | None]] = [
        lambda file: _written(contents[file]),
        lambda file: rank_in_name(stems[file]),
        lambda file: _number(re.search(r"(\d+)$", stems[file])),
        *(lambda file, at=at: _nth_number(stems[file], at) for at in range(-1, -most - 1, -1)),
        lambda file: next(iter(possible[file])) if len(possible[file]) == 1 else None,
    ]
    found = []
    for guess in guesses:
        ranks = {file: guess(file) for file in contents}
        known = {file: rank for file, rank in ranks.items() if rank is not None and rank < _TOO_MANY}
        if len(known) == len(contents) and len(set(known.values())) == len(known):
            found.append(known)
    fitting = [ranks for ranks in found if all(not possible[f] or rank in possible[f] for f, rank in ranks.items())]
    if found:
        return (fitting or found)[0]
    name = next(iter(contents)).name
    raise TraceFileError(
        f"the names of {len(contents)} dumps, {name} first, do not say which rank each is from: rename them so that "
        "each ends in its rank, such as trace_3"
    )


def _check_written(contents: Mapping[Path, Any], names: Iterable[str]) -> None:
    """Raise if two files contain the same rank, unless the names of all files contain "rank" and different numbers."""
    first: dict[int | None, Path] = {}
    named = [rank_in_name(name) for name in names]
    written = {file: _written(content) for file, content in contents.items()}
    if None in written.values() or (None not in named and len(set(named)) == len(named)):
        return
    for file, rank in written.items():
        if first.setdefault(rank, file) is not file:
            raise TraceFileError(
                f"{first[rank].name} and {file.name} are both of rank {rank}: give one file of each rank, recorded "
                "together"
            )


def rank_in_name(name: str) -> int | None:
    """Return the number after "rank" in a file's name, else None."""
    return _number(_AFTER_RANK.search(name))


def is_named_by_rank(files: Iterable[Path]) -> bool:
    """Return True if the names alone determine the ranks of the files."""
    try:
        ranks_of_files(dict.fromkeys(files))
    except TraceFileError:
        return False
    return True


def _possible(content: Any) -> frozenset[int]:
    """Return the ranks that are in all groups of a dump, which lists the groups of its process; empty if unknown."""
    if not isinstance(content, Mapping):
        return frozenset()
    try:
        groups = [set(ranks) for _, ranks in groups_of(content).values() if ranks]
    except (TypeError, ValueError):  # its reader says so, and the other files are read
        return frozenset()
    return frozenset(set.intersection(*groups)) if groups else frozenset()


def _written(content: Any) -> int | None:
    rank = content.get("rank") if isinstance(content, Mapping) else None
    return int(rank) if isinstance(rank, (int, str)) and str(rank).isdigit() else None


def _number(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found else None


def _nth_number(stem: str, at: int) -> int | None:
    found = re.findall(r"\d+", stem)
    return int(found[at]) if -at <= len(found) else None

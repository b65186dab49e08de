"""Read the flight-recorder dumps of a job, and find the rank of each file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace import unmatched
from dsexplore._internal.trace.checked_tables import checked_tables
from dsexplore._internal.trace.guarded import readable
from dsexplore._internal.trace.importers.recorder_dump import (
    RecorderDump,
    dump_of,
    groups_of,
    is_recorder_dump,
    read_content,
)
from dsexplore._internal.trace.importers.recorder_tables import tables_of, world_size_of
from dsexplore._internal.trace.limits import MOST_RANKS
from dsexplore._internal.trace.merge import merge_as_they_come
from dsexplore._internal.trace.tables import Tables

_SUFFIX = re.compile(r"(\.(json|pickle|pkl|pk|gz|txt|bin|dump|log|trace|pt))+$", re.IGNORECASE)
_AFTER_RANK = re.compile(r"(?:^|[^a-z])(?:global_?)?rank[^0-9a-z]{0,2}(\d+)", re.IGNORECASE)

_PROCESS_AND_TIME = re.compile(r"(?<!\d)\d+\.\d{12,}$")
"""End of the name that torch's handler for TensorBoard gives a profile, ``host_1234.1712345678901234567``."""
_DIGITS = 10
"""Number of digits from which a text is not a rank."""


def ranks_of_files(contents: Mapping[Path, Any]) -> dict[Path, int]:
    """Return {file: rank of the dump in it}: dumps need not contain it, and their files may have any name.

    A file's rank is, in this order: the dump's own ``rank``; the number after "rank" in its name; the number at the end
    of its name; a number in it that differs in all files; the only rank that is in all groups of the dump. A rule
    counts only if it gives every file a different rank; a rule whose ranks are in the dumps' groups takes precedence.

    Args:
        contents: {file: content of its dump}; None for an empty file.

    Raises:
        TraceFileError: no rule gives every file a different rank, or two dumps contain the same rank.
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
    assignments = []
    for guess in guesses:
        ranks = {file: guess(file) for file in contents}
        numbered = {file: rank for file, rank in ranks.items() if rank is not None and rank < MOST_RANKS}
        if len(numbered) == len(contents) and len(set(numbered.values())) == len(numbered):
            assignments.append(numbered)
    for assignment in assignments:
        if all(not possible[file] or rank in possible[file] for file, rank in assignment.items()):
            return assignment
    if assignments:
        return assignments[0]
    name = next(iter(contents)).name
    raise TraceFileError(
        f"the names of {len(contents)} dumps, {name} first, do not say which rank each is from: rename them so that "
        "each ends in its rank, such as trace_3"
    )


def _check_written(contents: Mapping[Path, Any], names: Iterable[str]) -> None:
    """Raise if two dumps contain the same rank, unless the names of all files contain "rank" and different numbers.

    Raises:
        TraceFileError: two do; the message names their files.
    """
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
    """Return the number after "rank" in a file's name; None if there is none."""
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
    except (TypeError, ValueError):  # `dump_of` raises the error, and the other files are read
        return frozenset()
    return frozenset(set.intersection(*groups)) if groups else frozenset()


def _written(content: Any) -> int | None:
    """Return the rank that a dump contains, as a number or as text; None if it has none."""
    rank = content.get("rank") if isinstance(content, Mapping) else None
    if isinstance(rank, str) and rank.isdecimal() and len(rank) < _DIGITS:
        rank = int(rank)
    return rank if isinstance(rank, int) and 0 <= rank < MOST_RANKS else None


def _number(match: re.Match[str] | None) -> int | None:
    return int(match[1]) if match else None


def _nth_number(stem: str, at: int) -> int | None:
    """Return the number at a position below 0, counted from the end, in a file's name; None if it has fewer numbers."""
    numbers = re.findall(r"\d+", stem)
    return int(numbers[at]) if -at <= len(numbers) else None


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job."""

    dumps: tuple[RecorderDump, ...]
    """Dumps of all ranks, sorted by rank."""
    unreadable: tuple[str, ...] = ()
    """Error of each omitted file."""

    @property
    def world_size(self) -> int:
        """Number of ranks of the job according to the dumps."""
        return world_size_of(self.dumps)


def read_dumps(files: Sequence[Path]) -> Dumps:
    """Read the dumps of one job; a file that cannot be read is omitted, and its error is in `Dumps.unreadable`.

    Raises:
        TraceFileError: no file can be read, or the ranks of the dumps cannot be determined.
    """
    contents: dict[Path, Any] = {}
    problems = []
    for file in files:
        try:
            content = read_content(file)
            if content is not None and not is_recorder_dump(content):
                raise TraceFileError(
                    f"{file} has no entries and no pg_config: it is not a dump of torch's flight recorder"
                )
            contents[file] = content
        except TraceFileError as error:
            problems.append(str(error))
    if all(content is None for content in contents.values()):
        raise TraceFileError(problems[0] if problems else f"{files[0]} is empty: give the dumps of all ranks")
    dumps = []
    for file, rank in _ranks(contents).items():
        try:
            dumps.append(dump_of(file, contents[file], rank))
        except TraceFileError as error:
            problems.append(str(error))
    if not dumps:
        raise TraceFileError(problems[0])
    return Dumps(tuple(sorted(dumps, key=lambda dump: dump.rank)), tuple(problems))


def _ranks(contents: dict[Path, Any]) -> dict[Path, int]:
    """Return {file: rank}; empty files are omitted if the ranks can be determined only without them."""
    try:
        return ranks_of_files(contents)
    except TraceFileError:
        with_content = {file: content for file, content in contents.items() if content is not None}
        if len(with_content) == len(contents):
            raise
        return ranks_of_files(with_content)


def tables_of_dumps(dumps: Dumps) -> Tables:
    """Merge all dumps into one trace; its notes name the files that are omitted."""
    by_file = {dump.file: dump for dump in dumps.dumps}
    problems = list(dumps.unreadable)
    world_size = dumps.world_size
    parts = readable(by_file, lambda file: checked_tables(tables_of(by_file[file], world_size)), problems)
    merged = merge_as_they_come(parts, "reading flight-recorder dumps", len(dumps.dumps))
    # The other end of an unmatched message may be among the first entries, if a dump lacks these.
    lacks_first = any(not dump.entries or dump.entries[0].record > 0 for dump in dumps.dumps)
    unproven = unmatched.notes(merged) if lacks_first else []
    notes = [note for note in merged.info.notes if note not in unproven]
    return replace(merged, info=replace(merged.info, notes=(*notes, *problems)))

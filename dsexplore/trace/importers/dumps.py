"""Flight-recorder dumps of a job, from the files of a folder: each rank's, and what is to be said of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsexplore.errors import TraceFileError
from dsexplore.trace import unmatched
from dsexplore.trace.importers.dump_ranks import ranks_of_files
from dsexplore.trace.importers.recorder_dump import RecorderDump, dump_of, is_recorder_dump, read_content
from dsexplore.trace.importers.recorder_tables import tables_of, world_size_of
from dsexplore.trace.merge import merge_as_they_come
from dsexplore.trace.tables import Tables


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job."""

    dumps: tuple[RecorderDump, ...]
    """By rank."""
    unreadable: tuple[str, ...] = ()
    """The fault of each file that is left out."""

    @property
    def world_size(self) -> int:
        """Number of ranks of the job, as far as the dumps say."""
        return world_size_of(self.dumps)


def read_dumps(files: Sequence[Path]) -> Dumps:
    """Read the dumps of one job; a file that cannot be read is left out, and its error kept in `Dumps.unreadable`.

    Raises:
        TraceFileError: none can be read, or the ranks of the dumps cannot be determined.
    """
    contents: dict[Path, Any] = {}
    problems = []
    for file in files:
        try:
            content = read_content(file)
            if content is not None and not is_recorder_dump(content):
                raise TraceFileError(
                    f"{file} has no entries and no pg_config: it is no dump of torch's flight recorder"
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
    """Return {file: rank}; empty files are left out if they alone have no rank in their names."""
    try:
        return ranks_of_files(contents)
    except TraceFileError:
        with_content = {file: content for file, content in contents.items() if content is not None}
        if len(with_content) == len(contents):
            raise
        return ranks_of_files(with_content)


def tables_of_dumps(found: Dumps) -> Tables:
    """Merge all dumps into one trace; its notes name the files that are left out."""
    world_size = found.world_size
    parts: Iterable[Tables] = (tables_of(dump, world_size) for dump in found.dumps)
    merged = merge_as_they_come(parts, "reading flight-recorder dumps", len(found.dumps))
    notes = [note for note in merged.info.notes if not _is_cut(found) or note not in unmatched.notes(merged)]
    return replace(merged, info=replace(merged.info, notes=(*notes, *found.unreadable)))


def _is_cut(found: Dumps) -> bool:
    """Return True if a dump lacks its first entries, among which a message's other end may have been."""
    return any(not dump.entries or dump.entries[0].record > 0 for dump in found.dumps)

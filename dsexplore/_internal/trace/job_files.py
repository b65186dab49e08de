"""What the ranks of a job left in a folder: traces, and the journals of ranks that were ended before they saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.call_journal import journal_file, journals_in, read_journal
from dsexplore._internal.trace.ends import RUNNING
from dsexplore._internal.trace.files import load_several, rank_file, read_file
from dsexplore._internal.trace.guarded import readable
from dsexplore._internal.trace.merge import is_of_earlier_block, merge_as_they_come, ranks_of
from dsexplore._internal.trace.tables import Tables, TraceInfo


def load_with_journals(paths: Sequence[Path]) -> Tables:
    """Read what the ranks of a job saved, and of those that did not their journals, see `trace.call_journal`.

    A journal that goes further than its rank's trace replaces it: the trace was saved while the block ran.

    Raises:
        FileNotFoundError: as `load`.
        TraceFileError: as `load`.
        UsageError: as `load_several`.
    """
    folders = [path for path in paths if path.is_dir()]
    problems: list[str] = []
    journals = list(readable([file for folder in folders for file in journals_in(folder)], read_journal, problems))
    if not journals:
        return load_several(paths)
    files = [file for path in paths for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
    ends: dict[Path, tuple[str, ...]] = {}

    def read(file: Path) -> Tables:
        tables = read_file(file)
        ends[file] = tables.info.ends
        return tables

    saved = {ranks: tables for tables in readable(files, read, problems) if (ranks := ranks_of(tables))}
    ends_now = {journal.info.rank: journal.end_now() for journal in journals}
    # Where all are gone, their launcher may have ended them: who saved last would have noted an earlier end.
    are_all_gone = _was_last_saved_while_it_ran(files, ends) if saved else all(ends_now.values())
    for journal in journals:
        rank, end = journal.info.rank, journal.noted
        before = saved.get((rank,))
        if before is None or before.info.attempt != journal.info.attempt or before.events.height < journal.events:
            saved[rank,] = journal.tables(end or ("" if are_all_gone else ends_now[rank]))
        elif end:
            saved[rank,] = replace(before, info=replace(before.info, ends=(end,)))
    tables = merge_as_they_come(saved.values(), "reading traces", len(saved), is_whole=True, same_attempt=True)
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, *problems)))


@dataclass(frozen=True)
class EarlierBlock:
    """The last thing that a rank saved, where it left nothing of the block that the others are in."""

    end: str
    """How that block ended, see `trace.ends`."""
    last_line: str
    """Of its last call, ``"train.py:5"``; empty if there is none."""
    waits_in_call: bool
    """True if that block has not ended, and a call of it neither."""


def earlier_blocks(paths: Sequence[Path], info: TraceInfo) -> dict[int, EarlierBlock]:
    """Return {rank: its files of an earlier block of this attempt of the job} for ranks without later ones.

    Args:
        paths: of the job's files.
        info: of the trace that was read from them.
    """
    folders = [path for path in paths if path.is_dir()]
    absent = [] if not info.attempt else sorted(set(range(info.world_size)) - set(info.ranks))
    blocks: dict[int, EarlierBlock] = {}
    for folder, rank in ((folder, rank) for folder in folders for rank in absent):
        parts: list[Tables] = []
        with suppress(OSError, TraceFileError):
            parts.append(read_file(folder / rank_file(rank)))
        with suppress(OSError, TraceFileError):
            journal = read_journal(folder / journal_file(rank))
            parts.append(journal.tables(journal.noted))
        of_block = [part for part in parts if is_of_earlier_block(part.info, info.attempt)]
        ends = [end for part in of_block for end in part.info.ends if end not in ("", RUNNING)]
        if of_block:
            calls = max((part.events for part in of_block), key=len)
            last = calls["source"][-1].partition(" ← ")[0] if calls.height else ""
            blocks[rank] = EarlierBlock(ends[-1] if ends else RUNNING, last, not ends and "scheduled" in calls["state"])
    return blocks


def _was_last_saved_while_it_ran(files: Sequence[Path], ends: Mapping[Path, Sequence[str]]) -> bool:
    """Return True if the file that was written last is of a rank whose block still ran.

    Args:
        files: of all ranks.
        ends: how the ranks of each readable file ended.
    """
    latest = max(files, key=lambda file: file.stat().st_mtime_ns)
    return set(ends.get(latest, ())) == {RUNNING}

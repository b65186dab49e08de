"""Read the files that the ranks of a job left in a folder: traces, and journals of ranks that saved none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Read the traces that the ranks of a job saved, and the journals of ranks that saved none (`trace.call_journal`).

    A trace that was saved while its block ran may have fewer calls than the rank's journal; then the journal replaces
    it.

    Raises:
        FileNotFoundError: a path does not exist.
        TraceFileError: no file can be read, or the files are of different recordings.
        UsageError: `paths` is empty.
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
    # If all processes are gone, the launcher may have ended them. A process that ended earlier would have been noted in
    # its journal by the rank that saved last.
    are_all_gone = _was_last_saved_while_it_ran(files, ends) if saved else all(ends_now.values())
    for journal in journals:
        rank, end = journal.info.rank, journal.noted_end
        trace = saved.get((rank,))
        if trace is None or trace.info.attempt != journal.info.attempt or trace.events.height < journal.events:
            saved[rank,] = journal.tables(end or ("" if are_all_gone else ends_now[rank]))
        elif end:
            saved[rank,] = replace(trace, info=replace(trace.info, ends=(end,)))
    tables = merge_as_they_come(saved.values(), "reading traces", len(saved), is_whole=True, same_attempt=True)
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, *problems)))


@dataclass(frozen=True)
class EarlierBlock:
    """The last block of a rank that left no file of the block that other ranks are in."""

    end: str
    """How the block ended, see `trace.ends`."""
    last_line: str
    """Line of its last call, ``"train.py:5"``; empty if it has no calls."""
    waits_in_call: bool
    """True if neither the block nor one of its calls has ended."""


def earlier_blocks(paths: Sequence[Path], info: TraceInfo) -> dict[int, EarlierBlock]:
    """Return {rank: its block} for ranks of which only files of an earlier block of the job's attempt exist.

    Args:
        paths: paths of the job's files.
        info: info of the trace that was read from them.
    """
    if not info.attempt:
        return {}
    absent = sorted(set(range(info.world_size)) - set(info.ranks))
    blocks: dict[int, EarlierBlock] = {}
    for folder in filter(Path.is_dir, paths):
        for rank in absent:
            parts = [part for part in _files_of(folder, rank) if is_of_earlier_block(part.info, info.attempt)]
            if not parts:
                continue
            ends = [end for part in parts for end in part.info.ends if end not in ("", RUNNING)]
            calls = max((part.events for part in parts), key=len)
            blocks[rank] = EarlierBlock(
                end=ends[-1] if ends else RUNNING,
                last_line=calls["source"][-1].partition(" ← ")[0] if calls.height else "",
                waits_in_call=not ends and "scheduled" in calls["state"],
            )
    return blocks


def _files_of(folder: Path, rank: int) -> Iterator[Tables]:
    """Yield the tables of a rank's trace and of its journal, if they can be read."""
    with suppress(OSError, TraceFileError):
        yield read_file(folder / rank_file(rank))
    with suppress(OSError, TraceFileError):
        journal = read_journal(folder / journal_file(rank))
        yield journal.tables(journal.noted_end)


def _was_last_saved_while_it_ran(files: Sequence[Path], ends: Mapping[Path, Sequence[str]]) -> bool:
    """Return True if the file that was written last is of a rank whose block still ran.

    Args:
        files: trace files of all ranks.
        ends: {readable file: how the recordings of its ranks ended}, see `trace.ends`.
    """
    latest = max(files, key=lambda file: file.stat().st_mtime_ns)
    return set(ends.get(latest, ())) == {RUNNING}

"""`explain_hang` explains why a job hangs, from the files that its ranks left."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsexplore._internal.analysis.hangs.dump_calls import job_of_dumps
from dsexplore._internal.analysis.hangs.hang_report import HangReport, report_of
from dsexplore._internal.analysis.hangs.rank_calls import RankEnd
from dsexplore._internal.analysis.hangs.trace_calls import job_of_trace
from dsexplore._internal.errors import UsageError
from dsexplore._internal.paused_collector import no_collection
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.ends import RUNNING
from dsexplore._internal.trace.guarded import check_kind_of_path
from dsexplore._internal.trace.importers.debug_server import is_address, read_debug_server
from dsexplore._internal.trace.importers.dumps import read_dumps
from dsexplore._internal.trace.importers.foreign import foreign_files, kind_of_file
from dsexplore._internal.trace.job_files import earlier_blocks, load_with_journals
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@names_arguments
def explain_hang(paths: Paths | Trace) -> HangReport:
    """Explain why a job hangs, and which ranks cause it.

    Args:
        paths: one of

            * a folder or files: dumps of torch's flight recorder (JSON or pickle, with any name), or the files that
              ``commtrace(save=…)`` wrote on the ranks of the job;
            * the address of torch's debug server, ``http://HOST:25999``, of a job that hangs now;
            * a `Trace` of real ranks, such as that of a notebook cell that hung.

    Returns:
        The report; ``culprits`` is empty if nothing hangs, or if the evidence does not show the cause.

    Raises:
        FileNotFoundError: a path does not exist.
        TraceFileError: no file can be read. If some can, the others are named in the report's notes.
        UsageError: the files do not show who waits, such as those of a simulation.
    """
    with no_collection():
        if isinstance(paths, Trace):
            return report_of(job_of_trace(_real_rank_tables(paths.tables)))
        return _explained(paths)


def _explained(paths: Paths) -> HangReport:
    """Explain a hang from files or a debug server, see `explain_hang`."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    sources = [Path(path) for path in given]
    if not sources:
        raise UsageError("explain_hang was given no files: give the folder that the ranks wrote to")
    if any(map(is_address, given)):
        return _explained_server(given)
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f"nothing at {source}: give the folder that the ranks wrote to")
        check_kind_of_path(source)
    files_of = (foreign_files(source) if source.is_dir() else [source] for source in sources)
    kinds = {file: kind_of_file(file) for files in files_of for file in files}
    if "recorder" in kinds.values():
        return report_of(job_of_dumps(read_dumps([file for file, kind in kinds.items() if kind != "profiler"])))
    profile = next((file for file, kind in kinds.items() if kind == "profiler"), None)
    if profile is not None:
        raise UsageError(
            f"{profile} is a profiler trace, which is written after all has ended: give flight-recorder "
            "dumps, or what commtrace(save=…) wrote"
        )
    tables = _real_rank_tables(load_with_journals(sources))
    earlier = earlier_blocks(sources, tables.info)
    in_earlier = [rank for rank, block in earlier.items() if block.end == RUNNING]
    return report_of(job_of_trace(tables, _stacks(sources, tables, in_earlier), earlier=earlier))


def _explained_server(given: Sequence[Any]) -> HangReport:
    """Explain a hang from the dumps and stacks of a debug server.

    Raises:
        UsageError: there are further paths beside its address.
    """
    if len(given) > 1:
        raise UsageError(f"explain_hang was given {len(given)} places, an address among them: give the address alone")
    server = read_debug_server(given[0])
    job = job_of_dumps(server.dumps)
    ranks = {rank: replace(calls, stack=server.stacks.get(rank, "")) for rank, calls in job.ranks.items()}
    return report_of(replace(job, ranks=ranks))


def explain_trace(
    trace: Trace,
    stacks: Mapping[int, str] | None = None,
    ends: Mapping[int, RankEnd | None] | None = None,
    no_progress_for: str | None = None,
) -> HangReport:
    """Explain why the ranks of a trace hang, or hung when they were ended.

    Args:
        trace: a merged trace of real ranks.
        stacks: {rank: its stack when it was ended, innermost call first}; None if there are none.
        ends: {rank: how it ended by itself}; None for the ends in the trace.
        no_progress_for: the time without progress, see `JobCalls.no_progress_for`; None for that in the trace's notes.
    """
    return report_of(job_of_trace(trace.tables, stacks, ends, no_progress_for))


def _stacks(sources: Iterable[Path], tables: Tables, earlier: Iterable[int]) -> dict[int, str]:
    """Return {rank: stack of its main thread}, as ``commtrace(save=…)`` saved it beside a trace, innermost call first.

    Ranks whose block has ended since, or whose trace is missing, are omitted.

    Args:
        sources: folders and files.
        tables: the tables that were read from them.
        earlier: further ranks, which are still in an earlier block.
    """
    ended = {rank for rank, end in zip(tables.info.ranks, tables.info.ends, strict=False) if end not in ("", RUNNING)}
    running = (set(tables.info.ranks) - ended).union(earlier)
    folders = [source if source.is_dir() else source.parent for source in sources]
    stacks = {}
    for file in (file for folder in folders for file in sorted(folder.glob("rank-*.stack.txt"))):
        number = file.name[5:].partition(".")[0]
        if not number.isdecimal() or (rank := int(number)) not in running or not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        main = text.partition("\nThread ")[0]
        frames = [frame for frame in re.split(r"(?m)^(?=  File )", main) if frame.startswith("  File ")]
        shown = [_INSTALLED.sub('"…/', frame) for frame in reversed(frames) if not _DSEXPLORE_FRAME.search(frame)]
        stacks[rank] = "".join(shown)
    return stacks


_INSTALLED = re.compile(r'"/[^"]*/(?:site-packages|dist-packages|lib/python3\.\d+)/')
"""The folder of installed packages in a file's path, for which ``…/`` is shown."""
_DSEXPLORE_FRAME = re.compile(rf'"(?:{re.escape(str(Path(__file__).parents[3]))}/|<string>")')
"""A frame of dsexplore, or the one that started it."""


def _real_rank_tables(tables: Tables) -> Tables:
    """Return the tables; raise UsageError if they are those of a simulation."""
    if tables.info.simulated:
        raise UsageError("this is a trace of a simulation, in which nothing waits: give one of real ranks")
    return tables

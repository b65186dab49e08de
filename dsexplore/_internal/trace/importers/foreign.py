"""Read files of other tools as traces; the tool is recognized by the beginning of a file, not by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dsexplore._internal.paused_collector import no_collection
from dsexplore._internal.progress import track
from dsexplore._internal.trace.checked_tables import checked_tables
from dsexplore._internal.trace.guarded import readable
from dsexplore._internal.trace.importers.dumps import (
    is_named_by_rank,
    rank_in_name,
    ranks_of_files,
    read_dumps,
    tables_of_dumps,
)
from dsexplore._internal.trace.importers.execution_trace import read_execution_trace, without_times
from dsexplore._internal.trace.importers.file_kinds import is_tar, unpacked_beginning
from dsexplore._internal.trace.importers.inspector_log import InspectorLog, read_inspector_log, tables_of_inspector
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile, read_profiler_file
from dsexplore._internal.trace.importers.profiler_groups import world_size_of_profile
from dsexplore._internal.trace.importers.profiler_tables import tables_of_profile
from dsexplore._internal.trace.limits import MOST_RANKS
from dsexplore._internal.trace.matching import late_records
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.user_warnings import warn


def load_profiles(files: Sequence[Path], *, is_whole: bool = False) -> tuple[Tables, list[str]]:
    """Read profiler and execution traces of several ranks as one trace; also return an error for each omitted file.

    Args:
        files: files of one job.
        is_whole: True if more files of the job were given, so that missing ranks are noted even if only one can be
            read.

    Raises:
        TraceFileError: no file can be read, or the ranks of the files cannot be determined.
    """
    problems: list[str] = []
    with no_collection(), track("reading profiler traces", len(files), "files") as work:
        traces: dict[Path, ProfilerFile] = {}
        sizes: dict[Path, int] = {}
        for trace, size in readable(files, _read, problems):
            traces[trace.file], sizes[trace.file] = trace, size
            work.advance()
    ranks, notes_on_guesses = _ranks(traces)
    world_size = max(max(sizes.values()), max(ranks.values()) + 1)
    parts = list(readable(traces, lambda file: _tables(traces[file], ranks[file], world_size), problems))
    tables = merge_tables(parts, is_whole=is_whole or len(parts) < len(traces))
    notes = (*tables.info.notes, *notes_on_guesses, *late_records(tables))
    return replace(tables, info=replace(tables.info, notes=notes)), problems


def _read(file: Path) -> tuple[ProfilerFile, int]:
    """Read a profiler trace or an execution trace; also return the number of ranks that it names."""
    is_profile = kind_of_file(file) == "profiler"
    trace = read_profiler_file(file) if is_profile else read_execution_trace(file)
    return trace, world_size_of_profile(trace)


def _tables(trace: ProfilerFile, rank: int, world_size: int) -> Tables:
    tables = checked_tables(tables_of_profile(trace, rank, world_size))
    return tables if trace.has_times else without_times(tables, trace)


def _ranks(traces: dict[Path, ProfilerFile]) -> tuple[dict[Path, int], list[str]]:
    """Return {file: rank} and notes on guesses: the rank stated in the file, else the one in its name.

    For a single file only a number after "rank" counts. Files without any rank, such as those that torch's handler for
    TensorBoard names after process and time, are numbered in the order of their names.
    """
    stated = {file: trace.distributed.get("rank") for file, trace in traces.items()}
    if len(traces) == 1:
        file = next(iter(traces))
        for rank in (stated[file], rank_in_name(file.name)):
            if isinstance(rank, int) and 0 <= rank < MOST_RANKS:
                return {file: rank}, []
        return {file: 0}, [f"{file.name} does not say its rank: it is taken for rank 0"]
    if all(rank is None for rank in stated.values()) and not is_named_by_rank(traces):
        note = "the files do not say their ranks: they are numbered in the order of their names"
        return {file: rank for rank, file in enumerate(sorted(traces))}, [note]
    return ranks_of_files({file: {"rank": rank} for file, rank in stated.items()}), []


Kind = Literal["", "empty", "data", "recorder", "profiler", "execution", "inspector", "archive"]
"""``recorder``: a dump of torch's flight recorder; ``profiler``: a trace of torch's profiler; ``execution``: an
execution trace of torch; ``inspector``: a log of NCCL Inspector; ``archive``: a tar file; ``data``: JSON or a pickle of
another kind, judged by its beginning; ``""``: anything else."""

_PROFILES = ("profiler", "execution", "inspector")
_OF_TOOLS = ("recorder", *_PROFILES)

_PROFILER_KEYS = (b'"traceEvents"', b'"ph"', b'"distributedInfo"')
"""Keys near the beginning of a profiler trace; a list of thousands of groups may come before its events."""

_LEFT_OUT = {
    "empty": "is empty: copy or record it again",
    "recorder": "is a dump of torch's flight recorder, which has no place in a trace of profiles: load dumps alone",
    "inspector": "is a log of NCCL Inspector, which has no place in a trace of profiles: load logs alone",
}


def kind_of_file(file: Path) -> Kind:
    """Return the kind of a file, recognized by the beginning of its content; ``""`` for a pipe, which is not read."""
    try:
        begin = unpacked_beginning(file) if file.is_file() else None
    except OSError:
        return ""
    if begin is None:
        return ""
    if is_tar(begin):
        return "archive"
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        return "empty"
    if text[:1] not in (b"\x80", b"{", b"["):
        return ""
    if any(key in text for key in _PROFILER_KEYS):
        return "profiler"
    if b'"coll_perf"' in text or b'"p2p_perf"' in text:
        return "inspector"
    if b'"nodes"' in text and b'"ctrl_deps"' in text:
        return "execution"
    return "recorder" if any(key in text for key in (b"entries", b"pg_config", b"pg_status")) else "data"


def foreign_files(source: Path) -> list[Path]:
    """Return the files of other tools at a path: the path itself, files in a directory, or else files below it.

    In a folder of dumps, files that look like damaged dumps are included, so that they are reported: data of another
    kind, and any file whose name differs from a dump's only in its numbers.
    """
    if not source.is_dir():
        return [source] if kind_of_file(source) in _OF_TOOLS else []
    for entries in (source.iterdir(), source.rglob("*")):
        files = sorted(file for file in entries if file.is_file() and not file.name.startswith("."))
        kinds = {file: kind_of_file(file) for file in files}
        if any(kind in _PROFILES for kind in kinds.values()):
            return [file for file, kind in kinds.items() if kind in (*_OF_TOOLS, "empty")]
        if "recorder" in kinds.values():
            names = {_mask_numbers(file) for file, kind in kinds.items() if kind == "recorder"}
            return [file for file, kind in kinds.items() if kind or _mask_numbers(file) in names]
    return []


def _mask_numbers(file: Path) -> str:
    return re.sub(r"\d+", "0", file.name)


def _load_logs(files: Sequence[Path], *, is_whole: bool) -> tuple[Tables, list[str]]:
    """Read logs of NCCL Inspector as one trace; also return an error for each omitted file, see `load_profiles`."""
    problems: list[str] = []
    with no_collection(), track("reading logs of NCCL Inspector", len(files), "files") as work:
        logs: list[InspectorLog] = []
        for log in readable(files, read_inspector_log, problems):
            logs.append(log)
            work.advance()
    tables = merge_tables(tables_of_inspector(logs), is_whole=is_whole)
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, *late_records(tables)))), problems


def load_foreign(files: Sequence[Path]) -> Tables:
    """Read the files of one job as one trace, with a warning for each file that is omitted.

    Raises:
        TraceFileError: no file can be read.
    """
    kinds = {file: kind_of_file(file) for file in files}
    logs = [file for file, kind in kinds.items() if kind == "inspector"]
    profiles = [file for file, kind in kinds.items() if kind in ("profiler", "execution")]
    if logs and not profiles:
        tables, problems = _load_logs(logs, is_whole=len(files) > 1)
    elif profiles:
        tables, problems = load_profiles(profiles, is_whole=len(files) > 1)
        problems += [f"{file} {_LEFT_OUT['inspector']}" for file in logs]
    else:
        dumps = read_dumps(files)
        for problem in dumps.unreadable:
            warn(problem)
        return tables_of_dumps(dumps)
    problems += [f"{file} {_LEFT_OUT[kind]}" for file, kind in kinds.items() if kind in ("empty", "recorder")]
    for problem in problems:
        warn(problem)
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, *problems)))

"""Traces from files of other tools; the tool is recognized by the beginning of a file, not by its name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dsexplore.paused_collector import no_collection
from dsexplore.progress import track
from dsexplore.trace.guarded import readable
from dsexplore.trace.importers.dumps import is_named_by_rank, rank_in_name, ranks_of_files, read_dumps, tables_of_dumps
from dsexplore.trace.importers.profiler_file import ProfilerFile, read_profiler_file
from dsexplore.trace.importers.profiler_groups import world_size_of_profile
from dsexplore.trace.importers.profiler_tables import tables_of_profile
from dsexplore.trace.limits import MOST_RANKS
from dsexplore.trace.matching import late_records
from dsexplore.trace.merge import merge_tables
from dsexplore.trace.tables import Tables
from dsexplore.user_warnings import warn


def load_profiles(files: Sequence[Path], *, is_whole: bool = False) -> tuple[Tables, list[str]]:
    """Read several ranks' files as one trace on one clock; also return an error for each file that is left out.

    Args:
        files: of one job.
        is_whole: True if more files of the job were given, so that missing ranks are noted even if one can be read.

    Raises:
        TraceFileError: none can be read, or the ranks of the files cannot be determined.
    """
    problems: list[str] = []
    with no_collection(), track("reading profiler traces", len(files), "files") as work:
        traces: dict[Path, ProfilerFile] = {}
        sizes: dict[Path, int] = {}
        for trace, size in readable(files, _read, problems):
            traces[trace.file], sizes[trace.file] = trace, size
            work.advance()
    ranks, guessed = _ranks(traces)
    world_size = max(max(sizes.values()), max(ranks.values()) + 1)
    parts = list(readable(traces, lambda file: tables_of_profile(traces[file], ranks[file], world_size), problems))
    tables = merge_tables(parts, is_whole=is_whole or len(parts) < len(traces))
    notes = (*tables.info.notes, *guessed, *late_records(tables))
    return replace(tables, info=replace(tables.info, notes=notes)), problems


def _read(file: Path) -> tuple[ProfilerFile, int]:
    trace = read_profiler_file(file)
    return trace, world_size_of_profile(trace)


def _ranks(traces: dict[Path, ProfilerFile]) -> tuple[dict[Path, int], list[str]]:
    """Return {file: rank} and notes on guesses: the rank stated in the file, else the one in its name.

    For a single file only a number after "rank" counts. Files without any rank, such as those that torch's handler for
    TensorBoard names after process and time, are numbered in the order of their names.
    """
    said = {file: {"rank": trace.distributed.get("rank")} for file, trace in traces.items()}
    if len(traces) == 1:
        file, trace = next(iter(traces.items()))
        rank = trace.distributed.get("rank")
        known = rank if isinstance(rank, int) else rank_in_name(file.name)
        known = known if known is not None and 0 <= known < MOST_RANKS else None
        notes = [] if known is not None else [f"{file.name} does not say its rank: it is taken for rank 0"]
        return {file: known or 0}, notes
    if all(one["rank"] is None for one in said.values()) and not is_named_by_rank(traces):
        note = "the files do not say their ranks: they are numbered in the order of their names"
        return {file: rank for rank, file in enumerate(sorted(traces))}, [note]
    return ranks_of_files(said), []


Kind = Literal["", "empty", "data", "recorder", "profiler"]
"""``recorder``: a dump of torch's flight recorder; ``profiler``: a trace of torch's profiler; ``data``: JSON or a
pickle of neither, as far as its beginning says; ``""``: anything else."""

_OF_TOOLS = ("recorder", "profiler")

_LOOKED_AT = 1 << 18
_OF_PROFILER = (
    b'"traceEvents"',
    b'"ph"',
    b'"distributedInfo"',
)  # a list of thousands of groups may be all that is looked at

_LEFT_OUT = {
    "empty": "is empty: copy or record it again",
    "recorder": "is a dump of torch's flight recorder, which has no place in a trace of profiles: load dumps alone",
}


def kind_of_file(file: Path) -> Kind:
    """Return the tool that wrote a file, as far as the beginning of its content says."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(_LOOKED_AT)
    except OSError:
        return ""
    if begin[:2] == b"\x1f\x8b":
        begin = _unpacked(begin)
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        return "empty"
    if text[:1] not in (b"\x80", b"{", b"["):
        return ""
    if any(key in text for key in _OF_PROFILER):
        return "profiler"
    return "recorder" if any(key in text for key in (b"entries", b"pg_config", b"pg_status")) else "data"


def _unpacked(begin: bytes) -> bytes:
    """Return the decompressed beginning of gzipped data, also of a truncated file; reading it whole reports that."""
    with suppress(zlib.error):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS + 16).decompress(begin, _LOOKED_AT)
    return b""


def foreign_files(source: Path) -> list[Path]:
    """Return the files of other tools at a path: itself, those directly in a directory, or else those below it.

    Besides dumps, files that should be dumps but are not are included, so that they are reported: data of another kind,
    and any file whose name differs from a dump's only in its numbers.
    """
    if not source.is_dir():
        return [source] if kind_of_file(source) in _OF_TOOLS else []
    for found in (source.iterdir(), source.rglob("*")):
        files = sorted(file for file in found if file.is_file() and not file.name.startswith("."))
        kinds = {file: kind_of_file(file) for file in files}
        if "profiler" in kinds.values():
            return [file for file, kind in kinds.items() if kind in (*_OF_TOOLS, "empty")]
        if "recorder" in kinds.values():
            names = {_without_numbers(file) for file, kind in kinds.items() if kind == "recorder"}
            return [file for file, kind in kinds.items() if kind or _without_numbers(file) in names]
    return []


def _without_numbers(file: Path) -> str:
    return re.sub(r"\d+", "0", file.name)


def load_foreign(files: Sequence[Path]) -> Tables:
    """Read the files of one job as one trace, with a warning for each file that is left out.

    Raises:
        TraceFileError: none can be read.
    """
    kinds = {file: kind_of_file(file) for file in files}
    profiles = [file for file, kind in kinds.items() if kind == "profiler"]
    if not profiles:
        found = read_dumps(files)
        for problem in found.unreadable:
            warn(problem)
        return tables_of_dumps(found)
    tables, problems = load_profiles(profiles, is_whole=len(files) > 1)
    problems = [*problems, *(f"{file} {_LEFT_OUT[kind]}" for file, kind in kinds.items() if kind in _LEFT_OUT)]
    for problem in problems:
        warn(problem)
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, *problems)))

"""Profiler traces of a job, from the files of a directory: one trace of all ranks, on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dsexplore.errors import TraceFileError
from dsexplore.paused_collector import no_collection
from dsexplore.progress import track
from dsexplore.trace.importers.dump_ranks import is_named_by_rank, rank_in_name, ranks_of_files
from dsexplore.trace.importers.profiler_file import ProfilerFile, read_profiler_file
from dsexplore.trace.importers.profiler_groups import world_size_of_profile
from dsexplore.trace.importers.profiler_tables import tables_of_profile
from dsexplore.trace.matching import late_records
from dsexplore.trace.merge import merge_tables
from dsexplore.trace.tables import Tables


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
        traces = {}
        for trace in _read(files, problems):
            traces[trace.file] = trace
            work.advance()
    if not traces:
        raise TraceFileError(problems[0])
    ranks, guessed = _ranks(traces)
    world_size = max(max(map(world_size_of_profile, traces.values())), max(ranks.values()) + 1)
    parts = [tables_of_profile(trace, ranks[file], world_size) for file, trace in traces.items()]
    tables = merge_tables(parts, is_whole=is_whole)
    notes = (*tables.info.notes, *guessed, *late_records(tables))
    return replace(tables, info=replace(tables.info, notes=notes)), problems


def _read(files: Sequence[Path], problems: list[str]) -> Iterator[ProfilerFile]:
    for file in files:
        try:
            yield read_profiler_file(file)
        except TraceFileError as error:
            problems.append(str(error))


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
        notes = [] if known is not None else [f"{file.name} does not say its rank: it is taken for rank 0"]
        return {file: known or 0}, notes
    if all(one["rank"] is None for one in said.values()) and not is_named_by_rank(traces):
        note = "the files do not say their ranks: they are numbered in the order of their names"
        return {file: rank for rank, file in enumerate(sorted(traces))}, [note]
    return ranks_of_files(said), []

"""Trace files: Parquet with metadata, so that any Parquet reader opens the events.

One file holds one trace. Its rows are the events; its key-value metadata holds the rest:

| key | value |
|---|---|
| ``dsexplore.format`` | the format's version, a whole number |
| ``dsexplore.info`` | `TraceInfo` as JSON |
| ``dsexplore.parameters``, ``.modules``, ``.groups`` | that table as Parquet, in base64 |
| ``dsexplore.kernels``, ``.memory``, ``.numerics``, ``.differing``, ``.io`` | likewise |
| ``dsexplore.digest`` | see `trace.file_digest` |

A directory holds one such file per rank, ``rank-00000.parquet`` and so on; loading it merges them.
Only Parquet and JSON are read, so loading never runs code from a file. A file is written beside its place
and moved there when complete: readers meet the old file or the new one, never half of one.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch.distributed as dist

from dsexplore._internal.errors import TraceFileError, UsageError
from dsexplore._internal.output import writing
from dsexplore._internal.progress import track
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.checked_tables import checked_tables
from dsexplore._internal.trace.file_digest import KEY, PLACEHOLDER, check_digest, write_digest
from dsexplore._internal.trace.guarded import check_kind_of_path, guarded, read_rows, readable
from dsexplore._internal.trace.importers.archives import unpacked
from dsexplore._internal.trace.importers.file_kinds import kind_not_read
from dsexplore._internal.trace.importers.foreign import foreign_files, kind_of_file, load_foreign
from dsexplore._internal.trace.merge import merge_as_they_come, ranks_of
from dsexplore._internal.trace.tables import OF_EACH_RANK, Tables, TraceInfo
from dsexplore._internal.trace.unknown_sizes import without_placeholders
from dsexplore._internal.user_warnings import warn

_PREFIX = "dsexplore."
_SIDE_TABLES = ("parameters", "modules", "groups", "kernels", "memory", "numerics", "differing", "io")


def load(path: str | os.PathLike[str]) -> Tables:
    """Read a trace: one file, or a directory with one file per rank, which are merged.

    Dumps of torch's flight recorder, traces of its profiler, its execution traces and logs of NCCL Inspector are read
    too, see `trace.importers`, and a tar file of any of these.

    Ctrl-C while a directory is read returns the ranks read so far; a warning and the trace's notes say so.

    Raises:
        FileNotFoundError: nothing is there.
        TraceFileError: a file is truncated, damaged, foreign or from a newer version; a directory has no trace files,
            or files that do not belong to one recording.
    """
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"no trace at {source}: give a file that Trace.save wrote, or a directory of them")
    check_kind_of_path(source)
    if not _has_trace_files(source):
        if kind_of_file(source) == "archive":
            return _read_archive(source)
        foreign = foreign_files(source)
        if foreign:
            return load_foreign(foreign)
    return _read_directory(source) if source.is_dir() else read_file(source)


def _has_trace_files(source: Path) -> bool:
    """Return True if `source` is a Parquet file or a directory with one, complete or not."""
    if source.is_dir():
        return any(source.glob("*.parquet"))
    with source.open("rb") as opened:
        return opened.read(4) == b"PAR1"


def load_several(paths: Sequence[Path]) -> Tables:
    """Read several files or directories of one recording as one trace.

    Raises:
        FileNotFoundError: a path does not exist.
        TraceFileError: a file cannot be read, see `load`, or the files are of different recordings.
        UsageError: `paths` is empty.
    """
    if not paths:
        raise UsageError("no trace is given: give at least one file")
    if len(paths) == 1:
        return load(paths[0])
    if all(path.is_file() and kind_of_file(path) not in ("", "data") for path in paths):
        return load_foreign(paths)
    try:
        return merge_as_they_come(map(load, paths), "reading traces", len(paths), same_attempt=True)
    except UsageError as error:
        raise TraceFileError(f"{paths[0]} and the others are of different recordings: {error}") from error


def save(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write a trace and return its path.

    A path with a suffix, such as ``step.parquet``, becomes one file with all ranks. A directory, or a path that
    ends with a separator or has no suffix, gets one file per rank; missing directories are made.

    Raises:
        UsageError: the directory has files of ranks that this trace does not have: loading it would mix two traces.
    """
    target = Path(path)
    if not names_directory(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(tables, target)
        return target
    parts = split_ranks(tables)
    stale = sorted(_rank_files(target) - {rank_file(rank) for rank in parts})
    if stale:
        raise UsageError(
            f"{target} already has {stale[0]}, of a rank that this trace does not have: save into an empty directory"
        )
    _write_ranks(parts, target)
    return target


def save_recording(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write what this process recorded: to its own files in the directory `path`, or to the single file `path`."""
    if not names_directory(path):
        return save(tables, path)
    _write_ranks(split_ranks(tables), Path(path))
    return Path(path)


def check_destination(path: str | os.PathLike[str]) -> None:
    """Raise, before anything is recorded, if this process's recording cannot be saved to `path`.

    Raises:
        UsageError: several processes record, and would overwrite one file.
    """
    processes = _processes()
    if processes > 1 and not names_directory(path):
        raise UsageError(
            f"save={os.fspath(path)!r} names one file, but {processes} processes record: name a directory, "
            f"such as {os.fspath(Path(path).with_suffix('')) + '/'!r}, where each rank writes a file"
        )


def _processes() -> int:
    """Return the number of processes of the process group; if there is none, ``WORLD_SIZE`` of the launcher."""
    if dist.is_initialized():
        return 1 if dist.get_backend() == "fake" else dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def names_directory(path: str | os.PathLike[str]) -> bool:
    """Return True if saving to `path` writes one file per rank: a directory, a trailing /, or no suffix."""
    text = os.fspath(path)
    return text.endswith(("/", os.sep)) or Path(path).is_dir() or not Path(path).suffix


def rank_file(rank: int) -> str:
    """Return the name of a rank's file in a trace directory: ``rank-00003.parquet``."""
    return f"rank-{rank:05d}.parquet"


def stack_file(rank: int) -> str:
    """Return the name of the file with a rank's stacks, written beside a `rank_file` saved before its block ended."""
    return f"rank-{rank:05d}.stack.txt"


def split_ranks(tables: Tables) -> dict[int, Tables]:
    """Return {rank: its tables}; a trace without ranks is that of rank 0.

    All ranks share the tables of modules and groups, which have no rank column.
    """
    with_ranks = [name for name, columns in schema.TABLES.items() if "rank" in columns]
    rows = {name: _rows_by_rank(getattr(tables, name)) for name in with_ranks}
    parts = {}
    for rank in ranks_of(tables) or (0,):
        of_rank = {name: by_rank.get(rank, schema.empty(name)) for name, by_rank in rows.items()}
        parts[rank] = replace(tables, **of_rank, info=tables.info.of_rank(rank))
    return parts


def _rows_by_rank(table: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Return {rank: rows of `table`} in one pass; a filter per rank would keep the strings of all ranks alive."""
    return {int(part["rank"][0]): part for part in table.partition_by("rank", maintain_order=True)}


def _write_ranks(parts: Mapping[int, Tables], directory: Path) -> None:
    """Write a file per rank into a directory, which is made if it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    with track(f"writing {directory}", len(parts), "files") as work:
        try:
            for rank, part in parts.items():
                _write(part, directory / rank_file(rank))
                work.advance()
        except KeyboardInterrupt as interruption:
            interruption.add_note(
                f"{int(work.done)} of {len(parts)} ranks are written to {directory}, whole; save again for the rest"
            )
            raise


def _rank_files(directory: Path) -> set[str]:
    return {file.name for file in directory.glob("rank-*.parquet")}


def _write(tables: Tables, target: Path) -> None:
    with writing(target) as partial:
        _write_with_digest(tables.events, _metadata(tables), partial)


def _write_with_digest(events: pl.DataFrame, metadata: dict[str, str], target: Path) -> None:
    events.write_parquet(target, compression="zstd", metadata={**metadata, KEY: PLACEHOLDER})
    write_digest(target)


def _metadata(tables: Tables) -> dict[str, str]:
    side = {_PREFIX + name: _encode(getattr(tables, name)) for name in _SIDE_TABLES}
    return {_PREFIX + "format": str(schema.FORMAT_VERSION), _PREFIX + "info": json.dumps(asdict(tables.info)), **side}


def _encode(table: pl.DataFrame) -> str:
    parquet = io.BytesIO()
    table.write_parquet(parquet, compression="zstd")
    return base64.b64encode(parquet.getvalue()).decode("ascii")


def _decode(text: str) -> pl.DataFrame:
    return pl.read_parquet(io.BytesIO(base64.b64decode(text, validate=True)))


def _read_directory(source: Path) -> Tables:
    """Read the files of a directory and merge them; the notes name damaged files."""
    files = sorted(source.glob("*.parquet"))
    if not files:
        other = next((file for file in sorted(source.iterdir()) if file.is_file()), None)
        hint = (
            f"{other.name} is {kind_not_read(other)}" if other else f"a trace directory holds {rank_file(0)} and so on"
        )
        raise TraceFileError(f"{source} has no trace files: {hint}")
    problems: list[str] = []
    parts = readable(files, read_file, problems)
    try:
        tables = merge_as_they_come(parts, f"reading {source}", len(files), is_whole=True, same_attempt=True)
    except UsageError as error:
        raise TraceFileError(f"{source} mixes files of different recordings: {error}") from error
    for problem in problems:
        warn(problem)
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, *problems)))


def _read_archive(archive: Path) -> Tables:
    """Read the trace in a tar file, whose content may be in folders of its own."""
    with unpacked(archive) as folder:
        inner = folder
        while len(members := list(inner.iterdir())) == 1 and members[0].is_dir():
            inner = members[0]
        try:
            return load(inner)
        except TraceFileError as error:
            raise TraceFileError(str(error).replace(str(folder), str(archive))) from error


def read_file(file: Path) -> Tables:
    """Read a file that `save` wrote, of this or an earlier version.

    Raises:
        TraceFileError: it is truncated, damaged, foreign or from a newer version.
    """
    check_kind_of_path(file)
    check_digest(file)
    metadata = guarded(file, lambda: pl.read_parquet_metadata(file))
    version = _checked_version(file, metadata.get(_PREFIX + "format", ""))
    events = guarded(file, lambda: read_rows(file))
    events = _clear_wire_bytes_of_recv(_add_later_columns(events, version), version)
    side = {name: guarded(file, partial(_side_table, metadata, version, name)) for name in _SIDE_TABLES}
    info = guarded(file, lambda: info_from_json(metadata[_PREFIX + "info"]))
    events = _order_columns(file, "events", events)
    side = {name: _order_columns(file, name, table) for name, table in side.items()}
    if version < schema.UNKNOWN_IS_NULL:
        events = without_placeholders(events, side["groups"])
    return guarded(file, lambda: checked_tables(Tables(events=events, info=info, **side)))


def _side_table(metadata: Mapping[str, str], version: int, name: str) -> pl.DataFrame:
    """Return a table from a file's metadata; an empty one if files of that format version do not have it."""
    if schema.ADDED_TABLES.get(name, 0) > version:
        return schema.empty(name)
    table = _decode(metadata[_PREFIX + name])
    if name == "memory" and "inputs" not in table.columns:  # an older file, which counts inputs as parameters
        table = table.with_columns(inputs=pl.lit(0, dtype=schema.MEMORY["inputs"]))
    return table


def _checked_version(file: Path, written: str) -> int:
    if not written.isascii() or not written.isdigit():
        raise TraceFileError(f"{file} is damaged: its format version is {written!r}; copy or record it again")
    if int(written) > schema.FORMAT_VERSION:
        raise TraceFileError(
            f"{file} has trace format {written}, newer than format {schema.FORMAT_VERSION} that this dsexplore reads: "
            "upgrade dsexplore"
        )
    return int(written)


def _add_later_columns(events: pl.DataFrame, version: int) -> pl.DataFrame:
    """Return the events of a file of that format version, with columns added by later versions set to null."""
    later = {name for added, names in schema.ADDED.items() if added > version for name in names}
    if not later or later & set(events.columns):
        return events
    added = [pl.lit(None, dtype=schema.EVENTS[name]).alias(name) for name in sorted(later)]
    columns = [name for name in schema.EVENTS if name in later or name in events.columns]
    return events.with_columns(added).select(*columns, *(name for name in events.columns if name not in schema.EVENTS))


def _clear_wire_bytes_of_recv(events: pl.DataFrame, version: int) -> pl.DataFrame:
    """Return the events of a file of that version with wire bytes 0 for recv; before format 6 recv had the send's."""
    if version >= schema.RECV_SENDS_NOTHING or not {"op", "wire_bytes"} <= set(events.columns):
        return events
    sent = pl.when(pl.col("op") == "recv").then(0).otherwise(pl.col("wire_bytes"))
    return events.with_columns(sent.cast(events["wire_bytes"].dtype).alias("wire_bytes"))


def _order_columns(file: Path, name: str, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table of that name with its columns in the schema's order.

    Raises:
        TraceFileError: a column is missing, foreign or of another type.
    """
    wrong = sorted(set(table.schema.items()) ^ set(schema.TABLES[name].items()), key=str)
    if wrong:
        what = f"column {wrong[0][0]!r} is missing, foreign or of another type"
        raise TraceFileError(f"{file} is damaged: table {name}: {what}; copy or record it again")
    return table.select(list(schema.TABLES[name]))


def info_from_json(text: str) -> TraceInfo:
    """Parse `TraceInfo` from JSON, checking the type of each value; unknown keys are ignored.

    Raises:
        ValueError: not JSON, not an object, or a value of another type.
    """
    read = json.loads(text)
    if not isinstance(read, dict):
        raise ValueError("the info is not an object")
    values: dict[str, Any] = {}
    for field in fields(TraceInfo):
        if field.name in read:
            values[field.name] = _typed(field.name, read[field.name], type(getattr(TraceInfo(), field.name)))
    info = TraceInfo(**values)
    for name in OF_EACH_RANK:
        if len(getattr(info, name)) not in (0, len(info.ranks)):
            raise ValueError(f"the info's {name} is {getattr(info, name)!r} for ranks {info.ranks!r}")
    if info.stands_for:
        info.weights  # noqa: B018 - raises ValueError where a text cannot be read, or one is missing
    return info


def _typed(name: str, value: Any, kind: type) -> Any:
    """Return the value of a field of `TraceInfo` read from JSON, a list as a tuple.

    Raises:
        ValueError: the value is not of type `kind`.
    """
    if kind is tuple:
        member = int if name in ("ranks", "clock_offsets", "clock_residuals", "began") else str
        if isinstance(value, list) and all(type(element) is member for element in value):
            return tuple(value)
    elif type(value) is kind:
        return value
    raise ValueError(f"the info's {name} is {value!r}")

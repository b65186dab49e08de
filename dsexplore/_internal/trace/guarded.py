"""Read files in which any value may be wrong: every exception becomes an error that names the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from dsexplore._internal.errors import TraceFileError

T = TypeVar("T")
_LARGE = 4 * 1024 * 1024
"""Bytes of a file from which columns are read one by one, so that only one of them takes memory for its reading."""


def check_kind_of_path(path: Path) -> None:
    """Raise if a path is a pipe, a socket or a device, which may never end.

    Raises:
        TraceFileError: it is one.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TraceFileError(f"{path} is a pipe, a socket or a device: give a file or a folder")


def guarded(file: Path, read: Callable[[], T]) -> T:
    """Return ``read()``, which reads `file` or a part of it.

    Raises:
        TraceFileError: `read` raised any other exception than MemoryError; the message has its first line.
    """
    try:
        return read()
    except (MemoryError, TraceFileError):
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise TraceFileError(f"{file} is damaged ({reason}): copy or record it again") from error


def readable(files: Iterable[Path], read: Callable[[Path], T], problems: list[str]) -> Iterator[T]:
    """Yield ``read(file)`` of each readable file, and add the errors of the others to `problems`.

    Raises:
        TraceFileError: no file is readable; it is the error of the first one.
    """
    first: TraceFileError | None = None
    is_any_read = False
    for file in files:
        try:
            check_kind_of_path(file)
            content = guarded(file, partial(read, file))
        except TraceFileError as error:
            first = first or error
            problems.append(str(error))
            continue
        is_any_read = True
        yield content
    if first is not None and not is_any_read:
        raise first


def read_rows(file: Path) -> pl.DataFrame:
    """Return the rows of a Parquet file; in a large file, a column with one value in all rows holds it only once."""
    if file.stat().st_size < _LARGE:
        return pl.read_parquet(file, use_statistics=False)
    names = list(pl.read_parquet_schema(file))
    columns: list[pl.Series] = []
    constants: list[pl.Expr] = []
    for name in names:
        column = pl.read_parquet(file, columns=[name], use_statistics=False)[name]
        if _is_constant(column):
            constants.append(pl.lit(column[0], dtype=column.dtype).alias(name))
        else:
            columns.append(column)
    return pl.DataFrame(columns).with_columns(constants).select(names) if columns else pl.read_parquet(file)


def _is_constant(column: pl.Series) -> bool:
    """Return True if all rows have one value, or all are null; False for a column of lists."""
    nulls = column.null_count()
    if nulls or column.is_empty():
        return 0 < nulls == len(column)
    return not isinstance(column.dtype, pl.List) and bool((column == column[0]).all())

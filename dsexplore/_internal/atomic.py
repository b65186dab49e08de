"""Writing files: `check_output` before the work, and `writing`, completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsexplore._internal.errors import UsageError


def check_output(option: str, file: str | os.PathLike[str] | None) -> None:
    """Check, before the work of a command, that a file can be written.

    Args:
        option: the option that names the file, ``"--html"``, for the error.
        file: path of the file; None or empty for none.

    Raises:
        UsageError: it is a folder, there is no folder for it, or nothing may be written there.
    """
    if not file:
        return
    folder = Path(file).parent
    if Path(file).is_dir():
        raise UsageError(f"{option} {file} is a folder: give the name of a file in it")
    if not folder.is_dir():
        raise UsageError(f"{option} {file}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {file}: nothing may be written to {folder}")


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it is moved to `path` if the block succeeds, and removed if it raises.

    So a reader finds the old or the new file, never an incomplete one, also after Ctrl-C.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise

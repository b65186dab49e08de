"""Output of commands: files, checked before the work and written completely or not at all, and standard output."""

from __future__ import annotations

import os
import sys
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


def print_result(text: str) -> None:
    """Print a text and a newline; if the reader has closed the pipe, drop the rest of the output."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        print_no_more()


def print_no_more() -> None:
    """Redirect standard output to ``/dev/null`` after a broken pipe, as Python would fail again when it flushes."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)

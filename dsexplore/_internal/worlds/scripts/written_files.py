"""Files that a script opens for writing: several ranks that run it in one folder may overwrite each other's."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

_NO_RESULTS = ("/dev/", "/proc/")
"""Folders whose files are no results of a script."""
_CACHES = ("/__pycache__/", "/.cache/", "/torchinductor_", "/.triton/")
"""Parts of the paths of files that libraries write for later runs."""
_MAX_NAMED = 3
"""Maximal number of files that a note names."""


@contextmanager
def watched_files(note: Callable[[str], Any], folder: str) -> Iterator[None]:
    """Report the files that the block opens for writing, through Python or ``torch.save``.

    Python has no way to remove an audit hook: it stays, without effect, until the process ends.

    Args:
        note: called with the absolute path of each file.
        folder: folder whose files are not reported.
    """
    watching = True

    def note_opened(path: object) -> None:
        if watching and isinstance(path, (str, os.PathLike)):
            name = str(Path(os.fspath(path)).absolute())
            is_result = not name.startswith((folder, *_NO_RESULTS)) and not any(cache in name for cache in _CACHES)
            if is_result and not Path(name).is_dir():  # a folder is opened for a temporary file without a name
                note(name)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and watching:
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & os.O_ACCMODE
            if writes:
                note_opened(path)

    save = torch.save

    @wraps(save)  # a world of fake tensors patches the function that is wrapped
    def watched_save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        note_opened(f)  # torch writes the file in C++
        save(obj, f, *args, **kwargs)

    sys.addaudithook(audit)
    torch.save = watched_save
    try:
        yield
    finally:
        watching = False
        torch.save = save


def written_by_several(written: Sequence[Collection[str]]) -> list[str]:
    """Return a note on the files that several ranks opened for writing; empty if there are none.

    Args:
        written: for each rank, paths of the files that it opened for writing.
    """
    counts = Counter(path for paths in written for path in paths)
    shared = [path for path, count in counts.items() if count > 1]
    if not shared:
        return []
    named = ", ".join(os.path.relpath(path) for path in shared[:_MAX_NAMED])
    were = "was" if len(shared) == 1 else "were"
    more = f" and {len(shared) - _MAX_NAMED} more" if len(shared) > _MAX_NAMED else ""
    fewest, most = min(counts[path] for path in shared), max(counts.values())
    ranks = f"{most}" if fewest == most else f"{fewest} to {most}"
    return [
        f"each of the {len(written)} ranks runs the whole script, so {named}{more} {were} opened for writing by "
        f"{ranks} of them, and the last one's content stays: write where the rank is 0"
    ]

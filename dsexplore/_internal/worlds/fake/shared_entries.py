"""Cached results of ops on fake tensors, shared between the processes that run the ranks of one world.

In each process torch computes the result of an op once for given shapes, which takes a millisecond or more. A training
step has hundreds of such calls, and most of them are the same on all ranks. So the first ranks save their cached
results to files, and later ranks load them. Later ranks are forked from one process, which reads the files for all of
them (`read`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsexplore._internal.output import writing
from dsexplore._internal.worlds.fake.fake_dispatch import entered, known_results, learn_results

_FILES = "entries-*.pickle"
_read: dict[str, list[Any]] = {}
"""{folder: results read from its files} by this process or the one that it was forked from."""


def read(folder: str) -> None:
    """Read the results saved in a folder, for the ranks that are forked from this process."""
    _read.clear()
    _read[folder] = _entries_in(folder)


def _entries_in(folder: str) -> list[Any]:
    return [pickle.loads(file.read_bytes()) for file in Path(folder).glob(_FILES)]


@contextmanager
def shared_entries(folder: str, rank: int) -> Iterator[None]:
    """Load the results that earlier ranks saved in a folder; if there are none, save this rank's when the block ends.

    Args:
        folder: folder that the ranks of this world share; empty if no other rank runs.
        rank: rank that this process runs as.
    """
    if entered() is None or not folder:
        yield
        return
    entries = _read.get(folder) or _entries_in(folder)
    for results in entries:
        learn_results(results)
    yield
    if not entries:
        _save(Path(folder, _FILES.replace("*", str(rank))))


def _save(file: Path) -> None:
    """Write the cached results to a file; write none if one of them cannot be pickled."""
    try:
        content = pickle.dumps(known_results())
    except (pickle.PicklingError, TypeError, AttributeError):
        return
    with writing(file) as part:
        part.write_bytes(content)

"""What ops returned on the fake tensors of one rank, for the ranks of the same world that are played after it.

torch finds out what an op returns on tensors of some shapes once in each process, which takes a millisecond or more. A
training step has hundreds of such calls, and ranks of a world have mostly the same ones. So the first ranks leave in a
file what they know, and the others begin with it. The process that these are forked from reads the files for all of
them (`read`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsexplore.atomic import writing
from dsexplore.worlds.fake.fake_dispatch import entered, known_results, learn_results

_FILES = "entries-*.pickle"
_read: dict[str, list[Any]] = {}
"""The folder that this process, or the one that it was forked from, has read, and what was in its files."""


def read(folder: str) -> None:
    """Read what ranks have left in a folder, for the ranks that are forked from this process."""
    _read.clear()
    _read[folder] = _entries_in(folder)


def _entries_in(folder: str) -> list[Any]:
    return [pickle.loads(file.read_bytes()) for file in Path(folder).glob(_FILES)]


@contextmanager
def shared_entries(folder: str, rank: int) -> Iterator[None]:
    """Begin the block with the results that earlier ranks left in a folder; where they left none, leave there, when
    the block ends, those that are known then.

    Args:
        folder: that of the ranks of this world; empty where no others are played.
        rank: that this process plays.
    """
    if entered() is None or not folder:
        yield
        return
    entries = _read.get(folder) or _entries_in(folder)
    for results in entries:
        learn_results(results)
    yield
    if not entries:
        _leave(Path(folder, _FILES.replace("*", str(rank))))


def _leave(file: Path) -> None:
    """Write what is known; nothing where some of it cannot be pickled."""
    try:
        content = pickle.dumps(known_results())
    except (pickle.PicklingError, TypeError, AttributeError):
        return
    with writing(file) as part:
        part.write_bytes(content)

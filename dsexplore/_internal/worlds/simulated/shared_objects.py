"""`SharedObjects`: how simulated ranks in several processes exchange Python objects, by files in one folder.

A rank waits only for ranks that began before it. So no two wait for each other, and none waits for a rank that has no
processor yet. The process that runs the ranks calls `end` for each rank that has ended, for any reason.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsexplore._internal.output import writing

_PAUSE = 0.01
"""Seconds between two checks for an object's file."""


@dataclass
class SharedObjects:
    """The objects that a rank sends to other simulated ranks, and receives from them.

    Args:
        folder: folder of the files; empty if no other rank runs.
        before: ranks that began before this one.
        run_sender: runs a rank that no process runs yet, given the rank and the folder for its objects; None if no rank
            can be run on demand.
    """

    folder: str = ""
    before: Collection[int] = ()
    run_sender: Callable[[int, str], None] | None = None
    _senders: set[int] = field(default_factory=set)
    _temporary_folder: tempfile.TemporaryDirectory[str] | None = None
    _calls: Counter[tuple[str, tuple[int, ...], int]] = field(default_factory=Counter)

    def number(self, name: str, ranks: tuple[int, ...], source: int) -> str:
        """Return an id of the next call of a collective, equal on all ranks of the group.

        Args:
            name: name of the collective.
            ranks: global ranks of the group.
            source: global rank that sends.
        """
        call = (name, ranks, source)
        self._calls[call] += 1
        group = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
        return f"{name}-{group}-{source}-{self._calls[call]}"

    def give(self, number: str, pickled: Callable[[], Sequence[bytes]]) -> None:
        """Write the objects that this rank sends in a call, unless no other rank runs.

        Args:
            number: id of the call, from `number`.
            pickled: returns the pickled objects.
        """
        if self.folder or self.run_sender is not None:
            with writing(self._file(number)) as part:
                part.write_bytes(pickle.dumps(list(pickled())))

    def take(self, number: str, source: int) -> list[bytes] | None:
        """Wait for the pickled objects that a rank sends in a call, and return them.

        Returns:
            The objects; None if the rank ended without sending them, or did not begin before this rank.
        """
        if source not in self.before:
            return None
        file = self._file(number)
        while not file.exists():
            if _ended(self.folder, source).exists() and not file.exists():
                return None
            time.sleep(_PAUSE)
        sent: list[bytes] = pickle.loads(file.read_bytes())
        return sent

    def ask(self, number: str, source: int) -> list[bytes] | None:
        """Run the rank that sends the objects of a call, unless that was done before, and return its objects.

        Args:
            number: id of the call, from `number`.
            source: global rank that sends.

        Returns:
            The pickled objects; None if the rank cannot be run, or sends none.
        """
        if self.run_sender is None or source in self.before:
            return None
        file = self._file(number)
        if not file.exists() and source not in self._senders:
            self._senders.add(source)
            self.run_sender(source, str(file.parent))
        return pickle.loads(file.read_bytes()) if file.exists() else None

    def close(self) -> None:
        """Delete the temporary folder of this rank's objects, if there is one."""
        if self._temporary_folder is not None:
            self._temporary_folder.cleanup()
            self._temporary_folder = None

    def why_not(self) -> str:
        """Return why an object of another rank is missing, as a clause that follows the rank's name."""
        if not self.folder:
            return "which no process runs"
        return "which did not send it before (ranks that run together receive what those before them send)"

    def _file(self, number: str) -> Path:
        if not self.folder and self._temporary_folder is None:
            self._temporary_folder = tempfile.TemporaryDirectory(prefix="dsexplore-objects-")
        return Path(self.folder or self._temporary_folder.name, f"objects-{number}")  # type: ignore[union-attr]


def end(folder: str, rank: int) -> None:
    """Tell the ranks that wait for objects of a rank that it sends no more."""
    _ended(folder, rank).touch()


def _ended(folder: str, rank: int) -> Path:
    return Path(folder, f"ended-{rank}")

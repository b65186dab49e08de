"""Objects that ranks of one world, played in processes of their own, leave for each other in a folder.

A rank waits only for ranks that began before it, so that no two wait for each other and none waits for a rank that
no processor is free for. Whoever runs the ranks says of each that it has ended (`end`), whatever ended it.
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

from dsexplore._internal.atomic import writing

_PAUSE = 0.01
"""Seconds between two looks for an object."""


@dataclass
class SharedObjects:
    """The objects of a rank and of those that began before it.

    Args:
        folder: where they are; empty where no other rank is played.
        before: ranks that began before this one.
        player: plays a rank that no process plays so far, for the objects that it leaves in a folder; None for none.
    """

    folder: str = ""
    before: Collection[int] = ()
    player: Callable[[int, str], None] | None = None
    _senders: set[int] = field(default_factory=set)
    _temporary_folder: tempfile.TemporaryDirectory[str] | None = None
    _calls: Counter[tuple[str, tuple[int, ...], int]] = field(default_factory=Counter)

    def number(self, name: str, ranks: tuple[int, ...], source: int) -> str:
        """Return an id of the next call of this collective in a group of these ranks, equal on each of them."""
        call = (name, ranks, source)
        self._calls[call] += 1
        group = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
        return f"{name}-{group}-{source}-{self._calls[call]}"

    def give(self, number: str, pickled: Callable[[], Sequence[bytes]]) -> None:
        """Leave what this rank sends for the others."""
        if self.folder or self.player is not None:
            with writing(self._file(number)) as part:
                part.write_bytes(pickle.dumps(list(pickled())))

    def take(self, number: str, source: int) -> list[bytes] | None:
        """Wait for what the source sends; None if it ended before, or did not start before this rank."""
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
        """Play the rank that sends the objects of a call, and return them; None where it cannot be, or sends none.

        Args:
            number: of `number`.
            source: the rank that sends.
        """
        if self.player is None or source in self.before:
            return None
        file = self._file(number)
        if not file.exists() and source not in self._senders:
            self._senders.add(source)
            self.player(source, str(file.parent))
        return pickle.loads(file.read_bytes()) if file.exists() else None

    def close(self) -> None:
        """Delete the folder that was made for this rank's objects, if one was."""
        if self._temporary_folder is not None:
            self._temporary_folder.cleanup()
            self._temporary_folder = None

    def why_not(self) -> str:
        """Say why an object of another rank is missing, as a clause after that rank's name."""
        if not self.folder:
            return "which no process plays"
        return "which did not send it before (ranks that are played together receive what those before them send)"

    def _file(self, number: str) -> Path:
        if not self.folder and self._temporary_folder is None:
            self._temporary_folder = tempfile.TemporaryDirectory(prefix="dsexplore-objects-")
        return Path(self.folder or self._temporary_folder.name, f"objects-{number}")  # type: ignore[union-attr]


def end(folder: str, rank: int) -> None:
    """Say to the ranks that wait for objects of this one that no more come."""
    _ended(folder, rank).touch()


def _ended(folder: str, rank: int) -> Path:
    return Path(folder, f"ended-{rank}")

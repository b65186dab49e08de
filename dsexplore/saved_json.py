"""Results that are saved as JSON, with the name and the version of their format."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from dsexplore.atomic import writing
from dsexplore.errors import UsageError


@dataclass(frozen=True, slots=True)
class SavedFormat:
    """The header of a file of one kind of result."""

    name: str
    """``loaded["format"]`` of such a file."""
    version: int
    """The version that is written, and the newest that can be read."""
    kind: str
    """The word for the file in errors, ``"sweep"``."""
    writer: str
    """The method that writes such files, for errors."""

    def header(self) -> dict[str, object]:
        """Return the first two items of a file."""
        return {"format": self.name, "version": self.version}

    def check(self, loaded: object, name: str) -> None:
        """Raise if the content is of another format, or of a newer version of it.

        Args:
            loaded: content of the file.
            name: of the file, for the error.

        Raises:
            UsageError: naming the file and what to do.
        """
        if not isinstance(loaded, dict) or loaded.get("format") != self.name:
            raise UsageError(f"{name} is not a saved {self.kind}: write one with {self.writer}")
        version = loaded.get("version", 0)
        if not isinstance(version, int):
            raise UsageError(f"{name} is a damaged {self.kind}: its version is {version!r}")
        if version > self.version:
            raise UsageError(f"{name} was saved by a newer dsexplore (version {version}): update dsexplore")


class SavedJson:
    """A result that can be saved as a JSON file; subclasses define `to_json`, `_read` and `FORMAT`."""

    FORMAT: ClassVar[SavedFormat]

    def to_json(self) -> dict[str, object]:
        """Return the result as plain JSON values; `from_json` reads them back."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, loaded: object, name: str = "this value") -> Self:
        """Build a result from what `to_json` returned.

        Args:
            loaded: plain JSON values.
            name: of the file that they come from, for errors.

        Raises:
            UsageError: as for `load`.
        """
        cls.FORMAT.check(loaded, name)
        try:
            values: Any = loaded
            return cls._read(values, name)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
            raise UsageError(f"{name} is a damaged {cls.FORMAT.kind}: {error!r}") from error

    @classmethod
    def _read(cls, loaded: dict[str, Any], name: str) -> Self:
        """Build a result from plain values; raises KeyError or TypeError if they are damaged."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result as JSON and return the path."""
        with writing(path) as unfinished:
            unfinished.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved result.

        Raises:
            OSError: it cannot be read.
            UsageError: it is another kind of file, is damaged, or was written by a newer version.
        """
        name = os.fspath(path)
        try:
            loaded = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name} is not a saved {cls.FORMAT.kind}: {error}") from error
        return cls.from_json(loaded, name)

"""`DataFiles`: ``.toml`` files that describe one kind of hardware, those of the package and those of users."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.near_names import did_you_mean


@dataclass(frozen=True)
class DataFiles:
    """Files of one kind of hardware.

    Attributes:
        folder: folder of the package's files.
        kind: word for the kind in errors, ``"cluster"``.
        example: name of a file of the package that errors give as an example.
    """

    folder: Path
    kind: str
    example: str

    def names(self) -> list[str]:
        """Return the names of the package's own files, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.toml"))

    def path(self, name: str, aliases: Mapping[str, str] | None = None) -> Path:
        """Return the path of a file.

        Args:
            name: name of a file of the package, in any case; or the path of a ``.toml`` file, which is returned.
            aliases: further names, each with the name of its file; None for none.

        Raises:
            UsageError: no file has this name.
        """
        if name.endswith(".toml"):
            return Path(name)
        aliases = aliases or {}
        path = self.folder / f"{aliases.get(name.lower(), name.lower())}.toml"
        if not path.exists():
            near = did_you_mean(name, [*self.names(), *aliases])
            raise UsageError(
                f"no hardware named {name!r} is known{near}: name one of {', '.join(self.names())}, or the path of a "
                ".toml file with the same keys as theirs"
            )
        return path

    def read(self, path: Path) -> dict[str, Any]:
        """Return the content of a file.

        Raises:
            UsageError: the file cannot be read.
        """
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"the {self.kind} file {path} cannot be read: {error}") from None

    def check_keys(
        self, path: Path, table: Set[str], required: Set[str], optional: Set[str] = frozenset(), prefix: str = ""
    ) -> None:
        """Raise an error if a table lacks a key or has an unknown one.

        Args:
            path: path of the file, for the error.
            table: keys of the table.
            required: keys that the table must have.
            optional: further keys that it may have.
            prefix: prefix of the keys in the error, ``"node."``.

        Raises:
            UsageError: a key is missing or unknown.
        """
        missing, unknown = sorted(required - table), sorted(table - required - optional)
        if missing:
            raise UsageError(
                f"the {self.kind} file {path} lacks {', '.join(prefix + key for key in missing)}: "
                f"write the keys that {self.folder / self.example}.toml has"
            )
        if unknown:
            raise UsageError(
                f"the {self.kind} file {path} has unknown {', '.join(prefix + key for key in unknown)}: "
                f"known are {', '.join(sorted(required | optional))}"
            )

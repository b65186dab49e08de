"""Reading results that were saved as JSON with the name and the version of their format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dsexplore.errors import UsageError


def read_json(path: str | os.PathLike[str], kind: str) -> Any:
    """What a JSON file holds.

    Args:
        path: of the file.
        kind: what it should be, ``"sweep"``, for the error.

    Raises:
        OSError: it cannot be read.
        UsageError: it is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{os.fspath(path)} is not a saved {kind}: {error}") from error


def check_format(loaded: Any, name: str, kind: str, writer: str, *, format_name: str, version: int) -> None:
    """Refuse what is of another format, or of a newer version of it.

    Args:
        loaded: what the file holds.
        name: of the file, for the error.
        kind: what it should be, ``"sweep"``.
        writer: the method that writes such files.
        format_name: what ``loaded["format"]`` must be.
        version: the newest that can be read.

    Raises:
        UsageError: naming the file and what to do.
    """
    if not isinstance(loaded, dict) or loaded.get("format") != format_name:
        raise UsageError(f"{name} is not a saved {kind}: write one with {writer}")
    if loaded.get("version", 0) > version:
        raise UsageError(f"{name} was saved by a newer dsexplore (version {loaded['version']}): update dsexplore")

"""``%%commtrace`` before ``%load_ext dsexplore``: a stand-in that says to load the extension."""

from __future__ import annotations

from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

_FIRST = "{} is not loaded yet: run %load_ext dsexplore in a cell before this one, and then this cell again"


def offer(shell: InteractiveShell) -> None:
    """Register a stand-in for the magic if it is not registered; loading the extension replaces it."""
    if "commtrace" not in shell.magics_manager.magics["cell"]:
        register: Any = shell.register_magic_function  # typed as if it took no function
        register(_say, "line_cell", "commtrace")


def _say(line: str, cell: str | None = None) -> NoReturn:
    """Raise `UsageError`, which says to run ``%load_ext dsexplore`` first."""
    raise UsageError(_FIRST.format("%commtrace" if cell is None else "%%commtrace"))

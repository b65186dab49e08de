"""Replacements of the magics before ``%load_ext dsexplore``; they raise an error that says to load the extension."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from IPython.core.error import UsageError as ShellUsageError
from IPython.core.interactiveshell import InteractiveShell

_FIRST = "{} is not loaded yet: run %load_ext dsexplore in a cell before this one, and then this cell again"


def offer(shell: InteractiveShell) -> None:
    """Register a replacement for each magic that is not registered; the extension replaces it."""
    register: Any = shell.register_magic_function  # its type is wrong
    for name in ("commtrace", "compare_numerics"):
        if name not in shell.magics_manager.magics["cell"]:
            register(partial(_say, name), "line_cell", name)


def _say(name: str, line: str, cell: str | None = None) -> NoReturn:
    """Raise IPython's `UsageError` with the advice to run ``%load_ext dsexplore`` first."""
    raise ShellUsageError(_FIRST.format(f"%{name}" if cell is None else f"%%{name}"))

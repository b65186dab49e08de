"""Lines of the user's program, and their files as a person knows them."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

Source = tuple[str, int]
"""File and line."""
Sources = tuple[Source, ...]
"""The innermost first."""

_names: dict[str, str] = {}


def source_text(sources: Sequence[Source]) -> str:
    """``"train.py:12"``, outermost last, joined by `` ← ``."""
    return " ← ".join(f"{file_name(file)}:{line}" for file, line in sources)


def file_name(file: str) -> str:
    """A source file as a person knows it: ``In[3]`` for a notebook cell, ``transformers/…/modeling_llama.py`` for
    an installed package, a path below the working directory where it is there."""
    known = _names.get(file)
    if known is None:
        known = _names[file] = _shorten(file)
    return known


def _shorten(file: str) -> str:
    cell = _cell_number(file)
    if cell is not None:
        return f"In[{cell}]"
    path = Path(file)
    for root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path.cwd())):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return file


def _cell_number(file: str) -> int | None:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = names.get(file)
    return int(number) if number is not None else None

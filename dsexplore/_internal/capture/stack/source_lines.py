"""Lines of the user's program, and their files as a person knows them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType

from dsexplore._internal.user_code import INSTALLED

Source = tuple[CodeType, int]
"""Where a frame stands: its code, and the offset of the instruction, as ``f_lasti``. The line is looked up when a table
is made, as Python reads the code's lines from the first one on to find it."""
Sources = tuple[Source, ...]
"""The innermost first."""


def source_texts(of_events: Iterable[Sources]) -> list[str]:
    """Return ``"train.py:12"`` for each event; several lines are joined by `` ← ``, innermost first."""
    text_of: dict[tuple[int, int], str] = {}  # by the identity of the code: hashing one reads all of its bytecode
    names: dict[str, str] = {}  # for this call only: a cell that is run again has another number
    texts = []
    for sources in of_events:
        lines = []
        for code, offset in sources:
            text = text_of.get((id(code), offset))
            if text is None:
                file = code.co_filename
                name = names.get(file) or names.setdefault(file, file_name(file))
                text = text_of[id(code), offset] = f"{name}:{_line(code, offset)}"
            lines.append(text)
        texts.append(" ← ".join(lines))
    return texts


def source_text(code: CodeType, offset: int) -> str:
    """Format one `Source`: ``"train.py:12"``."""
    return source_texts([((code, offset),)])[0]


def _line(code: CodeType, offset: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return next(lines, None) or code.co_firstlineno


def file_name(file: str) -> str:
    """Return the display name of a source file.

    It is ``In[3]`` for a notebook cell, ``transformers/…/modeling_llama.py`` for a file of an installed package, and
    the relative path for a file below the working directory.
    """
    cell = _cell_number(file)
    if cell is not None:
        return f"In[{cell}]"
    path = Path(file)
    for root in (*INSTALLED, str(Path.cwd())):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return file


def _cell_number(file: str) -> int | None:
    """Return the number under which IPython last ran the cell of a file; None for a file that is not a cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = names.get(file)
    return int(number) if number is not None else None

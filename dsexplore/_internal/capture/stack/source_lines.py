"""Lines of the user's program as text, with the names by which users know their files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType

from dsexplore._internal.user_code import INSTALLED

Source = tuple[CodeType, int]
"""The code and the current instruction (``f_lasti``) of a frame. The line number is looked up when a table is made,
since Python has to decode the code's line table for it."""
Sources = tuple[Source, ...]
"""Lines of a stack, innermost first."""


def source_texts(sources_of_events: Iterable[Sources]) -> list[str]:
    """Return ``"train.py:12"`` for each event; several lines are joined by `` ← ``, innermost first."""
    text_of: dict[tuple[int, int], str] = {}  # by identity, as the hash of a code object reads all of its bytecode
    names: dict[str, str] = {}  # not kept between calls, as a notebook cell gets a new number when it runs again
    texts = []
    for sources in sources_of_events:
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
    """Return the line number of an instruction; the first line of the code if it has none."""
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return next(lines, None) or code.co_firstlineno


def file_name(file: str) -> str:
    """Return the display name of a source file.

    It is ``In[3]`` for a notebook cell, and the path relative to its root for a file of an installed package
    (``transformers/models/llama/modeling_llama.py``) or below the working directory.
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

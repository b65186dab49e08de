"""Which code is the user's own: no installed package, and no part of Python, torch or dsexplore.

Stacks are also read on machines other than the one that wrote them, so folders of packages are known by name too.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
"""The folders of installed packages: asking for them again takes longer than to name a file."""
STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
RANK_CELL = "<rank cell>"
"""Stands for the file of a cell that runs on real ranks."""

_DSEXPLORE = str(Path(__file__).parents[1])
_TORCH = spec.submodule_search_locations or () if (spec := find_spec("torch")) else ()
"""Found and not imported, which takes seconds; it may be built where its sources are."""
_FOLDERS = tuple(folder + os.sep for folder in (*INSTALLED, *STANDARD_LIBRARY, _DSEXPLORE, *_TORCH))
_OTHER_ENVIRONMENT = re.compile(r"/(?:site-packages|dist-packages|lib/python3(?:\.\d+)?)/")
_CELLS = ("<ipython-input", "<stdin>", RANK_CELL)
"""How the names of files begin that stand for what the user typed; all others in angle brackets are generated code."""


def is_user_file(file: str) -> bool:
    """Return True if code of a file is the user's own.

    Args:
        file: as ``co_filename`` of a code object, or in a stack that any machine wrote.

    Example:
        >>> is_user_file("/srv/me/train.py"), is_user_file("<ipython-input-3-0123>")
        (True, True)
        >>> is_user_file("/env/lib/python3.12/site-packages/transformers/trainer.py"), is_user_file("<string>")
        (False, False)
    """
    if file.startswith("<"):
        return file.startswith(_CELLS)
    return not file.startswith(_FOLDERS) and not _OTHER_ENVIRONMENT.search(Path(file).as_posix())


def is_user_module(module: ModuleType) -> bool:
    """Return True if a module is the user's own: a file of theirs, a notebook, or one made as the program runs."""
    file = getattr(module, "__file__", None)
    return is_user_file(file) if isinstance(file, str) else module.__name__ not in sys.stdlib_module_names

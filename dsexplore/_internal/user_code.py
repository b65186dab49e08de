"""`is_user_file`: tells the user's code from that of installed packages, Python, torch and dsexplore.

Stacks may come from another machine, so folders of packages are recognized by name too.
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
"""Folders of installed packages, computed once because that is slow."""
STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
RANK_CELL = "<rank cell>"
"""File name of a program that real ranks get as text."""

_DSEXPLORE = str(Path(__file__).parents[1])


def _folders_of_torch() -> list[str]:
    """Return the folders of torch, also of a source build, without importing torch, which takes seconds."""
    spec = find_spec("torch")
    return [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)


_FOLDERS = tuple(folder + os.sep for folder in (*INSTALLED, *STANDARD_LIBRARY, _DSEXPLORE, *_folders_of_torch()))
_OTHER_ENVIRONMENT = re.compile(r"/(?:site-packages|dist-packages|lib/python3(?:\.\d+)?)/")
_CELLS = ("<ipython-input", "<stdin>", RANK_CELL)
"""Prefixes of file names for input of the user; other names in angle brackets are generated code."""


def is_user_file(file: str) -> bool:
    """Return True if code of a file is the user's own.

    Args:
        file: ``co_filename`` of a code object, or a file name in a stack from any machine.

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
    """Return True if a module is the user's own: a file, a notebook, or a module created by the program."""
    file = getattr(module, "__file__", None)
    return is_user_file(file) if isinstance(file, str) else module.__name__ not in sys.stdlib_module_names

"""`is_needed`: whether a program needs a package that it imports, or goes on without it.

A program that catches the ImportError of ``import flash_attn`` and goes on has an alternative, mostly in plain torch,
and does not need the package. If the handler raises or exits, it does. A call of ``importlib.util.find_spec`` only asks
whether the package is installed, and does not need it.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[3])
_FIND_SPEC = importlib.util.find_spec.__code__
_FROZEN = "<frozen "
"""Beginning of the file names of Python's import machinery."""
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}
_ANY_ERRORS = {"Exception", "BaseException", ""}
_EXITS = {"exit", "quit", "_exit"}


def importer_of(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, outward from `frame`, that is neither of the import machinery nor of this package."""
    while frame is not None and frame.f_code.co_filename.startswith((_FROZEN, _PACKAGE)):
        frame = frame.f_back
    return frame


def is_needed(frame: FrameType | None) -> bool:
    """Return True if the import that runs in a frame ends the program if it fails."""
    is_import = True  # False in callers of a function that imports: a handler of any error is not for this import
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_code is _FIND_SPEC:
            return False
        if frame.f_code.co_filename.startswith(_FROZEN):
            is_import = True
        else:
            caught = _IMPORT_ERRORS | _ANY_ERRORS if is_import else _IMPORT_ERRORS
            if any(_goes_on(handlers, caught) for handlers in _handlers_around(frame)):
                return False
            is_import = False
        frame = frame.f_back
    return True


def _handlers_around(frame: FrameType) -> Iterator[list[ast.ExceptHandler]]:
    """Yield the handlers of each ``try`` in whose body a frame's current line is."""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            first, last = node.body[0].lineno, node.body[-1].end_lineno
            if last is not None and first <= frame.f_lineno <= last:
                yield node.handlers


def _goes_on(handlers: list[ast.ExceptHandler], caught: set[str]) -> bool:
    """Return True if the first handler that catches errors of these names lets the program go on."""
    for handler in handlers:
        if not caught.isdisjoint(_error_names(handler.type)):
            return not _ends_program(handler.body[-1])
    return False


def _error_names(caught: ast.expr | None) -> list[str]:
    """Return the names of the errors that an ``except`` lists, without modules; an empty one for a bare ``except``."""
    if caught is None:
        return [""]
    errors = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return [ast.unparse(error).rpartition(".")[2] for error in errors]


def _ends_program(statement: ast.stmt) -> bool:
    """Return True if a statement raises or exits."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).rpartition(".")[2] in _EXITS
    return isinstance(statement, ast.Raise)

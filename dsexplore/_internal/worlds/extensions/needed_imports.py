"""`is_needed`: whether a program can do without a package that it imports, because it catches the failure.

``try: import flash_attn`` with an ``except ImportError`` that goes on is no need: the program has an alternative, which
is plain torch as a rule. One whose handler raises or exits is. A question by ``importlib.util.find_spec`` is no need.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[3])
_QUESTION = importlib.util.find_spec.__code__
_FROZEN = "<frozen "
"""The files of Python's own import."""
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}
_ANY_ERRORS = {"Exception", "BaseException", ""}
_EXITS = {"exit", "quit", "_exit"}


def importer_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the program that imports what is searched for in a frame, or asks for it."""
    while frame is not None and frame.f_code.co_filename.startswith((_FROZEN, _PACKAGE)):
        frame = frame.f_back
    return frame


def is_needed(frame: FrameType | None) -> bool:
    """Return whether the import that is under way in a frame ends the program if it fails."""
    is_import = True
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_code is _QUESTION:
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
    """Yield the handlers of each ``try`` whose body a frame is in."""
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
    """Return whether one of the handlers catches errors of these names, and lets the program go on."""
    catching = [handler for handler in handlers if not caught.isdisjoint(_names(handler.type))]
    return bool(catching) and not _ends(catching[0].body[-1])


def _names(caught: ast.expr | None) -> list[str]:
    if caught is None:
        return [""]
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return [ast.unparse(kind).rpartition(".")[2] for kind in kinds]


def _ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).rpartition(".")[2] in _EXITS
    return isinstance(statement, ast.Raise)

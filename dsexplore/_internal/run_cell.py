"""`run`: executes the body of a cell magic like a cell of IPython, in the user's namespace and with their line numbers.

``shell.run_cell`` would catch errors and print its own traceback besides that of the magic. So the body is compiled and
executed here, and errors are raised with the user's frames only.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

from IPython.core.error import UsageError as ShellUsageError
from IPython.core.interactiveshell import InteractiveShell

from dsexplore._internal.tracebacks import frames_where, is_not_hidden
from dsexplore._internal.user_code import is_user_file

_AWAITS = (
    "this cell awaits at its top level, which %%commtrace cannot run: write "
    "`with dsexplore.commtrace(...) as trace:` around the awaiting lines in a plain cell instead"
)


class CellSyntaxError(Exception):
    """A syntax error in a cell, shown as IPython does, with file, line and caret, without frames of dsexplore."""

    def __init__(self, shell: InteractiveShell, error: SyntaxError) -> None:
        super().__init__(str(error))
        self._lines: list[str] = shell.SyntaxTB.structured_traceback(type(error), error)

    def _render_traceback_(self) -> list[str]:
        return self._lines


@dataclass(frozen=True)
class CompiledCell:
    """The compiled body of a cell."""

    body: CodeType
    """All statements, without the last expression."""
    last: CodeType | None
    """Last expression; None if the cell ends with a statement."""
    file: str
    """File name of both code objects, by which IPython finds the cell."""
    source: str
    """Compiled source, in which IPython has replaced magics and shell commands; its lines are those of the cell."""


def run(shell: InteractiveShell, cell: str) -> Any:
    """Execute a cell's body and return the value of its last expression, or None.

    Raises:
        UsageError: the cell awaits at its top level.
        CellSyntaxError: the cell does not parse.
        BaseException: the cell raised it; the traceback begins in the cell.
    """
    compiled = compile_cell(shell, cell)
    try:
        exec(compiled.body, shell.user_ns)
        return eval(compiled.last, shell.user_ns) if compiled.last is not None else None
    except BaseException as error:
        _show_only_user_frames(shell, error)
        raise


def compile_cell(shell: InteractiveShell, cell: str) -> CompiledCell:
    """Compile a cell's body, as IPython does, with the user's line numbers.

    Raises:
        UsageError: the cell awaits at its top level.
        CellSyntaxError: the cell does not parse.
    """
    try:
        return _compile(shell, cell)
    except SyntaxError as error:
        raise CellSyntaxError(shell, error) from None


def _compile(shell: InteractiveShell, cell: str) -> CompiledCell:
    """Compile a cell as `compile_cell`, but raise Python's `SyntaxError`."""
    # The magic's own line is line 1 of the cell, so the body begins at line 2.
    source = "\n" + shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.displayhook.prompt_count, raw_code=cell)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    flags = shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    body = compile(tree, name, "exec", flags, dont_inherit=True)
    value: CodeType | None = None
    if isinstance(last, ast.Expr):
        value = compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True)
    if any(code is not None and code.co_flags & inspect.CO_COROUTINE for code in (body, value)):
        raise ShellUsageError(_AWAITS)
    return CompiledCell(body=body, last=value, file=name, source=source)


def _show_only_user_frames(shell: InteractiveShell, error: BaseException) -> None:
    """Make IPython show the error from the cell's first frame on, through the attribute ``_render_traceback_``.

    Errors of dsexplore show only the user's frames, as in `lines_of_the_program`.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    is_ours = hasattr(error, "_render_traceback_")
    trace = frames_where(trace, lambda code: is_not_hidden(code) and (not is_ours or is_user_file(code.co_filename)))

    def render() -> list[str]:
        lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
        return lines

    _attach(error, trace, render)


def _attach(error: BaseException, trace: TracebackType | None, render: Any) -> None:
    """Give an error its traceback, and the function by which IPython shows it."""
    error.__traceback__ = trace
    try:
        error._render_traceback_ = render  # type: ignore[attr-defined]  # a protocol of IPython
    except AttributeError:
        return  # an exception with slots, for which IPython shows our frames too

"""``%%compare_numerics``: compares the numbers of a parallel program in a cell with those of a model on one process."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from dsexplore._internal import run_cell
from dsexplore._internal.errors import UsageError
from dsexplore._internal.magic_parser import MagicParser
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.numerics.compare_numerics import Parallel, compare_numerics

_HELP = """\
Say where a parallel program first computes other numbers than the model on one process.

  %%compare_numerics reference --mesh dp=2,tp=2    with a cell that shards the model over `mesh` and ends with
                                                   (model, step), as the function `reference` returns them
  %%compare_numerics reference                     the same on a mesh like that of the open world

The cell runs on new processes of this machine, one for each rank, with the names that it reads and `mesh`; what it
assigns stays there. The report is `_report`."""


def _parser() -> MagicParser:
    """Return the parser of the magic's options."""
    parser = MagicParser("compare_numerics", _HELP)
    option = parser.add_argument
    option("reference", nargs="?", help="name of a function that returns the model on one process, and its step")
    option("--mesh", metavar="AXES", help="axes of the ranks, outermost first: dp=2,tp=2 (default: the open world's)")
    option("--steps", type=int, default=2, metavar="N", help="steps to compare (default: 2)")
    option("--tolerance", type=float, metavar="X", help="relative difference that is allowed (default: rounding)")
    option("--timeout", type=float, default=120.0, metavar="S", help="seconds for the ranks to run (default: 120)")
    option("-o", dest="name", metavar="NAME", help="bind the report to this name")
    option("-q", dest="quiet", action="store_true", help="do not show the report")
    return parser


_PARSER = _parser()


@magics_class
class CompareMagics(Magics):
    """The magic ``%%compare_numerics``.

    Args:
        shell: the shell that runs the cells.
        open_mesh: returns the mesh of the open world, ``"dp=2,tp=2"``; empty without one.
    """

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell, open_mesh: Callable[[], str]) -> None:
        super().__init__(shell)
        self._open_mesh = open_mesh

    @no_var_expand
    @line_cell_magic
    def compare_numerics(self, line: str, cell: str | None = None) -> None:
        _PARSER.run(line, lambda options: self._compare(options, cell))

    compare_numerics.__doc__ = _PARSER.format_help()

    def _compare(self, options: argparse.Namespace, cell: str | None) -> None:
        """Compare a cell with the reference, and bind and show the report."""
        if cell is None:
            raise UsageError("the parallel program is a cell: write %%compare_numerics on top of one")
        mesh = options.mesh or self._open_mesh()
        if not mesh:
            raise UsageError("no mesh is given, and no world with one is open: add --mesh dp=2,tp=2")
        report = compare_numerics(
            self._reference(options.reference),
            _program(self.shell, cell),
            world_size=parse_mesh(mesh).size,
            mesh=mesh,
            steps=options.steps,
            tolerance=options.tolerance,
            timeout=options.timeout,
        )
        self.shell.user_ns["_report"] = report
        if options.name:
            self.shell.user_ns[options.name] = report
        if not options.quiet:
            display(report)

    def _reference(self, name: str | None) -> Any:
        """Return the user's function of that name; raise UsageError if there is none."""
        reference = self.shell.user_ns.get(name) if name else None
        if not callable(reference):
            what = f"{name} is not a function of this notebook" if name else "the reference is missing"
            raise UsageError(
                f"{what}: write the name of a function that returns (model, step) on one process after "
                "%%compare_numerics"
            )
        return reference


def _program(shell: InteractiveShell, cell: str) -> Parallel:
    """Return a function of `mesh` whose body is the cell, and which returns the cell's last expression."""
    compiled = run_cell.compile_cell(shell, cell)
    tree = ast.parse(compiled.source, filename=compiled.file)
    if compiled.last is None or not isinstance(tree.body[-1], ast.Expr):
        raise UsageError("the cell ends with a statement: end it with the expression (model, step)")
    tree.body[-1] = ast.copy_location(ast.Return(tree.body[-1].value), tree.body[-1])
    function = ast.parse("def parallel(mesh): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = tree.body
    module = ast.fix_missing_locations(ast.Module([function], []))
    names: dict[str, Any] = {}
    exec(compile(module, compiled.file, "exec", shell.compile.flags, dont_inherit=True), shell.user_ns, names)
    program: Parallel = names["parallel"]
    return program

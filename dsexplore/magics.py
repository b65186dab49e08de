"""``%%commtrace`` and ``%commtrace``: record what a cell communicates, in a simulated world or in yours."""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
from typing import Any, NoReturn

from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError as ShellUsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from dsexplore import run_cell
from dsexplore.errors import UsageError
from dsexplore.worlds.simulate import World
from dsexplore.worlds.simulated.target_traffic import TARGETS
from dsexplore.worlds.tracing import commtrace

_HELP = """\
Record what a cell communicates: which module, over which mesh axis, how many bytes, and where each parameter lives.

  %%commtrace --world-size 8 --mesh dp=2,tp=4     simulate a world for this cell, and trace the cell in it
  %commtrace --world-size 8 --mesh dp=2,tp=4      open a world that stays for the cells that follow
  %%commtrace --world-size 8 --device cuda        trace a cell written for GPUs; the CPU stands in for them
  %%commtrace --world-size 8                      with `%run train.py --lr 0.1` as the cell: trace a script
  %%commtrace                                     trace this cell in the open world, or in your own process group
  %commtrace                                      tell which world is open
  %commtrace --close                              close it

A mesh named in --mesh is there as `mesh`. On a simulated world counts, bytes and placements are those of the real
program; values are not, because each rank sees its own shard only. The trace of the last cell is `_trace`."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises where argparse's own would end the kernel."""

    def error(self, message: str) -> NoReturn:
        raise ShellUsageError(f"commtrace: {message}; %commtrace -h lists the options")

    def parse_line(self, line: str) -> argparse.Namespace:
        """The options of a magic's line."""
        try:
            return self.parse_args(shlex.split(line))
        except ValueError as error:
            self.error(f"{line!r} cannot be split into words ({error})")


def _help_format(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=20, width=118)


def _parser() -> _Parser:
    parser = _Parser(prog="%%commtrace", description=_HELP, formatter_class=_help_format, add_help=False)
    option = parser.add_argument
    option("--world-size", type=int, metavar="N", help="number of ranks to simulate; --mesh alone tells it too")
    option("--mesh", metavar="AXES", help="the mesh of the simulated world, outermost axis first: dp=2,tp=4")
    option("--rank", type=int, default=0, metavar="R", help="the simulated rank to play (default: 0)")
    option("--fake", action="store_true", help="run on fake tensors: shapes without memory, for models of any size")
    option("--target", choices=TARGETS, help="whose traffic to show: cuda, GPUs with NCCL (default), or cpu, gloo")
    option("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the CPU stands in for GPUs (default: cpu)")
    option("--gpu", default="h100", metavar="GPU", help="which GPU torch.cuda describes then (default: h100)")
    option("-o", dest="name", metavar="NAME", help="bind the trace to this name")
    option("--explore", action="store_true", help="show the interactive explorer in place of the static view")
    option("--close", action="store_true", help="close the world that stays open")
    option("-h", "--help", action="store_true", help="print this text")
    return parser


_PARSER = _parser()


@magics_class
class CommtraceMagics(Magics):
    """The magic, and the world that its line form keeps open."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._world: World | None = None
        self._mesh: Any = None
        self._unbind = ExitStack()

    @no_var_expand
    @line_cell_magic
    def commtrace(self, line: str, cell: str | None = None) -> None:
        options = _PARSER.parse_line(line)
        if options.help:
            print(_PARSER.format_help())
            return
        try:
            if cell is None:
                self._line(options)
            else:
                self._cell(options, cell)
        except UsageError as error:
            if type(error) is not UsageError or getattr(error, "_render_traceback_", None) is not None:
                raise  # the cell's own, with its traceback
            raise ShellUsageError(f"commtrace: {error}") from None

    commtrace.__doc__ = _PARSER.format_help()

    def _line(self, options: argparse.Namespace) -> None:
        for name, given in (("-o", options.name), ("--explore", options.explore)):
            if given:
                raise UsageError(f"{name} belongs to a cell that is traced: write it after %%commtrace, on top of one")
        if options.close:
            if not self._close_and_print():
                print("no world is open")
        elif _opens(options):
            self._close_and_print()
            world = _world(options)
            self._bind(world)
            self._world = world
            print(f"opened a world of {world}: this is rank {world.rank}; %%commtrace traces a cell in it")
        else:
            print(f"a world of {self._world} is open" if self._world else "no world is open")

    def close(self) -> str:
        """Close the world that stays open, and return its description; an empty text where there was none."""
        world, self._world = self._world, None
        self._unbind.close()
        return str(world) if world is not None else ""

    def _close_and_print(self) -> bool:
        closed = self.close()
        if closed:
            print(f"closed the world of {closed}")
        return bool(closed)

    def _cell(self, options: argparse.Namespace, cell: str) -> None:
        if options.close:
            raise UsageError("--close belongs to the line form: write %commtrace --close in a line of its own")
        if not _opens(options):
            self._trace(options, cell)
            return
        self._close_and_print()
        try:
            self._bind(_world(options))
            self._trace(options, cell)
        finally:
            self.close()

    def _bind(self, world: World) -> None:
        """Open the world, and put its mesh into the user's namespace until it closes."""
        self._unbind.callback(world.close)
        mesh = world.open()
        if not world.spec.axes:
            return
        names = self.shell.user_ns
        before = {"mesh": names["mesh"]} if "mesh" in names else {}
        names["mesh"] = mesh

        def unbind() -> None:
            if names.get("mesh") is mesh:
                del names["mesh"]
                names.update(before)

        self._unbind.callback(unbind)

    def _trace(self, options: argparse.Namespace, cell: str) -> None:
        names = self.shell.user_ns
        with commtrace() as trace:
            names["_trace"] = trace
            if options.name:
                names[options.name] = trace
            try:
                value = run_cell.run(self.shell, cell)
            except KeyboardInterrupt as interruption:
                interruption.add_note(f"What was recorded until then is in `{options.name or '_trace'}`.")
                raise
        # Shown here rather than returned: now its mesh is still open, and nothing is recorded any more.
        if not DisplayHook.semicolon_at_end_of_expression(cell):
            self.shell.displayhook(value)
        display(trace.explore() if options.explore else trace)


def _opens(options: argparse.Namespace) -> bool:
    given = options.world_size is not None or options.mesh is not None
    if not given and (options.rank or options.fake or options.device != "cpu" or options.target):
        named = {
            "--fake": options.fake,
            f"--rank {options.rank}": options.rank,
            "--device cuda": options.device != "cpu",
        }
        option = next((name for name, is_given in named.items() if is_given), f"--target {options.target}")
        raise UsageError(f"{option} is about a simulated world: give --world-size or --mesh with it")
    return given


def _world(options: argparse.Namespace) -> World:
    given = options.world_size, options.mesh, options.rank, options.fake
    return World(*given, device=options.device, gpu=options.gpu, target=options.target or "cuda")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext dsexplore``."""
    shell.register_magics(CommtraceMagics(shell))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """``%unload_ext dsexplore``: closes what is open and removes the magic."""
    magics = shell.magics_manager.registry.pop("CommtraceMagics", None)
    if magics is not None:
        magics.close()
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("commtrace", None)

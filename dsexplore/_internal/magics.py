"""``%%commtrace`` and ``%commtrace``: trace a cell on simulated ranks, on real ranks, or in the kernel's own world."""

from __future__ import annotations

import argparse
import re
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from dsexplore._internal import run_cell, unloaded_magic
from dsexplore._internal.compare_magic import CompareMagics
from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import once_interrupted
from dsexplore._internal.magic_parser import MagicParser
from dsexplore._internal.real_cells import RealCells, explain_interrupt, failure
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.real.cell_end import CellRun
from dsexplore._internal.worlds.real.engine_cluster import EngineCluster
from dsexplore._internal.worlds.real.rank_world import RankWorld
from dsexplore._internal.worlds.scripts.rank_processes import parse_ranks
from dsexplore._internal.worlds.simulate import World
from dsexplore._internal.worlds.world_settings import WorldSettings

_HELP = """\
Record what a cell communicates: which module, over which mesh axis, how many bytes, and where each parameter lives.

  %%commtrace --world-size 8 --mesh dp=2,tp=4     simulate a world for this cell, and trace the cell in it
  %commtrace --world-size 8 --mesh dp=2,tp=4      open a world that stays for the cells that follow
  %%commtrace --world-size 8 --hardware a100      trace a cell on another machine: a GPU, a cluster, or cpu
  %%commtrace --world-size 8                      with `%run train.py --lr 0.1` as the cell: trace a script
  %%commtrace --real 4                            run and trace the cell on 4 processes of this machine, new ones
  %commtrace --real 4                             start 4 that live on: models of one cell are there in the next
  %%commtrace --ranks 1,3                         run the cell on some of them
  %%commtrace --profile NAME                      run the cell on the engines of an ipyparallel cluster, as its ranks
  %%commtrace                                     trace this cell in the open world, or in your own process group
  %commtrace                                      say which world is open
  %commtrace --close                              close it

A mesh named in --mesh is there as `mesh`. On a simulated world counts, bytes and placements are those of the real
program; values are not, because each rank sees its own shard only. Real ranks have values and times: they get the names
that the cell reads, `rank` and `world_size`, print under their labels, and return their last expression's value in
`_trace.results`. Ctrl-C and --timeout end them. The trace of the last cell is `_trace`."""


def _parser() -> MagicParser:
    """Return the parser of the magic's options."""
    parser = MagicParser("commtrace", _HELP)
    option = parser.add_argument
    option("--world-size", type=int, metavar="N", help="number of ranks to simulate; not needed with --mesh")
    option("--mesh", metavar="AXES", help="the mesh of the simulated world, outermost axis first: dp=2,tp=4")
    option("--real", type=int, metavar="N", help="run on N real ranks, processes of this machine")
    option("--profile", metavar="NAME", help="run on the engines of the ipyparallel cluster of that profile")
    option("--backend", metavar="NAME", help="of real ranks: gloo (default), or nccl with one GPU per rank")
    option("--timeout", type=float, metavar="S", help="seconds after which real ranks are ended (default: 60)")
    option("--rank", type=int, metavar="R", help="the simulated rank to run as (default: 0)")
    option("--ranks", metavar="RANKS", help="the ranks that run the cell, of the open world (default: all)")
    option("--fake", action="store_true", help="run on fake tensors: shapes without memory, for models of any size")
    option(
        "--hardware",
        metavar="NAME",
        help="the machine to simulate: a GPU, a cluster, or cpu for CPUs with gloo (default: h100)",
    )
    option("-o", dest="name", metavar="NAME", help="bind the trace to this name")
    option("-q", dest="quiet", action="store_true", help="do not show the trace")
    option("--explore", action="store_true", help="show the interactive explorer in place of the static view")
    option("--close", action="store_true", help="close the world that stays open")
    return parser


_PARSER = _parser()


@magics_class
class CommtraceMagics(Magics):
    """The magic ``commtrace``, and the world that its line form keeps open."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._world: World | None = None
        self._mesh: Any = None
        self._unbind = ExitStack()
        self._real = RealCells(shell)

    @no_var_expand
    @line_cell_magic
    def commtrace(self, line: str, cell: str | None = None) -> None:
        _PARSER.run(line, lambda options: self._line(options) if cell is None else self._cell(options, cell))

    commtrace.__doc__ = _PARSER.format_help()

    def _line(self, options: argparse.Namespace) -> None:
        """Open or close a world that stays open, or print which one is open."""
        for name, value in (("-o", options.name), ("--explore", options.explore)):
            if value:
                raise UsageError(f"{name} belongs to a cell that is traced: write it after %%commtrace, on top of one")
        if options.close:
            if not self._close_and_print():
                print("no world is open")
        elif options.profile is not None:
            self._connect(options)
            print(f"a world of {self._real.open_world} is open")
        elif options.real is not None:
            _check_real(options)
            world = _real_world(options)
            if options.ranks is not None or options.timeout is not None:
                raise UsageError("--ranks and --timeout belong to a cell: write them after %%commtrace, on top of one")
            self._close_and_print()
            self._real.open(world)
            print(f"opened a world of {world}: %%commtrace runs a cell on them")
        elif _opens_simulated(options):
            self._close_and_print()
            simulated = _simulated_world(options)
            self._bind(simulated)
            self._world = simulated
            print(f"opened a world of {simulated}: this is rank {simulated.rank}; %%commtrace traces a cell in it")
        else:
            current = self._world or self._real.open_world
            print(f"a world of {current} is open" if current else _NONE_OPEN)

    @property
    def open_mesh(self) -> str:
        """Mesh of the open world, ``"dp=2,tp=2"``; empty without a world, or without a mesh."""
        if self._world is not None:
            return str(self._world.spec) if self._world.spec.axes else ""
        return self._real.open_world.mesh if self._real.open_world is not None else ""

    def close(self) -> str:
        """Close the open world, and return its description; empty if there was none."""
        return self._close_simulated() or self._real.close()

    def _close_simulated(self) -> str:
        world, self._world = self._world, None
        self._unbind.close()
        return str(world) if world is not None else ""

    def _close_and_print(self) -> bool:
        return _print_closed(self.close())

    def _cell(self, options: argparse.Namespace, cell: str) -> None:
        """Run and trace a cell on the ranks that the options name, or else in the open world."""
        if options.close:
            raise UsageError("--close belongs to the line form: write %commtrace --close in a line of its own")
        if options.profile is not None:
            self._connect(options)
            self._run_on_ranks(options, cell)
            return
        if options.real is not None or (self._real.open_world is not None and not _names_simulated(options)):
            self._run_on_ranks(options, cell)
            return
        if not _names_simulated(options):
            self._real.check_not_ended()
        if not _opens_simulated(options):
            self._trace(options, cell)
            return
        _print_closed(self._close_simulated())
        try:
            self._bind(_simulated_world(options))
            self._trace(options, cell)
        finally:
            self._unbind.close()

    def _connect(self, options: argparse.Namespace) -> None:
        """Open a world of the engines of a cluster, unless it is open."""
        if options.real is not None:
            raise UsageError(f"--profile {options.profile} and --real {options.real} exclude each other: give one")
        current = self._real.open_world
        if isinstance(current, EngineCluster) and current.profile == options.profile:
            return
        self._close_and_print()
        self._real.open(EngineCluster(options.profile, options.backend or "gloo", options.mesh or ""))

    def _run_on_ranks(self, options: argparse.Namespace, cell: str) -> None:
        """Run a cell on the ranks of the open world, or on new ones, and show its trace."""
        _check_real(options)
        current, world, ranks = self._real.open_world, None, None
        if current is None:
            world = _real_world(options)
            if options.ranks is not None:
                raise _no_open_ranks(options.ranks, str(options.real))
        else:
            _check_same_world(options, current)
            if options.ranks is not None:
                ranks = parse_ranks(options.ranks, current.size)
        timeout = _DEFAULT_TIMEOUT if options.timeout is None else options.timeout
        if timeout <= 0:
            raise UsageError(f"--timeout {timeout:g}: give seconds above 0")
        try:
            run = self._real.run(cell, world=world, ranks=ranks, timeout=timeout)
        except KeyboardInterrupt as interrupt:
            with once_interrupted():
                self._explain_interrupt(interrupt, options, current)
            raise
        trace = self._bind_trace(options, run.trace)
        if not run.ok:
            raise failure(run, timeout)
        if not options.quiet:
            self._show(trace, options.explore)

    def _explain_interrupt(
        self, interrupt: KeyboardInterrupt, options: argparse.Namespace, world: RankWorld | EngineCluster | None
    ) -> None:
        """Bind the trace of an interrupted cell, and say what became of the ranks of the world that was open."""
        run: CellRun | None = getattr(interrupt, "run", None)
        self._bind_trace(options, None if run is None else run.trace)
        if isinstance(world, EngineCluster):
            end = "engines were interrupted"
        elif world is not None and world is self._real.open_world:
            end = "ranks have left the cell, and run the next one"
        else:
            end = "ranks were ended"
        name = options.name or "_trace"
        explain_interrupt(interrupt, run, f"The {end}. What was recorded until then is in `{name}`.")

    def _show(self, trace: Trace, explore: bool) -> None:
        """Show a trace, with a button for its explorer if a person runs the cell.

        Front ends for people allow a cell to ask for input; nbclient, which executes notebooks, does not.
        """
        kernel = getattr(self.shell, "kernel", None)
        if explore:
            display(trace.explore())
        elif kernel is not None and kernel.get_parent("shell").get("content", {}).get("allow_stdin") and len(trace):
            from dsexplore._internal.views.widgets.live import show_with_offer  # imports ipywidgets

            show_with_offer(trace)
        else:
            display(trace)

    def _bind_trace(self, options: argparse.Namespace, trace: Trace | None) -> Trace:
        """Bind the trace of a cell to the user's names, and return it; None for an empty one."""
        trace = Trace() if trace is None else trace
        self.shell.user_ns["_trace"] = trace
        if options.name:
            self.shell.user_ns[options.name] = trace
        return trace

    def _bind(self, world: World) -> None:
        """Open a world, and add its mesh to the user's namespace until the world is closed."""
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
        """Run and trace a cell in this process, and show its value and its trace."""
        without_world = not dist.is_initialized()
        with commtrace() as trace:
            self._bind_trace(options, trace)
            try:
                value = run_cell.run(self.shell, cell)
            except KeyboardInterrupt as interruption:
                interruption.add_note(f"What was recorded until then is in `{options.name or '_trace'}`.")
                raise
            except Exception as error:
                if without_world and not dist.is_initialized() and _ABOUT_NO_WORLD.search(str(error)):
                    error.add_note(_NONE_OPEN)
                raise
            nothing_sent = not len(trace)
        if without_world and nothing_sent and not dist.is_initialized():
            print(f"nothing was sent, and {_NONE_OPEN}")
        # The value is shown and not returned, because its mesh is still open, and the recording has ended.
        if not DisplayHook.semicolon_at_end_of_expression(cell):
            self.shell.displayhook(value)
        if not options.quiet:
            self._show(trace, options.explore)


_DEFAULT_TIMEOUT = 60.0
"""Seconds after which real ranks are ended."""
_NONE_OPEN = (
    "no world is open: %commtrace --world-size 8 opens one that stays, %%commtrace --world-size 8 one for its cell"
)
_ABOUT_NO_WORLD = re.compile("process group|init_process_group|environment variable")
"""Matches torch's errors for communicating, or creating a mesh, without a world."""


def _print_closed(closed: str) -> bool:
    if closed:
        print(f"closed the world of {closed}")
    return bool(closed)


def _names_simulated(options: argparse.Namespace) -> bool:
    """Return True if an option of a simulated world is given."""
    values = (options.world_size, options.mesh, options.hardware, options.rank)
    return any(value is not None for value in values) or options.fake


def _check_same_world(options: argparse.Namespace, current: RankWorld | EngineCluster) -> None:
    """Check that the options match the open world of real ranks.

    Raises:
        UsageError: they ask for other ranks.
    """
    requested = options.real or current.size, options.backend or current.backend, options.mesh or current.mesh
    if requested != (current.size, current.backend, current.mesh):
        raise UsageError(
            f"a world of {current}, backend {current.backend}, is open, and this cell asks for another: omit its "
            "options to run on those ranks, or write %commtrace --close in a line of its own before"
        )


def _check_real(options: argparse.Namespace) -> None:
    """Raise an error if an option of a simulated world is given with real ranks."""
    real = f"--real {options.real}" if options.profile is None else f"--profile {options.profile}"
    for name, is_given in (
        ("--world-size", options.world_size is not None),
        ("--fake", options.fake),
        ("--hardware", options.hardware is not None),
        ("--rank", options.rank is not None),
    ):
        if is_given:
            raise UsageError(f"{name} is about a simulated world, and {real} about real ranks: give one")


def _real_world(options: argparse.Namespace) -> RankWorld:
    return RankWorld(options.real, options.backend or "gloo", options.mesh or "")


def _opens_simulated(options: argparse.Namespace) -> bool:
    """Return True if the options open a simulated world; raise if one of them needs a world that they do not open."""
    for name, value in (("--backend", options.backend), ("--timeout", options.timeout)):
        if value is not None:
            raise UsageError(f"{name} {value} is about real ranks: give --real N with it")
    if options.ranks is not None:
        raise _no_open_ranks(options.ranks, "N")
    if options.world_size is not None or options.mesh is not None:
        return True
    option, alternative = "", ""
    if options.fake:
        option = "--fake"
    elif options.rank is not None:
        option = f"--rank {options.rank}"
        alternative = f", or --ranks {options.rank} for a cell on the real ranks of an open world"
    elif options.hardware is not None:
        option = f"--hardware {options.hardware}"
    if option:
        raise UsageError(f"{option} is about a simulated world: give --world-size or --mesh with it{alternative}")
    return False


def _simulated_world(options: argparse.Namespace) -> World:
    return World(
        WorldSettings(
            world_size=options.world_size,
            mesh=options.mesh,
            rank=options.rank or 0,
            fake=options.fake,
            hardware=options.hardware,
        )
    )


def _no_open_ranks(ranks: str, count: str) -> UsageError:
    """Return the error for ``--ranks`` without an open world of real ranks; `count` is the number to start."""
    return UsageError(
        f"--ranks {ranks} chooses among the ranks of an open world: start them with %commtrace --real {count} in a "
        "line of its own"
    )


@names_arguments
def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, as ``%load_ext dsexplore`` does."""
    commtrace_magics = CommtraceMagics(shell)
    shell.register_magics(commtrace_magics)
    shell.register_magics(CompareMagics(shell, lambda: commtrace_magics.open_mesh))


@names_arguments
def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Close what is open and remove the magics, as ``%unload_ext dsexplore`` does."""
    magics = shell.magics_manager.registry.pop("CommtraceMagics", None)
    if magics is not None:
        magics.close()
        for kind in ("line", "cell"):
            for name in ("commtrace", "compare_numerics"):
                shell.magics_manager.magics[kind].pop(name, None)
    shell.magics_manager.registry.pop("CompareMagics", None)
    unloaded_magic.offer(shell)

"""``dsexplore run``: what `dsexplore.run` (in `run_script`) does, from a terminal.

The command takes world and script from its options (`run_options`) or from a launcher's command line. It prints how
each script ended, and exits with the script's status. Command and function both make a `Setting` for `play_script`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable

from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.printed import print_result
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.scripts.launch_lines import Launched, read_launch_line
from dsexplore._internal.worlds.scripts.play_distinct import play_script
from dsexplore._internal.worlds.scripts.play_rank import Setting
from dsexplore._internal.worlds.scripts.play_ranks import ScriptEnd
from dsexplore._internal.worlds.scripts.program import Program
from dsexplore._internal.worlds.scripts.run_options import parse_values


def run(
    options: argparse.Namespace, command: str | None = None, show_more: Callable[[Trace], None] | None = None
) -> int:
    """Run a script as the options of ``dsexplore run`` ask for, and show its trace.

    Args:
        options: the parsed options, see `run_options`.
        command: the command line, for the notes of the trace; None for that of this process.
        show_more: called with the trace after it was shown.

    Returns:
        the exit status: the script's own, 1 if it raised an error, 130 if it was interrupted.

    Raises:
        UsageError: sizes of the world that contradict each other, or no such script.
    """
    launched = read_launch_line([options.script, *options.arguments], is_module=options.module)
    program = Program(launched.script, launched.arguments, launched.is_module)
    _take_numbers(options, launched)
    setting = _setting(options, command if command is not None else shlex.join(["dsexplore", *sys.argv[1:]]))
    if options.ranks is not None and options.rank is not None:
        raise UsageError(f"--rank {options.rank} and --ranks {options.ranks}: give one of the two")
    trace, ends = play_script(program, setting, options.ranks)
    for end in ends:
        _show_end(end, is_alone=len(ends) == 1)
    _show_trace(trace, options)
    if show_more is not None:
        show_more(trace)
    failed = [status for status in map(_exit_status, ends) if status != 0]
    return failed[0] if failed else 0


def _setting(options: argparse.Namespace, command: str) -> Setting:
    """Return the setting that the options describe; `command` is noted in the trace."""
    return Setting(
        world_size=_world_size(options),
        mesh=options.mesh,
        rank=options.rank or 0,
        ranks_per_node=options.ranks_per_node,
        fake=options.fake,
        skip_repeats=options.skip_repeats,
        values=parse_values(options.values),
        hardware=options.hardware,
        steps=options.steps,
        costs=options.predict,
        save=options.save,
        command=command,
        variables=options.variables,
    )


def _take_numbers(options: argparse.Namespace, launched: Launched) -> None:
    """Set the numbers of nodes and ranks to those of the launcher's line, unless options before it give them."""
    options.variables = launched.variables
    if options.world_size is not None or options.mesh is not None or options.nnodes is not None:
        return
    options.nnodes = launched.nodes
    if options.ranks_per_node is None:
        options.ranks_per_node = launched.per_node
    options.world_size = launched.processes


def _world_size(options: argparse.Namespace) -> int | None:
    """Return the number of ranks, from world size, or nodes and ranks per node; None if the mesh gives it.

    With a number of nodes, ``options.ranks_per_node`` is set if it was not given.

    Raises:
        UsageError: none of them is given, or they contradict each other.
    """
    size: int | None = options.world_size
    per_node = options.ranks_per_node
    if size is None and options.mesh is None and per_node is not None:
        return int((options.nnodes or 1) * per_node)
    if options.nnodes is None:
        if size is None and options.mesh is None:
            raise UsageError(
                "how many ranks has the world? Give --world-size 64, --mesh dp=8,tp=8, or --nnodes 8 --nproc-per-node 8"
            )
        return size
    if size is None and options.mesh is None:
        return int(options.nnodes * 8)
    ranks = size if size is not None else parse_mesh(options.mesh).size
    if options.nnodes < 1 or ranks % options.nnodes:
        raise UsageError(f"{ranks} ranks do not divide into --nnodes {options.nnodes} nodes of as many each")
    if per_node is None:
        options.ranks_per_node = ranks // options.nnodes
    elif per_node * options.nnodes != ranks:
        raise UsageError(
            f"--nnodes {options.nnodes} of --nproc-per-node {per_node} are {per_node * options.nnodes} ranks, but the "
            f"world has {ranks}: leave one of them out"
        )
    return size


def _show_end(end: ScriptEnd, *, is_alone: bool) -> None:
    """Print the traceback or the message that Python prints when a script ends like this."""
    sys.stdout.flush()
    text = end.traceback or (end.status if isinstance(end.status, str) else "")
    if not text:
        return
    if not is_alone:
        print(f"rank {end.rank}:", file=sys.stderr)
    print(text.rstrip("\n"), file=sys.stderr, flush=True)


def _exit_status(end: ScriptEnd) -> int:
    """Return the exit status of a process whose script ended like this; 1 for a message."""
    return end.status if isinstance(end.status, int) else 1


def _show_trace(trace: Trace, options: argparse.Namespace) -> None:
    """Print the trace, and write the report if one was asked for."""
    print_result(plain_text(trace))
    if options.save is not None:
        print(f"wrote {options.save}")
    if options.html is not None:
        print(f"wrote {trace.to_html(options.html)}")

"""``dsexplore run``: what `dsexplore.run` (in `run_script`) does, from a terminal.

The command takes world and script from its options (`run_options`) or from a launcher's command line. It prints how
each script ended, and exits with the script's status. Command and function both make a `Setting` for `trace_script`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable

from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.output import print_result
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.scripts.launch_lines import Launched, read_launch_line
from dsexplore._internal.worlds.scripts.program import Program
from dsexplore._internal.worlds.scripts.rank_processes import ScriptEnd
from dsexplore._internal.worlds.scripts.run_as_rank import Setting
from dsexplore._internal.worlds.scripts.run_options import parse_values
from dsexplore._internal.worlds.scripts.trace_script import trace_script
from dsexplore._internal.worlds.simulated.launcher_environment import RANKS_PER_NODE


def run(
    options: argparse.Namespace, command: str | None = None, show_more: Callable[[Trace, Setting], None] | None = None
) -> int:
    """Run a script as the options of ``dsexplore run`` ask for, and show its trace.

    Args:
        options: the parsed options, see `run_options`.
        command: the command line, for the notes of the trace; None for that of this process.
        show_more: called with the trace and its setting after the trace was shown.

    Returns:
        the exit status: the script's own, 1 if it raised an error, 130 if it was interrupted.

    Raises:
        UsageError: sizes of the world that contradict each other, or no such script.
    """
    if options.ranks is not None and options.rank is not None:
        raise UsageError(f"--rank {options.rank} and --ranks {options.ranks}: give one of the two")
    launched = read_launch_line([options.script, *options.arguments], is_module=options.module)
    program = Program(launched.script, launched.arguments, launched.is_module)
    setting = _setting(options, launched, command or shlex.join(["dsexplore", *sys.argv[1:]]))
    trace, ends = trace_script(program, setting, options.ranks)
    for end in ends:
        _show_end(end, is_alone=len(ends) == 1)
    _show_trace(trace, options)
    if show_more is not None:
        show_more(trace, setting)
    failed = [status for status in map(_exit_status, ends) if status != 0]
    return failed[0] if failed else 0


def _setting(options: argparse.Namespace, launched: Launched, command: str) -> Setting:
    """Return the setting that the options and the launcher's line describe; `command` is noted in the trace."""
    world_size, ranks_per_node = _sizes(options, launched)
    return Setting(
        world_size=world_size,
        mesh=options.mesh,
        rank=options.rank or 0,
        ranks_per_node=ranks_per_node,
        fake=options.fake,
        skip_repeats=options.skip_repeats,
        values=parse_values(options.values),
        hardware=options.hardware,
        steps=options.steps,
        costs=options.predict,
        save=options.save,
        command=command,
        variables=launched.variables,
    )


def _sizes(options: argparse.Namespace, launched: Launched) -> tuple[int | None, int | None]:
    """Return the number of ranks, None if the mesh gives it, and of ranks per node, None for the default.

    Sizes on the launcher's line are used only if the options before it give no world.

    Raises:
        UsageError: none of them is given, or they contradict each other.
    """
    size, nodes, per_node = options.world_size, options.nnodes, options.ranks_per_node
    if size is None and options.mesh is None and nodes is None:
        size, nodes = launched.processes, launched.nodes
        per_node = launched.per_node if per_node is None else per_node
    if nodes is not None and nodes < 1:
        raise UsageError(f"--nnodes {nodes} is not a number of nodes: give 1 or more")
    if size is None and options.mesh is None:
        if nodes is None and per_node is None:
            raise UsageError(
                "how many ranks has the world? Give --world-size 64, --mesh dp=8,tp=8, or --nnodes 8 --nproc-per-node 8"
            )
        return (1 if nodes is None else nodes) * (RANKS_PER_NODE if per_node is None else per_node), per_node
    if nodes is None:
        return size, per_node
    ranks = size if size is not None else parse_mesh(options.mesh).size
    if ranks % nodes:
        raise UsageError(f"{ranks} ranks do not divide into --nnodes {nodes} nodes of as many each")
    if per_node is not None and per_node * nodes != ranks:
        raise UsageError(
            f"--nnodes {nodes} of --nproc-per-node {per_node} are {per_node * nodes} ranks, but the "
            f"world has {ranks}: leave one of them out"
        )
    return size, ranks // nodes


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

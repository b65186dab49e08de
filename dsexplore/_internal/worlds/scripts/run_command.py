"""``dsexplore run``: what `dsexplore.run` (in `run_script`) does, from a terminal.

The command reads world and script from `run_options` and from a launcher's line, prints how each script ended, and
exits as it did. The function returns the trace, or raises the script's error. Both make a `Setting`, and leave the rest
to `play_script`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from typing import Any

from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
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
    """Do what ``dsexplore run`` was asked.

    Args:
        options: as parsed, see `run_options`.
        command: the line that was typed, for the report.
        show_more: called with the trace once it has been shown.

    Returns:
        the exit status: the script's own, 1 where it raised, 130 where it was interrupted.

    Raises:
        UsageError: numbers that do not fit together, no such script, or no folder for the report.
    """
    if options.html is not None and not options.html.absolute().parent.is_dir():
        raise UsageError(f"--html {options.html}: there is no folder {options.html.absolute().parent}")
    launched = read_launch_line([options.script, *options.arguments], is_module=options.module)
    program = Program(launched.script, launched.arguments, launched.is_module)
    _take_numbers(options, launched)
    setting = _setting(options, command if command is not None else shlex.join(["dsexplore", *sys.argv[1:]]))
    if options.ranks is not None and options.rank is not None:
        raise UsageError(f"--rank {options.rank} and --ranks {options.ranks}: give one of the two")
    trace, ends = play_script(program, setting, options.ranks)
    for end in ends:
        _show(end, alone=len(ends) == 1)
    _summarize(trace, options)
    if show_more is not None:
        show_more(trace)
    return next((status for end in ends if (status := _number(end.status))), 0)


def _setting(options: argparse.Namespace, command: str) -> Setting:
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
    """Take the numbers of nodes and ranks from the launcher's line, where they are not given before it."""
    options.variables = launched.variables
    if options.world_size is not None or options.mesh is not None or options.nnodes is not None:
        return
    options.nnodes = launched.nodes
    if options.ranks_per_node is None:
        options.ranks_per_node = launched.per_node
    options.world_size = launched.processes


def _world_size(options: argparse.Namespace) -> int | None:
    """Return the number of ranks, from whichever of world size, mesh, nodes and ranks per node is given."""
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


def _show(end: ScriptEnd, *, alone: bool) -> None:
    """Print what Python prints when a script ends like that."""
    sys.stdout.flush()
    text = end.traceback or (end.status if isinstance(end.status, str) else "")
    if not text:
        return
    if not alone:
        print(f"rank {end.rank}:", file=sys.stderr)
    print(text.rstrip("\n"), file=sys.stderr, flush=True)


def _number(status: Any) -> int:
    """Return the exit status of a process after its script ended with `status`: 1 if that is not an integer."""
    return status if isinstance(status, int) else 1


def _summarize(trace: Trace, options: argparse.Namespace) -> None:
    print(plain_text(trace))
    if options.save is not None:
        print(f"wrote {options.save}")
    if options.html is not None:
        print(f"wrote {trace.to_html(options.html)}")

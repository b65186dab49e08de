"""``dsexplore offload FOLDER``: what states on a disk take of a step, in a terminal."""

from __future__ import annotations

import argparse
from pathlib import Path

from dsexplore.aio.checkpoints.checkpoint_command import plan_of
from dsexplore.errors import UsageError
from dsexplore.printed import print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore offload``."""
    add = parser.add_argument
    add("folder", help="a folder on the disk, which is swept; or the file of a sweep that `dsexplore aio --save` wrote")
    add("--parameters", default="8B", metavar="N", help="of the model: 8B, 350M, 8.03e9 (%(default)s)")
    add("--dtype", default="bfloat16", help="of the parameters (%(default)s)")
    add("--ranks", type=int, default=8, metavar="N", help="over which they are sharded (%(default)s)")
    add("--ranks-per-node", type=int, default=8, metavar="N", help="that share the disk (%(default)s)")
    add("--bytes-per-parameter", type=float, default=12, metavar="N", help="of optimizer states (%(default)g)")
    add("--swap-parameters", action="store_true", help="the parameters are on the disk, too")
    add("--step-seconds", type=float, metavar="S", help="of a training step without a disk")
    add("--tokens", type=int, metavar="N", help="of a step on one node")
    add("--seconds", type=float, default=30, metavar="S", help="to sweep the disk for (%(default)g)")
    add("--json", action="store_true", help="print the table as JSON, and nothing else")
    add("--html", type=Path, metavar="FILE", help="write the page there")


def run(options: argparse.Namespace) -> None:
    """Run ``dsexplore offload``."""
    from dsexplore.aio.result import SweepResult
    from dsexplore.aio.sweeping import sweep
    from dsexplore.display import plain_text

    if options.html is not None and not options.html.parent.is_dir():
        raise UsageError(f"--html {options.html}: there is no folder {options.html.parent}")
    plan = plan_of(options.parameters, options.ranks, options.dtype)
    saved = Path(options.folder).is_file()
    result = SweepResult.load(options.folder) if saved else sweep(options.folder, seconds=options.seconds)
    cost = plan.offload(
        result,
        options.bytes_per_parameter,
        parameters=options.swap_parameters,
        ranks_per_node=options.ranks_per_node,
        step_seconds=options.step_seconds,
        tokens=options.tokens,
    )
    print_result(cost.to_frame().write_json() if options.json else plain_text(cost))
    if options.html is not None:
        cost.to_html(options.html)

"""``dsexplore offload FOLDER``: what states on a disk take of a step, in a terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore._internal.aio.checkpoints.checkpoint_command import add_model_arguments, plan_of
from dsexplore._internal.aio.shown_result import add_output_arguments, show

if TYPE_CHECKING:
    from dsexplore._internal.aio.offload.offload_cost import OffloadCost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore offload``."""
    add = parser.add_argument
    add("folder", help="a folder on the disk, which is swept; or the file of a sweep that `dsexplore aio --save` wrote")
    add_model_arguments(parser)
    add("--bytes-per-parameter", type=float, default=12, metavar="N", help="of optimizer states (%(default)g)")
    add("--swap-parameters", action="store_true", help="the parameters are on the disk, too")
    add("--step-seconds", type=float, metavar="S", help="of a training step without a disk")
    add("--tokens", type=int, metavar="N", help="of a step on one node")
    add("--seconds", type=float, default=30, metavar="S", help="to sweep the disk for (%(default)g)")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run ``dsexplore offload``."""
    from dsexplore._internal.aio.sweeps.result import SweepResult
    from dsexplore._internal.aio.sweeps.sweeping import sweep

    plan = plan_of(options.parameters, options.world_size, options.dtype)

    def measure() -> OffloadCost:
        saved = Path(options.folder).is_file()
        result = SweepResult.load(options.folder) if saved else sweep(options.folder, seconds=options.seconds)
        return plan.offload(
            result,
            options.bytes_per_parameter,
            parameters=options.swap_parameters,
            ranks_per_node=options.ranks_per_node,
            step_seconds=options.step_seconds,
            tokens=options.tokens,
        )

    show(options, measure)

"""``dsexplore checkpoint FOLDER``: what a model's checkpoints take on a disk, in a terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dsexplore._internal.aio.shown_result import add_output_arguments, show
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import parse_size

if TYPE_CHECKING:
    from dsexplore._internal.aio.checkpoints.checkpoint_result import CheckpointCost
    from dsexplore._internal.sharding.layout import Sharding

_THOUSANDS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore checkpoint``."""
    add = parser.add_argument
    add("folder", help="a folder on the disk, which is measured with checkpoints that are removed")
    add_model_arguments(parser)
    add("--optimizer", default="AdamW", help="optimizer with states to save, or none (default: %(default)s)")
    add("--state-dtype", metavar="DTYPE", help="dtype of the optimizer's states (default: the parameters' own)")
    add("--overhead", type=float, default=0.01, metavar="X", help="share of the time that steps may wait (%(default)s)")
    add("--step-seconds", type=float, metavar="S", help="of a training step, to count in steps")
    add("--size", type=parse_size, default="512MiB", help="bytes of the checkpoints that are measured (%(default)s)")
    add_output_arguments(parser)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan_of`: how large a model is, and how it is sharded."""
    add = parser.add_argument
    add("--parameters", default="8B", metavar="N", help="of the model: 8B, 350M, 8.03e9 (%(default)s)")
    add("--dtype", default="bfloat16", help="of the parameters (%(default)s)")
    add(
        "--world-size",
        type=int,
        default=8,
        metavar="N",
        help="number of ranks that shard them (%(default)s)",
    )
    add("--ranks-per-node", type=int, default=8, metavar="N", help="that share the disk (%(default)s)")


def run(options: argparse.Namespace) -> None:
    """Run ``dsexplore checkpoint``."""
    import torch

    from dsexplore._internal.aio.checkpoints.checkpoint_rates import checkpoint_rates

    plan = plan_of(options.parameters, options.world_size, options.dtype)
    state_dtype = None if options.state_dtype is None else getattr(torch, options.state_dtype, None)
    if options.state_dtype is not None and not isinstance(state_dtype, torch.dtype):
        raise UsageError(f"--state-dtype {options.state_dtype} is not a dtype of torch: give float32 or bfloat16")

    def measure() -> CheckpointCost:
        return plan.checkpoint(
            checkpoint_rates(options.folder, options.size),
            options.optimizer,
            state_dtype,
            ranks_per_node=options.ranks_per_node,
            overhead=options.overhead,
            step_seconds=options.step_seconds,
        )

    show(options, measure)


def plan_of(parameters: str, world_size: int, dtype: str) -> Sharding:
    """Return so many parameters, ``"8B"``, sharded evenly over some ranks.

    Raises:
        UsageError: no number of parameters or ranks, or an unknown dtype.
    """
    from dsexplore._internal.sharding.layout import Sharding
    from dsexplore._internal.sharding.plan import sharding

    if world_size < 1:
        raise UsageError(f"--world-size {world_size} is not a number of ranks: give 1 or more")
    plan = sharding((_count(parameters),), "S(0)", f"dp={world_size}", dtype)
    return Sharding(f"{parameters} parameters", plan.mesh, plan.tensors)


def _count(text: str) -> int:
    """Return a number of parameters: ``"8B"`` is 8e9."""
    letter = text[-1:].lower()
    try:
        number = float(text[:-1]) * _THOUSANDS[letter] if letter in _THOUSANDS else float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < 1e16:
        raise UsageError(f"--parameters {text} is not a number of parameters: write it like 8B, 350M or 8.03e9")
    return round(number)

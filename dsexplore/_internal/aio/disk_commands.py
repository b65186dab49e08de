"""``dsexplore loading``, ``checkpoint``, ``offload`` and ``feeding``: their arguments, and how they show their results.

``dsexplore aio``, the sweep of a disk, is in `aio.command`.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore._internal.errors import UsageError
from dsexplore._internal.output import print_result
from dsexplore._internal.units import parse_size

if TYPE_CHECKING:
    from dsexplore._internal.aio.checkpoints.predict_checkpoint import CheckpointCost
    from dsexplore._internal.aio.offload import OffloadCost
    from dsexplore._internal.display import Result
    from dsexplore._internal.sharding.layout import Sharding

_FACTORS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def add_loading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore loading``."""
    add = parser.add_argument
    add(
        "path",
        help="a .safetensors file, a file of torch.save, the .index.json of shards, or a folder with one of these or "
        "with a checkpoint of torch.distributed.checkpoint; it is only read",
    )
    add("--rounds", type=int, default=3, metavar="N", help="loads with each call (%(default)s)")
    add("--max-read", type=parse_size, default="16GiB", metavar="SIZE", help="bytes of shards to read (%(default)s)")
    add_output_arguments(parser)


def run_loading(options: argparse.Namespace) -> None:
    """Run ``dsexplore loading``."""
    from dsexplore._internal.aio.checkpoints.loading import loading

    show(options, lambda: loading(options.path, rounds=options.rounds, max_read=options.max_read))


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore checkpoint``."""
    add = parser.add_argument
    add("folder", help="a folder on the disk, which is measured with checkpoints that are removed")
    _add_model_arguments(parser)
    add("--optimizer", default="AdamW", help="optimizer with states to save, or none (default: %(default)s)")
    add("--state-dtype", metavar="DTYPE", help="dtype of the optimizer's states (default: the parameters' own)")
    add("--overhead", type=float, default=0.01, metavar="X", help="share of the time that steps may wait (%(default)s)")
    add("--step-seconds", type=float, metavar="S", help="seconds of a training step, to count in steps")
    add("--size", type=parse_size, default="512MiB", help="bytes of the checkpoints that are measured (%(default)s)")
    add_output_arguments(parser)


def run_checkpoint(options: argparse.Namespace) -> None:
    """Run ``dsexplore checkpoint``."""
    import torch

    from dsexplore._internal.aio.checkpoints.checkpoint_rates import checkpoint_rates

    plan = _sharding_of(options)
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


def add_offload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore offload``."""
    add = parser.add_argument
    add("folder", help="a folder on the disk, which is swept; or the file of a sweep that `dsexplore aio --save` wrote")
    _add_model_arguments(parser)
    add("--bytes-per-parameter", type=float, default=12, metavar="N", help="bytes of optimizer states (%(default)g)")
    add("--swap-parameters", action="store_true", help="the parameters are on the disk, too")
    add("--step-seconds", type=float, metavar="S", help="seconds of a training step without a disk")
    add("--tokens", type=int, metavar="N", help="tokens of a step on one node")
    add("--seconds", type=float, default=30, metavar="S", help="time to sweep the disk (%(default)g)")
    add_output_arguments(parser)


def run_offload(options: argparse.Namespace) -> None:
    """Run ``dsexplore offload``."""
    from dsexplore._internal.aio.sweeps.result import SweepResult
    from dsexplore._internal.aio.sweeps.sweeping import sweep

    plan = _sharding_of(options)

    def measure() -> OffloadCost:
        is_saved = Path(options.folder).is_file()
        result = SweepResult.load(options.folder) if is_saved else sweep(options.folder, seconds=options.seconds)
        return plan.offload(
            result,
            options.bytes_per_parameter,
            parameters=options.swap_parameters,
            ranks_per_node=options.ranks_per_node,
            step_seconds=options.step_seconds,
            tokens=options.tokens,
        )

    show(options, measure)


def add_feeding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore feeding``."""
    add = parser.add_argument
    add("loader", metavar="FILE.py:NAME", help="a data loader in a script, or a function that returns one")
    add("--seconds", type=float, default=10, metavar="S", help="time to take batches (%(default)g)")
    add("--step-seconds", type=float, metavar="S", help="seconds of a training step without waiting for input")
    add_output_arguments(parser)


def run_feeding(options: argparse.Namespace) -> None:
    """Run ``dsexplore feeding``: execute the script, under a name other than ``__main__``, and measure its loader."""
    from dsexplore._internal.aio.data_loaders.feeding import feeding

    file, _, name = options.loader.rpartition(":")
    if not file or not Path(file).is_file():
        raise UsageError(f"{options.loader} names no loader in a file: write it like train.py:loader")
    script_globals = runpy.run_path(file, run_name="dsexplore_feeding")
    if name not in script_globals:
        raise UsageError(f"{file} has no {name!r}: give the name of a loader at its top level, or of a function")
    loader = script_globals[name]
    data_loader = loader() if callable(loader) else loader
    show(options, lambda: feeding(data_loader, options.seconds, step_seconds=options.step_seconds))


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `_sharding_of`: how large a model is, and how it is sharded."""
    add = parser.add_argument
    add("--parameters", default="8B", metavar="N", help="parameters of the model: 8B, 350M, 8.03e9 (%(default)s)")
    add("--dtype", default="bfloat16", help="dtype of the parameters (%(default)s)")
    add("--world-size", type=int, default=8, metavar="N", help="number of ranks that shard them (%(default)s)")
    add("--ranks-per-node", type=int, default=8, metavar="N", help="number of ranks that share a disk (%(default)s)")


def _sharding_of(options: argparse.Namespace) -> Sharding:
    """Return a `Sharding` with the given number of parameters, divided evenly among the ranks.

    Raises:
        UsageError: an invalid number of parameters or ranks, or an unknown dtype.
    """
    from dsexplore._internal.sharding.layout import Sharding
    from dsexplore._internal.sharding.plan import sharding

    if options.world_size < 1:
        raise UsageError(f"--world-size {options.world_size} is not a number of ranks: give 1 or more")
    numel = _number_of_parameters(options.parameters)
    plan = sharding((numel,), "S(0)", f"dp={options.world_size}", options.dtype)
    return Sharding(f"{options.parameters} parameters", plan.mesh, plan.tensors)


def _number_of_parameters(text: str) -> int:
    """Return a number of parameters: ``"8B"`` is 8e9."""
    letter = text[-1:].lower()
    try:
        number = float(text[:-1]) * _FACTORS[letter] if letter in _FACTORS else float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < 1e16:
        raise UsageError(f"--parameters {text} is not a number of parameters: write it like 8B, 350M or 8.03e9")
    return round(number)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--html``."""
    parser.add_argument("--json", action="store_true", help="print the table as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the result to FILE")


def show(options: argparse.Namespace, measure: Callable[[], Result]) -> None:
    """Measure, print the result as text or JSON, and write its page if ``--html`` was given.

    Raises:
        UsageError: the disk cannot be used.
    """
    from dsexplore._internal.display import plain_text

    try:
        result = measure()
    except OSError as error:
        raise UsageError(str(error)) from error
    print_result(result.to_frame().write_json() if options.json else plain_text(result))
    if options.html is not None:
        result.to_html(options.html)

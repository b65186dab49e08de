"""``dsexplore feeding FILE:NAME``: what a script's data loader gives, in a terminal."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

from dsexplore._internal.aio.shown_result import add_output_arguments, show
from dsexplore._internal.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore feeding``."""
    add = parser.add_argument
    add("loader", metavar="FILE.py:NAME", help="a data loader in a script, or a function that returns one")
    add("--seconds", type=float, default=10, metavar="S", help="to take batches for (%(default)g)")
    add("--step-seconds", type=float, metavar="S", help="of a training step without waiting for input")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run ``dsexplore feeding``: execute the script under a name other than ``__main__``, and take its batches."""
    from dsexplore._internal.aio.data_loaders.feeding import feeding

    file, _, name = options.loader.rpartition(":")
    if not file or not Path(file).is_file():
        raise UsageError(f"{options.loader} names no loader in a file: write it like train.py:loader")
    names = runpy.run_path(file, run_name="dsexplore_feeding")
    if name not in names:
        raise UsageError(f"{file} has no {name!r}: give the name of a loader at its top level, or of a function")
    loader = names[name]
    data_loader = loader() if callable(loader) else loader
    show(options, lambda: feeding(data_loader, options.seconds, step_seconds=options.step_seconds))

"""``dsexplore loading PATH``: how fast a checkpoint loads, in a terminal."""

from __future__ import annotations

import argparse

from dsexplore._internal.aio.shown_result import add_output_arguments, show
from dsexplore._internal.units import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore loading``."""
    parser.add_argument(
        "path",
        help="a .safetensors file, a file of torch.save, the .index.json of shards, or a folder with one of these or "
        "with a checkpoint of torch.distributed.checkpoint; it is only read",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="loads with each call (%(default)s)")
    parser.add_argument(
        "--max-read",
        type=parse_size,
        default="16GiB",
        metavar="SIZE",
        help="bytes of shards to read (%(default)s)",
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run ``dsexplore loading``."""
    from dsexplore._internal.aio.checkpoints.loading import loading

    show(options, lambda: loading(options.path, rounds=options.rounds, max_read=options.max_read))

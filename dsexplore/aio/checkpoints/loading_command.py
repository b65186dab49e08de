"""``dsexplore loading PATH``: how fast a checkpoint loads, in a terminal."""

from __future__ import annotations

import argparse
from pathlib import Path

from dsexplore.errors import UsageError
from dsexplore.printed import print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore loading``."""
    parser.add_argument(
        "path",
        help="a .safetensors file, a file of torch.save, the .index.json of shards, or a folder with one of these or "
        "with a checkpoint of torch.distributed.checkpoint; it is only read",
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="loads with each call (%(default)s)")
    parser.add_argument("--most", default="16GiB", metavar="SIZE", help="bytes of shards that are read (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the table of seconds as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page there")


def run(options: argparse.Namespace) -> None:
    """Run ``dsexplore loading``."""
    from dsexplore.aio.checkpoints.loading import loading
    from dsexplore.display import plain_text

    if options.html is not None and not options.html.parent.is_dir():
        raise UsageError(f"--html {options.html}: there is no folder {options.html.parent}")
    measured = loading(options.path, repeats=options.repeats, most=options.most)
    print_result(measured.to_frame().write_json() if options.json else plain_text(measured))
    if options.html is not None:
        measured.to_html(options.html)

"""What the commands about disks have in common: their output as text, JSON or a page, and their errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore._internal.errors import UsageError
from dsexplore._internal.printed import print_result

if TYPE_CHECKING:
    from dsexplore._internal.display import Result


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--html``."""
    parser.add_argument("--json", action="store_true", help="print the table as JSON, and nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page there")


def show(options: argparse.Namespace, measure: Callable[[], Result]) -> None:
    """Measure, then print the result and write its page as `options` say.

    Raises:
        UsageError: there is no folder for the page, or the disk cannot be used.
    """
    from dsexplore._internal.display import plain_text

    if options.html is not None and not options.html.parent.is_dir():
        raise UsageError(f"--html {options.html}: there is no folder {options.html.parent}")
    try:
        result = measure()
    except OSError as error:
        raise UsageError(str(error)) from error
    print_result(result.to_frame().write_json() if options.json else plain_text(result))
    if options.html is not None:
        result.to_html(options.html)

"""Output and errors that the commands about disks share."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path
from typing import NoReturn

import pytest

from dsexplore._internal.aio.shown_result import add_output_arguments, show
from dsexplore._internal.errors import UsageError


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_output_arguments(parser)
    return parser.parse_args(words)


def fail() -> NoReturn:
    raise OSError(errno.ENOSPC, "1 GiB is needed", "/full")


def test_a_disk_that_cannot_be_used_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"\[Errno 28\] 1 GiB is needed: '/full'"):
        show(options(), fail)


def test_the_folder_of_the_page_is_looked_for_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        show(options("--html", str(tmp_path / "no" / "page.html")), fail)

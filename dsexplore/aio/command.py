"""``dsexplore aio PATH``: the sweep in a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dsexplore.errors import UsageError

if TYPE_CHECKING:
    from dsexplore.aio.result import SweepResult

DESCRIPTION = (
    "Measure the disk under PATH and print the aio block for a DeepSpeed config. PATH is a directory, where one "
    "scratch file is made and removed, or an existing file, which is only read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore aio`` to a parser."""
    parser.description = DESCRIPTION
    parser.add_argument("path", metavar="PATH", help="a directory on the disk to measure, or a file to read")
    parser.add_argument("--size", default="1GiB", help="size of the scratch file and of the tensor (default: 1GiB)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time to spend (default: 60)")
    parser.add_argument("--grid", action="store_true", help="measure every setting, however long it takes")
    parser.add_argument("--read-share", type=float, default=0.5, help="share of reads, 0 to 1 (default: 0.5)")
    parser.add_argument("--mode", choices=("tensor", "ring"), default="tensor", help="one large buffer, or a ring")
    parser.add_argument(
        "--write-mode", choices=("overwrite", "fresh", "fallocated"), default="overwrite", help="what writes go to"
    )
    parser.add_argument("--backend", choices=("linux-aio", "io_uring", "threads"), help="default: the first that runs")
    parser.add_argument("--buffered", action="store_true", help="through the page cache")
    parser.add_argument(
        "--reference", action="append", default=[], choices=("fio", "deepspeed"), help="run it beside; repeatable"
    )
    parser.add_argument("--save", metavar="FILE", help="write all measurements to FILE as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with all results to FILE")
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    """Do what ``dsexplore aio`` was asked; the exit status: 0, 1 for an error, 130 if interrupted."""
    from dsexplore.aio.sweeping import sweep

    try:
        _check_files(args)
        result = sweep(
            args.path,
            args.size,
            None if args.grid else args.seconds,
            read_share=args.read_share,
            mode=args.mode,
            write_mode=args.write_mode,
            backend=args.backend,
            direct=not args.buffered,
            references=args.reference,
            progress=False if args.json else None,
        )
        unsaved = _save(result, args)
        _print(result, as_json=args.json)
        if unsaved is not None:
            raise unsaved
    except BrokenPipeError:  # the reader of a pipe has ended, as head does; the results are saved by now
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails again when it flushes
    except (OSError, UsageError) as error:
        print(f"dsexplore aio: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dsexplore aio: interrupted before anything was measured", file=sys.stderr)
        return 130
    return 130 if result.interrupted else 0


def _check_files(args: argparse.Namespace) -> None:
    """Refuse what cannot be saved before a minute is spent on measuring it."""
    for option, file in (("--save", args.save), ("--html", args.html)):
        if not file:
            continue
        folder = Path(file).absolute().parent
        if Path(file).is_dir():
            raise UsageError(f"{option} {file} is a folder: give the name of a file in it")
        if not folder.is_dir():
            raise UsageError(f"{option} {file}: there is no folder {folder}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"{option} {file}: nothing may be written to {folder}")


def _save(result: SweepResult, args: argparse.Namespace) -> OSError | None:
    """Save what was measured, before anything else can fail; the error of what could not be saved."""
    failed = None
    for save, file in ((result.save, args.save), (result.to_html, args.html)):
        try:
            if file:
                save(file)
        except OSError as error:
            failed = error
    return failed


def _print(result: SweepResult, *, as_json: bool) -> None:
    if as_json:
        verdict = {"aio": result.to_ds_config()["aio"] if result.rounds else None}
        print(json.dumps({**verdict, **result.to_json()}, indent=1), flush=True)
        return
    print(result, flush=True)
    if result.rounds:
        print(json.dumps(result.to_ds_config(), indent=2), flush=True)

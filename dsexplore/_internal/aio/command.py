"""``dsexplore aio PATH``: sweep a disk, write it for long, or compare two sweeps, in a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsexplore._internal.aio.aio_config import NO_GDS, AioConfig
from dsexplore._internal.aio.sweeps.statistics import MATTERS
from dsexplore._internal.errors import UsageError, full_message
from dsexplore._internal.interrupts import sigterm_interrupts
from dsexplore._internal.output import check_output, print_no_more, print_result
from dsexplore._internal.units import format_bytes, format_rate, parse_size

if TYPE_CHECKING:
    from dsexplore._internal.aio.sweeps.result import SweepResult

DESCRIPTION = (
    "Measure the disk under PATH and print the aio block for a DeepSpeed config. PATH is a directory, where one "
    "scratch file is made that has no name, or an existing file, which is only read. Several paths are measured one "
    "after the other, and the fastest is named; with --together, at once. An option that takes several values comes "
    "after PATH."
)
_AXES: dict[str, Callable[[str], int]] = {"block_size": parse_size, "queue_depth": int, "thread_count": int}
_SWITCHES = ("single_submit", "overlap_events")
_LEAST_FILE = 8 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore aio`` to a parser."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("path", metavar="PATH", nargs="*", help="a directory on the disk to measure, or a file to read")
    add("--size", default="1GiB", help="size of the scratch file (default: 1GiB)")
    add("--seconds", type=float, default=60.0, help="time to spend on each path (default: 60)")
    add("--grid", action="store_true", help="measure every setting, however long it takes")
    add("--tensor", nargs="+", metavar="SIZE", help="sizes of your tensors (default: 32MiB 512MiB)")
    add("--max-written", default="64GiB", metavar="SIZE", help="bytes that may be written, or none (default: 64GiB)")
    add("--processes", type=int, default=1, metavar="N", help="move tensors by N processes at once, as ranks do")
    add("--together", action="store_true", help="measure all PATHs at once, each by processes of its own")
    add("--read-share", type=float, default=0.5, help="share of reads, 0 to 1 (default: 0.5)")
    add("--read-only", action="store_true", help="write nothing: read PATH, or the largest file in the directory PATH")
    add("--mode", choices=("tensor", "ring"), default="tensor", help="one large buffer, or a ring")
    add("--memory", choices=("ordinary", "huge"), default="ordinary", help="pages of the tensors (default: ordinary)")
    add("--write-mode", choices=("overwrite", "fresh", "fallocated"), default="overwrite", help="what writes go to")
    add("--backend", choices=("linux-aio", "io_uring", "threads"), help="default: the first that runs")
    add("--buffered", action="store_true", help="through the page cache")
    settings = parser.add_argument_group("settings to compare with the default; one value each is one setting")
    for name, kind in _AXES.items():
        settings.add_argument(_option(name), nargs="+", type=kind, metavar="N", help=f"values of {name} to try")
    for name in _SWITCHES:
        settings.add_argument(_option(name), nargs="+", choices=("true", "false"), help=f"values of {name} to try")
    settings.add_argument("--config", metavar="FILE", help="the aio block of a ds_config as the one setting")
    add("--reference", action="append", default=[], choices=("fio", "deepspeed"), help="run it beside; repeatable")
    add("--save", metavar="FILE", help="write all measurements to FILE as JSON; FILE-1, FILE-2 for several paths")
    add("--html", metavar="FILE", help="write a page with all results to FILE; numbered likewise")
    add("--json", action="store_true", help="print all measurements as JSON, and nothing else")
    add("--fio-job", action="store_true", help="print the setting to take as a job file of fio, too")
    add("--sustained", metavar="SIZE", help="no sweep: write SIZE at a stretch, and say where the disk gets slower")
    add("--compare", nargs=2, metavar="FILE", help="measure nothing: compare two results that --save wrote")


def _option(name: str) -> str:
    """Return the option of an axis: ``--block-size`` for ``block_size``."""
    return f"--{name.replace('_', '-')}"


def run(args: argparse.Namespace) -> int:
    """Run ``dsexplore aio`` and return the exit status: 0, 1 for an error, 130 if interrupted, 143 for SIGTERM."""
    with sigterm_interrupts() as received:
        status = _run(args)
    return 128 + received[0] if received else status


def _run(args: argparse.Namespace) -> int:
    """Run what the options ask for; print errors, and return the exit status without that of a signal."""
    try:
        if args.compare:
            _compare(*args.compare)
            return 0
        if args.sustained:
            _sustain(args)
            return 0
        return _sweep_all(args)
    except BrokenPipeError:  # the results are saved by now
        print_no_more()
        return 0
    except (OSError, UsageError) as error:
        print(f"dsexplore aio: {full_message(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dsexplore aio: interrupted before anything was measured", file=sys.stderr)
        return 130


def _sweep_all(args: argparse.Namespace) -> int:
    """Measure each path, print the results, and return the exit status."""
    from dsexplore._internal.aio.sweeps.sweep_setup import is_duration

    if not args.path:
        raise UsageError("give a PATH to measure, or --compare with two saved results")
    if not (args.grid or is_duration(args.seconds)):
        raise UsageError(
            f"--seconds {args.seconds:g} is not a time to spend: give a positive number, or --grid to try every setting"
        )
    check_output("--save", args.save)
    check_output("--html", args.html)
    for path in args.path:
        os.stat(path)  # noqa: PTH116 - raises FileNotFoundError with the path, before another path takes a minute
    axes = _axes(args)
    results: list[SweepResult] = []
    unsaved = None
    sweeps: list[list[str]] = [args.path] if args.together else [[path] for path in args.path]
    for number, paths in enumerate(sweeps, 1):
        result = _sweep(args, paths, axes)
        results.append(result)
        unsaved = _save(result, args, f"-{number}" if len(sweeps) > 1 else "") or unsaved
        try:
            if not args.json:
                _print(result, args, heading=len(sweeps) > 1)
        except BrokenPipeError:
            if not (args.save or args.html):
                raise
            print_no_more()
        if result.interrupted:
            break
    if args.json:
        documents = [_json_values(result) for result in results]
        print(json.dumps(documents[0] if len(sweeps) == 1 else documents, indent=1), flush=True)
    elif len(results) > 1:
        print(_fastest(results), flush=True)
    if unsaved is not None:
        raise unsaved
    return 130 if results[-1].interrupted else 0


def _axes(args: argparse.Namespace) -> dict[str, Sequence[Any]]:
    """Return {axis: values to try} of the command line; of ``--config``, one value for each axis."""
    axes: dict[str, Sequence[Any]] = {name: getattr(args, name) for name in _AXES if getattr(args, name)}
    for name in _SWITCHES:
        if getattr(args, name):
            axes[name] = [text == "true" for text in getattr(args, name)]
    if not args.config:
        return axes
    if axes:
        raise UsageError(f"--config names one setting already: leave {_option(next(iter(axes)))} out, or --config")
    config = AioConfig.from_file(args.config, must_have_block=True)
    if config.use_gds:
        print(f"dsexplore aio: {NO_GDS}", file=sys.stderr)
    return {name: [getattr(config, name)] for name in (*_AXES, *_SWITCHES)}


def _sweep(args: argparse.Namespace, paths: list[str], axes: dict[str, Sequence[Any]]) -> SweepResult:
    """Sweep a path, or several together, after announcing what is read or written."""
    from dsexplore._internal.aio.sweeps.sweeping import sweep

    max_written = None if args.max_written == "none" else args.max_written
    path = paths[0]
    if args.read_only and len(paths) > 1:
        raise UsageError("--together writes a file to each PATH: leave --read-only out, or --together")
    if args.read_only and Path(path).is_dir():
        path = _largest_file(path)
        if not args.json:
            print(f"dsexplore aio: this reads {path}, and writes nothing (--read-only)", file=sys.stderr)
    if not args.json and Path(path).is_dir():
        _announce(args, paths, max_written, axes)
    return sweep(
        paths if len(paths) > 1 else path,
        args.size,
        None if args.grid else args.seconds,
        read_share=args.read_share,
        mode=args.mode,
        write_mode=args.write_mode,
        backend=args.backend,
        direct=not args.buffered,
        references=args.reference,
        tensor=args.tensor,
        max_written=max_written,
        processes=args.processes,
        memory=args.memory,
        progress=False if args.json else None,
        **axes,  # type: ignore[arg-type]  # its keys are those of the axes
    )


def _announce(
    args: argparse.Namespace, folders: list[str], max_written: str | None, axes: dict[str, Sequence[Any]]
) -> None:
    """Check the arguments, and print how much will be written."""
    from dsexplore._internal.aio.sweeps.scratch import check_space
    from dsexplore._internal.aio.sweeps.sweep_setup import Plan

    plan = Plan(
        size=args.size,
        seconds=None if args.grid else args.seconds,
        read_share=args.read_share,
        mode=args.mode,
        write_mode=args.write_mode,
        tensor=args.tensor,
        max_written=max_written,
        axes=axes,
        processes=max(args.processes, len(folders)),
    )
    plan.check_budget()
    plan.settings(plan.size)
    for folder in folders:
        check_space(folder, plan.bytes_of_files() // len(folders))
    if plan.writes(is_scratch=True):
        limit = "without limit" if plan.most_written is None else f"up to {format_bytes(plan.most_written)} in all"
        file = format_bytes(plan.bytes_of_files())
        print(
            f"dsexplore aio: this takes {file} in {' and '.join(folders)}, "
            f"and overwrites that again and again, {limit} (--max-written)",
            file=sys.stderr,
        )


def _largest_file(folder: str) -> str:
    """Return the largest file in a directory; raise UsageError if it is too small to measure."""
    files = [path for path in Path(folder).iterdir() if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size, default=None)
    if largest is None or largest.stat().st_size < _LEAST_FILE:
        raise UsageError(f"--read-only {folder}: no file in it has {format_bytes(_LEAST_FILE)} or more to read")
    return str(largest)


def _save(result: SweepResult, args: argparse.Namespace, suffix: str) -> OSError | None:
    """Write the files of ``--save`` and ``--html``; return the error if one could not be written."""
    unsaved = None
    for save, file in ((result.save, args.save), (result.to_html, args.html)):
        try:
            if file:
                save(Path(file).with_stem(f"{Path(file).stem}{suffix}"))
        except OSError as error:
            unsaved = error
    return unsaved


def _json_values(result: SweepResult) -> dict[str, Any]:
    """Return the recommended block, the settings tied with the fastest, and all measurements."""
    if not result.rounds:
        return {"aio": None, **result.to_json()}
    tied = [config.to_ds_config()["aio"] for config in result.best().tied]
    return {**result.to_ds_config(), "tied": tied, **result.to_json()}


def _print(result: SweepResult, args: argparse.Namespace, *, heading: bool) -> None:
    """Print a result, its block, and the job of fio if it is asked for."""
    if heading:
        print(f"{result.disk.path}:")
    print(result)
    if result.rounds:
        print(json.dumps(result.to_ds_config(), indent=2))
        if args.fio_job:
            print(f"\n{result.to_fio_job()}", end="")
    sys.stdout.flush()


def _fastest(results: Sequence[SweepResult]) -> str:
    """Return a line with the paths by the rate of their recommended setting, the fastest first; ties are marked."""
    compared = sorted((result for result in results if result.rounds), key=lambda result: -result.best().rate)
    if not compared:
        return "No path was compared."
    fastest = compared[0].rate_interval()
    texts = []
    for number, result in enumerate(compared):
        rate = result.rate_interval()
        is_slower = rate.high < fastest.low and rate.value < fastest.value * (1 - MATTERS)
        doubt = "" if number == 0 or is_slower else " (not surely slower)"
        texts.append(f"{result.disk.path} {format_rate(result.best().rate)}{doubt}")
    return f"Fastest first: {'; '.join(texts)}"


def _sustain(args: argparse.Namespace) -> None:
    """Write to one path for long, and print where the disk got slower."""
    from dsexplore._internal.aio.sustained import sustained_writes
    from dsexplore._internal.display import plain_text

    if len(args.path) != 1:
        raise UsageError("--sustained is of one disk: give one PATH, a directory")
    check_output("--save", args.save)
    check_output("--html", args.html)
    result = sustained_writes(args.path[0], args.sustained)
    print_result(result.to_frame().write_json() if args.json else plain_text(result))
    if args.html:
        result.to_html(args.html)


def _compare(first: str, second: str) -> None:
    """Print each setting that two saved results share, with both rates and their ratio."""
    from dsexplore._internal.aio.sweeps.result import SweepResult
    from dsexplore._internal.aio.sweeps.result_text import what

    mine, other = SweepResult.load(first), SweepResult.load(second)
    for name, result in ((first, mine), (second, other)):
        print(f"{name}: {what(result)}, {result.conditions.started}")
    for sentence in mine.unlike(other):
        print(sentence)
    print(f"{'':<6}{'setting':<62}{'GB/s':>8}{'other':>8}{'ratio':>8}")
    for row in mine.compare_rows(other):
        names = (*_AXES, *_SWITCHES)
        setting: dict[str, Any] = {name: row[name] for name in names}
        config = AioConfig(**setting)
        print(f"{row['operation']:<6}{config!s:<62}{row['gb_s']:8.2f}{row['other_gb_s']:8.2f}{row['ratio']:8.3f}")
    for name, result in ((first, mine), (second, other)):
        if result.rounds:
            print(f"{name}: {result.verdict()}")

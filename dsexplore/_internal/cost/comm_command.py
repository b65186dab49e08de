"""``dsexplore comm``: measure collectives from a terminal, on local ranks or under torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.output import check_output

if TYPE_CHECKING:
    from dsexplore._internal.comm.sweeps.sweep_result import CommSweep

DESCRIPTION = (
    "Measure the collectives of torch.distributed and print them as nccl-tests does: on local ranks with --real N, or "
    "on the ranks of a launcher (torchrun --nproc-per-node 8 -m dsexplore comm). --read takes what nccl-tests printed."
)


_FOR_FILES = ("read", "op", "save", "html", "calibrate", "base")
"""Options that have an effect beside --read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore comm`` to a parser."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("--real", type=int, metavar="N", help="start N local ranks with gloo and measure those")
    add("--ops", nargs="+", metavar="OP", help="which collectives (default: all)")
    add("-b", "--smallest", default="512", metavar="SIZE", help="message bytes to begin with (default: 512)")
    add("-e", "--largest", default="1GiB", metavar="SIZE", help="the most message bytes (default: 1GiB)")
    add("-f", "--factor", type=int, default=2, help="from one size to the next (default: 2)")
    add("--rounds", type=int, default=3, help="how often all is measured (default: 3)")
    add("--seconds", type=float, default=0.05, help="for one op at one size in a round (default: 0.05)")
    add("--out-of-place-only", action="store_true", help="measure nothing in place")
    add("--timeout", type=float, default=3600.0, help="seconds for --real ranks, all together (default: 3600)")
    add("--read", metavar="FILE", help="measure nothing: read what --save wrote, or what nccl-tests printed")
    add("--op", help="the collective of a file of nccl-tests that does not say it")
    add("--save", metavar="FILE", help="write all measurements to FILE as JSON")
    add("--html", metavar="FILE", help="write a page with all results to FILE")
    add("--calibrate", metavar="FILE.toml", help="write a cluster file with the quiet times, to which others only add")
    add("--base", metavar="CLUSTER", help="the cluster whose other numbers the file takes")


def run(options: argparse.Namespace) -> int:
    """Run ``dsexplore comm``, and return the exit status: 0, or 1 if a result was wrong.

    Raises:
        UsageError: no ranks to measure, or invalid options.
    """
    _check(options)
    measured = _read(options) if options.read else _measured(options)
    if measured is None:
        return 0  # another rank prints
    _print(measured)
    _write(measured, options)
    return 1 if measured.wrong() else 0


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for options that would fail after the measurement, or have no effect beside others."""
    _check_effects(options)
    for name in ("save", "html", "calibrate"):
        check_output(f"--{name}", getattr(options, name))
    if options.calibrate and not options.calibrate.endswith(".toml"):
        raise UsageError(f"--calibrate {options.calibrate}: give a file that ends in .toml")
    if options.base:
        from dsexplore._internal.cost.cluster import Cluster

        Cluster.load(options.base)


def _check_effects(options: argparse.Namespace) -> None:
    """Raise UsageError for an option that nothing would come of."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = [name for name, default in vars(parser.parse_args([])).items() if getattr(options, name) != default]
    if options.op and not options.read:
        raise UsageError(
            f"--op is about a file that --read reads: to measure {options.op} alone, give --ops {options.op}"
        )
    if options.base and not options.calibrate:
        raise UsageError("--base is about a cluster file: give --calibrate FILE.toml too")
    without_effect = [name for name in given if name not in _FOR_FILES]
    if options.read and without_effect:
        name = without_effect[0].replace("_", "-")
        raise UsageError(f"--read measures nothing, so --{name} has no effect: leave one of them out")


def _read(options: argparse.Namespace) -> CommSweep:
    from dsexplore._internal.comm.sweeps.nccl_tests_file import read_nccl_tests
    from dsexplore._internal.comm.sweeps.sweep_result import CommSweep

    if Path(options.read).read_bytes()[:1] == b"{":
        return CommSweep.load(options.read)
    return read_nccl_tests(options.read, options.op)


def _measured(options: argparse.Namespace) -> CommSweep | None:
    chosen: dict[str, Any] = {
        "smallest": options.smallest,
        "largest": options.largest,
        "factor": options.factor,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "in_place": not options.out_of_place_only,
    }
    if options.ops:
        chosen["ops"] = tuple(options.ops)
    if options.real is not None:
        return _local(options.real, chosen, options.timeout)
    if "RANK" not in os.environ:
        raise UsageError("there are no ranks to measure: give --real 4, or start this with torchrun")
    return _launched(chosen)


def _local(world_size: int, chosen: dict[str, Any], timeout: float) -> CommSweep:
    from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
    from dsexplore._internal.worlds.real.run_ranks import run_ranks

    if world_size < 2:
        raise UsageError(f"--real {world_size}: a collective needs 2 ranks or more")
    finished = run_ranks(_sweep_rank, world_size, args=(chosen,), timeout=timeout, group_timeout=timeout).check()
    return CommSweep.from_json(finished.values[0])


def _sweep_rank(chosen: dict[str, Any]) -> dict[str, Any]:
    """Run the sweep on one local rank; all ranks return the same results."""
    from dsexplore._internal.comm.sweeps.sweep_run import sweep

    return sweep(**chosen).to_json()


def _launched(chosen: dict[str, Any]) -> CommSweep | None:
    """Measure the ranks of a launcher; None on all but the first."""
    import torch
    import torch.distributed as td

    from dsexplore._internal.comm.sweeps.sweep_run import sweep

    ours = not td.is_initialized()
    if ours:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        td.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        measured = sweep(**chosen)
        return measured if td.get_rank() == 0 else None
    finally:
        if ours:
            td.destroy_process_group()


def _print(measured: CommSweep) -> None:
    for op in measured.ops:
        print(f"# {op}")
        print(measured.to_nccl_tests(op))
    print(measured)


def _write(measured: CommSweep, options: argparse.Namespace) -> None:
    if options.save:
        print(f"wrote {measured.save(options.save)}", file=sys.stderr)
    if options.html:
        print(f"wrote {measured.to_html(options.html)}", file=sys.stderr)
    if options.calibrate:
        from dsexplore._internal.cost.cluster import Cluster
        from dsexplore._internal.cost.collectives.calibrate import calibrated, usual_base

        base = Cluster.load(options.base or usual_base(measured))
        print(f"wrote {calibrated(measured, base).save(options.calibrate)}", file=sys.stderr)

"""The options of ``dsexplore run``. This module does not import torch, so that help and errors appear at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.simulated.launcher_environment import RANKS_PER_NODE

DESCRIPTION = """\
Run a training script, unmodified, as one rank of a simulated world or as several, and show what it communicates.

  dsexplore run --world-size 64 train.py --lr 0.1
  dsexplore run --nnodes 8 --nproc-per-node 8 -m package.train
  dsexplore run --steps 2 torchrun --nproc-per-node 4 train.py   (or accelerate launch, deepspeed, srun, mpirun)
  dsexplore run --mesh dp=8,tp=8 --fake --steps 2 --save step.parquet --html step.html train.py
  dsexplore run --world-size 64 --fake --predict train.py

Options before the script are dsexplore's, those after it are the script's."""

_IGNORED = (
    *("--master-addr", "--master-port", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
    *("--rdzv-conf", "--node-rank", "--local-addr", "--monitor-interval", "--start-method", "--role", "--log-dir"),
    *("--redirects", "--tee"),
)
"""Options with a value that are accepted so that torchrun's command line works, and ignored."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dsexplore run`` to a parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "dsexplore run [options] (train.py | -m package.module) [argument ...]"
    _add_world(parser.add_argument)
    _add_recording(parser.add_argument)
    for name in _IGNORED:
        parser.add_argument(name, "--" + name[2:].replace("-", "_"), help=argparse.SUPPRESS)
    parser.add_argument("--standalone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script", help="the script, or with -m the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")


def _add_world(option: Callable[..., object]) -> None:
    """Add the options for the simulated ranks and their machine.

    Args:
        option: ``add_argument`` of a parser.
    """
    option("--world-size", type=int, metavar="N", help="number of ranks")
    option("--mesh", metavar="AXES", help="names for the axes, outermost first: dp=8,tp=8; says the world size too")
    option("--nnodes", type=_number_of, metavar="N", help="number of nodes, as torchrun's")
    option(
        *("--nproc-per-node", "--nproc_per_node", "--ranks-per-node"),
        dest="ranks_per_node",
        type=_number_of,
        metavar="N",
        help="ranks on each node, as torchrun's (default: 8)",
    )
    option("--rank", type=int, metavar="R", help="the rank to run as (default: 0)")
    option(
        "--ranks",
        metavar="RANKS",
        help="several ranks, each in a process of its own: 0,8, all, or distinct: one of each that differ",
    )
    option(
        "--hardware",
        metavar="NAME",
        help="the machine that scripts find: a GPU, a cluster, or cpu for none (default: h100)",
    )


def _add_recording(option: Callable[..., object]) -> None:
    """Add the options for how the script is run and recorded.

    Args:
        option: ``add_argument`` of a parser.
    """
    option(
        "--no-skip-repeats",
        dest="skip_repeats",
        action="store_false",
        help="with --ranks distinct --fake: run every microbatch of a pipeline and every layer, also those that repeat",
    )
    option("--fake", action="store_true", help="run on fake tensors: shapes without memory, for models of any size")
    option(
        "--value",
        dest="values",
        action="append",
        default=[],
        metavar="LINE=NUMBER",
        help="what a read of a fake tensor returns there, as train.py:31=0.5; repeatable",
    )
    option("--predict", action="store_true", help="also predict the step on that hardware")
    option("--steps", type=int, metavar="N", help="end the script after N optimizer steps")
    option("--save", metavar="FILE", help="save the trace: a file (step.parquet), or a folder")
    option("--html", type=Path, metavar="FILE", help="write the report there")
    option("-m", dest="module", action="store_true", help="run a module, as python -m does")


def parse_values(texts: Iterable[str]) -> dict[str, float]:
    """Parse the arguments of ``--value``: ``["train.py:31=0.5"]`` → ``{"train.py:31": 0.5}``.

    Raises:
        UsageError: an argument is not a line with a number.
    """
    values = {}
    for text in texts:
        line, _, number = text.rpartition("=")
        try:
            values[line] = float(number)
        except ValueError:
            line = ""
        if ":" not in line:
            raise UsageError(f"--value {text}: write a line of the script and a number, like train.py:31=0.5")
    return values


def _number_of(text: str) -> int:
    """Parse a number of nodes or ranks: 4 for torchrun's range ``1:4``; for ``gpu`` the GPUs of a node."""
    return RANKS_PER_NODE if text in ("gpu", "auto") else int(text.rpartition(":")[2])


_number_of.__name__ = "int"  # argparse's error for a wrong value shows it

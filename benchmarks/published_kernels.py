"""Published tables of the times of single kernels, held beside predictions; the benchmarks of kernels call it."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsexplore._internal.cost.kernels.compute import SPEEDS, Attention, kernel_seconds
from dsexplore.cost import Cluster

MACHINES = {
    "a100-sxm": "dgx-a100",
    "b200-sxm": "b200",
    "b300-sxm": "b200",
    "gb200": "gb200-nvl72",
    "gb300": "gb200-nvl72",
    "h100-sxm": "dgx-h100",
    "h200-sxm": "hgx-h200",
    "l40s": "8xl40s",
    "rtx-pro-6000-server": "8xrtx-pro-6000",
}
"""{machine of a table: cluster file with its GPU}."""

Row = Mapping[str, str]
Pair = tuple[float, tuple[float, ...]]
"""Measured seconds, and the predicted ones of each of `SPEEDS`."""


def read_rows(data: Path) -> Iterator[Row]:
    """Yield the rows of a file."""
    with data.open(encoding="utf-8", newline="") as rows:
        yield from csv.DictReader(rows)


def compare(
    rows: Iterable[Row],
    kernels_of: Callable[[Row], list[dict[str, Any]]],
    lines_of: Callable[[Row, str, float], Iterable[str]],
    attention: Attention = "flash-2",
) -> dict[str, list[Pair]]:
    """Predict each row, print a line of errors for each group of rows, and return the rows of each group.

    Args:
        rows: with ``machine``, ``library`` and ``microseconds``, and with what `kernels_of` reads.
        kernels_of: returns the rows of `schema.KERNELS` whose sum a row measured.
        lines_of: called with a row, its machine and library, and the measured seconds; returns the lines it counts in.
        attention: the library of attention kernels, as for `kernel_seconds`.
    """
    groups: dict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        cluster, measured = Cluster.load(MACHINES[row["machine"]]), float(row["microseconds"]) * 1e-6
        kernels = kernels_of(row)
        predicted = tuple(
            sum(kernel_seconds(kernel, cluster, speed, False, attention) for kernel in kernels) for speed in SPEEDS
        )
        for name in lines_of(row, f"{row['machine']} {row['library']}", measured):
            groups[name].append((measured, predicted))
    for name, pairs in sorted(groups.items(), key=lambda item: item[0].startswith("all")):
        print(f"{name:43}{line(pairs)}")
    return groups


def errors_of(pairs: list[Pair]) -> tuple[float, float]:
    """Return the median error, and the part of the times that are in range."""
    inside = statistics.mean(low <= true <= high for true, (low, _, high) in pairs)
    return statistics.median(abs(expected / true - 1) for true, (_, expected, _) in pairs), inside


def line(pairs: list[Pair]) -> str:
    """Return the number of kernels, the median error, the median of signed errors, and how many are in range."""
    median, inside = errors_of(pairs)
    signed = statistics.median(expected / true - 1 for true, (_, expected, _) in pairs)
    return f"{len(pairs):5}  median error {median:5.1%}  signed {signed:+6.1%}  in range {inside:4.0%}"

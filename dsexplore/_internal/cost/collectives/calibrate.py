"""`calibrate`: a cluster file whose collectives were measured on the ranks that are here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from inspect import signature
from pathlib import Path
from typing import Any

import polars as pl
import torch.distributed as td

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
from dsexplore._internal.comm.sweeps.sweep_run import sweep
from dsexplore._internal.cost.cluster import Cluster, Measured
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.hardware import CLUSTERS
from dsexplore._internal.output import writing
from dsexplore._internal.signatures import names_arguments, with_options


@dataclass
class Calibration(Result):
    """Measured collectives, each with the time that a cluster file predicts.

    Attributes:
        sweep: what was measured.
        base: the cluster file that the measured points were added to.
        cluster: the base with the measured points, to give to predictions.
    """

    sweep: CommSweep
    base: Cluster
    cluster: Cluster

    def verdict(self) -> str:
        """Return how far the measured times are from those that the base predicts."""
        return f"Collectives take {_range_text(self.to_frame())} times what {self.base.name} predicts."

    def lines(self) -> list[str]:
        """Return the verdict, and how far the times of each op are from those that the base predicts."""
        by_op = self.to_frame().partition_by("op", as_dict=True, maintain_order=True)
        ops = [f"{op}: {points.height} points, {_range_text(points)} times" for (op,), points in by_op.items()]
        return [self.verdict(), *ops]

    def to_frame(self) -> pl.DataFrame:
        """Return one row per op and message size.

        Columns: ``op``, ``message_bytes``, ``measured`` and ``predicted`` in seconds, ``factor``: measured over
            predicted.
        """
        here = self.sweep.conditions
        rows = [
            (
                op,
                point.message_bytes,
                point.quiet_seconds,
                collective_time(op, point.message_bytes, here.ranks, here.ranks_per_node, self.base).expected,
            )
            for op in self.sweep.ops
            for point in self.sweep.points_of(op)
        ]
        columns = {"op": pl.String, "message_bytes": pl.Int64, "measured": pl.Float64, "predicted": pl.Float64}
        frame = pl.DataFrame(rows, schema=columns, orient="row")
        return frame.with_columns(factor=pl.col("measured") / pl.col("predicted"))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the cluster as a file that `Cluster.load` and predictions take by its path; returns the path.

        Raises:
            UsageError: a path that does not end in ``.toml``.
        """
        target = Path(path)
        if target.suffix != ".toml":
            raise UsageError(f"{target} would not be taken for a cluster file: give a path that ends in .toml")
        with writing(target) as unfinished:
            unfinished.write_text(self.to_toml(), encoding="utf-8")
        return target

    def to_toml(self) -> str:
        """Return the base's file with the measured points appended, which replace those for the same ops and groups."""
        kept = [table for table in self.cluster.measured if table not in _tables(self.sweep)]
        text = CLUSTERS.path(self.base.name).read_text(encoding="utf-8").split("\n[[measured]]")[0].rstrip()
        if self.cluster.processors != self.base.processors:
            text = text.replace("\nranks_per_node", f"\nprocessors = {self.cluster.processors}\nranks_per_node", 1)
        return "\n".join([text, *(_table_text(table) for table in (*kept, *_tables(self.sweep)))]) + "\n"


@names_arguments
@with_options(signature(sweep).parameters.values())
def calibrate(group: td.ProcessGroup | None = None, *, base: str | None = None, **options: Any) -> Calibration:
    """Measure the collectives of a group and put them into a cluster; every rank of the group calls this.

    Args:
        group: a process group; None for the world.
        base: the name of a known cluster, whose other numbers are taken; None takes ``"gloo-local"`` for gloo and
            ``"dgx-h100"`` for NCCL, whose compute and memory then are not this machine's.
        options: of `dsexplore.comm.sweep`.

    Raises:
        UsageError: as `dsexplore.comm.sweep` and `Cluster.load`.
    """
    start = Cluster.load(base) if base else None  # a wrong name is an error before minutes of measuring
    measured = sweep(group, **options)
    return calibrated(measured, start or Cluster.load(usual_base(measured)))


def calibrated(measured: CommSweep, base: Cluster) -> Calibration:
    """Build a calibration from a sweep that was measured, or read from a file of nccl-tests.

    The cluster gets the quiet times of the sweep and not the means, since other programs only add to a time: a
    predicted step then is that of a machine without them.

    Raises:
        UsageError: more ranks per node than the cluster has.
    """
    here = measured.conditions
    if here.ranks_per_node > base.ranks_per_domain:
        raise UsageError(
            f"{base.name} has {base.ranks_per_domain} ranks per node and the sweep {here.ranks_per_node}: "
            "name another cluster as base"
        )
    tables = _tables(measured)
    new = {(table.op, table.nodes, table.ranks_per_node) for table in tables}
    kept = tuple(t for t in base.measured if (t.op, t.nodes, t.ranks_per_node) not in new)
    shared = here.processors if base.topology == "host" else None
    return Calibration(measured, base, replace(base, measured=kept + tables, processors=shared or base.processors))


def _range_text(points: pl.DataFrame) -> str:
    """Return the range of the factors of some points: ``0.8 to 1.4``."""
    low, high = points.select(low=pl.col("factor").min(), high=pl.col("factor").max()).row(0)
    return f"{low:.2g} to {high:.2g}"


def usual_base(measured: CommSweep) -> str:
    """Return the name of the default cluster that provides all other numbers."""
    return "dgx-h100" if measured.conditions.backend == "nccl" else "gloo-local"


def _tables(measured: CommSweep) -> tuple[Measured, ...]:
    """Return the points of each op as a table of a cluster file; in-place ones for ops that torch does in place."""
    here = measured.conditions
    source = f"measured: {here.backend} on {here.device}, {here.software}"
    day = here.started[:10] or date.today().isoformat()
    return tuple(
        Measured(op, here.nodes, here.ranks_per_node, *_points(measured, op), source, day) for op in measured.ops
    )


def _points(measured: CommSweep, op: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    there = {point.in_place for point in measured.points if point.op == op}
    in_place = op in ("all_reduce", "broadcast", "reduce") and True in there
    points = measured.points_of(op, in_place=in_place if in_place in there else None)
    return tuple(point.message_bytes for point in points), tuple(point.quiet_seconds for point in points)


def _table_text(table: Measured) -> str:
    return "\n".join(_table_lines(table))


def _table_lines(table: Measured) -> Iterator[str]:
    yield "\n[[measured]]"
    yield f'op = "{table.op}"'
    yield f"nodes = {table.nodes}"
    yield f"ranks_per_node = {table.ranks_per_node}"
    yield f"bytes = {list(table.message_bytes)}"
    yield f"microseconds = {[round(seconds * 1e6, 3) for seconds in table.seconds]}"
    yield f"source = {_quoted(table.source)}"
    yield f"date = {_quoted(table.date)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

"""`MeshComparison`: the meshes that the ranks of one program can form, ranked by predicted step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import polars as pl

from dsexplore._internal.cost.cluster import Cluster, Link, Measured
from dsexplore._internal.cost.range import Range
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError

_COMPARED = 3
"""Number of fastest meshes that are checked for ties."""


@dataclass(frozen=True)
class MeshCandidate:
    """One mesh with its prediction, or the reason why it was dropped.

    Attributes:
        sizes: Size of each axis, outermost first.
        prediction: Prediction of its step; None if it was not traced.
        dropped: Reason why it was dropped; empty if it can be used.
        choice: Values of the program's further arguments, by name.
    """

    sizes: Mapping[str, int]
    prediction: Prediction | None
    dropped: str = ""
    choice: Mapping[str, object] = field(default_factory=dict)

    @property
    def mesh(self) -> str:
        """Mesh and choices as text: ``"pp=2,dp=4,tp=8"``, ``"dp=8,recompute=True"``."""
        return text_of({**self.sizes, **self.choice})


class MeshComparison(Result):
    """The meshes of one program on one cluster, the fastest first; made by `compare_meshes`.

    Attributes:
        cluster: Cluster that the meshes are compared on.
        candidates: Meshes that fit, the fastest first; then the meshes that were dropped.
        notes: Caveats for the reader.
    """

    def __init__(self, cluster: Cluster, candidates: Sequence[MeshCandidate], notes: Sequence[str] = ()) -> None:
        self.cluster = cluster
        usable = [candidate for candidate in candidates if not candidate.dropped]
        dropped = [candidate for candidate in candidates if candidate.dropped]
        self.candidates = (*sorted(usable, key=_rank), *sorted(dropped, key=lambda candidate: candidate.mesh))
        self.notes = tuple(notes)

    def __repr__(self) -> str:
        dropped = len(self.candidates) - len(self.ranking)
        fastest = f", fastest {self.ranking[0].mesh}" if self.ranking else ""
        return f"<MeshComparison of {len(self.ranking)} meshes on {self.cluster.name}{fastest}; {dropped} dropped>"

    @property
    def ranking(self) -> list[MeshCandidate]:
        """Meshes that fit, the fastest first."""
        return [candidate for candidate in self.candidates if not candidate.dropped]

    @property
    def best(self) -> Prediction:
        """Prediction of the fastest mesh that fits.

        Raises:
            UsageError: none fits.
        """
        if not self.ranking:
            raise UsageError(f"no mesh fits on {self.cluster.name}: see .to_frame() for why each was dropped")
        prediction = self.ranking[0].prediction
        assert prediction is not None
        return prediction

    @cached_property
    def tied(self) -> list[list[str]]:
        """Groups of meshes, among the three fastest and their neighbors, whose order is uncertain.

        Two neighbors in the ranking are tied if they would swap places with a constant of the cluster 10 % lower or
        higher. The order of meshes in no group is certain.
        """
        groups: list[list[str]] = []
        ranking = self.ranking[: _COMPARED + 1]
        for before, after in pairwise(ranking):
            if not _may_turn(before, after):
                continue
            if groups and groups[-1][-1] == before.mesh:
                groups[-1].append(after.mesh)
            else:
                groups.append([before.mesh, after.mesh])
        return groups

    def verdict(self) -> str:
        """Return the fastest mesh, and which meshes may be as fast or how much faster it is than the next."""
        steps = [
            (candidate.mesh, candidate.prediction.step)
            for candidate in self.ranking
            if candidate.prediction is not None
        ]
        if not steps:
            return "No mesh can be taken."
        (best, step), *others = steps
        fastest = f"{best} is fastest: {step} per step"
        tied = next((group for group in self.tied if best in group), [])
        if tied:
            return f"{fastest}; {' and '.join(mesh for mesh in tied if mesh != best)} may be as fast."
        if not others or not step.expected:
            return f"{fastest}."
        mesh, second = others[0]
        return f"{fastest}, {second.expected / step.expected:.2g} times as fast as {mesh}."

    def lines(self) -> list[str]:
        """Return the verdict, the widest part of the range of the fastest mesh, ties, and notes."""
        ties = [f"tied, as constants that are 10 % wrong would turn them: {' and '.join(group)}" for group in self.tied]
        return [self.verdict(), *(self.best.why_wide() if self.ranking else []), *ties, *self.notes]

    def to_frame(self) -> pl.DataFrame:
        """Return one row per mesh.

        Columns: ``mesh``; ``step``, ``low``, ``high``, ``compute``, ``exposed`` and ``idle`` in seconds; ``why``: the
            widest part of the range from ``low`` to ``high``; ``memory`` in bytes; ``gpu_hours``, ``energy`` in kWh at
            most and ``money`` of a step of the whole job, see `Expense`; ``tied`` with the next faster or slower mesh;
            ``dropped``: why it is excluded.
        """
        tied = {mesh for group in self.tied for mesh in group}
        rows = [
            (candidate.mesh, *_numbers(candidate.prediction), candidate.mesh in tied, candidate.dropped)
            for candidate in self.candidates
        ]
        times = dict.fromkeys(("step", "low", "high", "compute", "exposed", "idle"), pl.Float64)
        spent = dict.fromkeys(("gpu_hours", "energy", "money"), pl.Float64)
        said = {"tied": pl.Boolean, "dropped": pl.String}
        columns = {"mesh": pl.String, **times, "why": pl.String, "memory": pl.Int64, **spent, **said}
        return pl.DataFrame(rows, schema=columns, orient="row")

    def __getitem__(self, mesh: str) -> Prediction:
        """Return the prediction of a mesh.

        Raises:
            UsageError: a mesh that was not compared or not traced.
        """
        for candidate in self.candidates:
            if candidate.mesh == mesh and candidate.prediction is not None:
                return candidate.prediction
        raise UsageError(
            f"{mesh!r} was not predicted: there is {', '.join(candidate.mesh for candidate in self.candidates)}"
        )

    def __len__(self) -> int:
        return len(self.candidates)


def text_of(sizes: Mapping[str, object]) -> str:
    """Format a mesh: ``"pp=2,dp=4,tp=8"``."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _rank(candidate: MeshCandidate) -> tuple[bool, float]:
    """Return the place in the ranking: a mesh that barely fits may be much slower than predicted, and comes last."""
    if candidate.prediction is None:
        return True, float("inf")
    return candidate.prediction.memory.fit == "fits barely", candidate.prediction.expected_step


def _numbers(prediction: Prediction | None) -> tuple[Any, ...]:
    """Return the values of a row of `MeshComparison.to_frame` from ``step`` to ``money``; each None if not traced."""
    if prediction is None:
        return (None,) * 11
    step: Range = prediction.step
    parts = (prediction.compute.expected, prediction.exposed.expected, prediction.idle.expected)
    spent = prediction.expense()
    ranges = (spent.gpu_hours, spent.energy, spent.money)
    expected = (value.expected if value is not None else None for value in ranges)
    return (step.expected, step.low, step.high, *parts, step.why, int(prediction.memory), *expected)


_WRONG = 0.10
"""Assumed relative error of each constant of a cluster."""


def _may_turn(first: MeshCandidate, other: MeshCandidate) -> bool:
    """Return True if the slower mesh becomes the faster one when one cluster constant, or all, change by 10 %."""
    faster, slower = first.prediction, other.prediction
    assert faster is not None
    assert slower is not None
    gap = slower.expected_step - faster.expected_step
    pairs = ((faster.compute, slower.compute), (faster.exposed, slower.exposed), (faster.idle, slower.idle))
    reach = _WRONG * sum(abs(a.expected - b.expected) for a, b in pairs)
    if gap <= reach:
        return True
    if gap > 3 * reach + _WRONG * gap:
        return False  # parts that change by a tenth cannot close this gap
    return any(
        faster.what_if(hardware=cluster).expected_step >= slower.what_if(hardware=cluster).expected_step
        for cluster in perturbed_constants(faster.cluster)
    )


def perturbed_constants(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with one constant at a time 10 % lower, then 10 % higher.

    Measured times change with the link that they were measured on.
    """
    for factor in (1 - _WRONG, 1 + _WRONG):
        yield replace(cluster, compute=replace(cluster.compute, achievable=cluster.compute.achievable * factor))
        yield replace(cluster, memory=replace(cluster.memory, achievable=cluster.memory.achievable * factor))
        yield replace(cluster, launch_overhead=cluster.launch_overhead * factor)
        yield replace(cluster, collective_overhead=cluster.collective_overhead * factor)
        near, far = _scaled_tables(cluster, factor)
        reduction = cluster.reduction and replace(cluster.reduction, bandwidth=cluster.reduction.bandwidth * factor)
        yield replace(cluster, node=_scaled_link(cluster.node, factor), reduction=reduction, measured=near)
        if cluster.network is not None:
            yield replace(cluster, network=_scaled_link(cluster.network, factor), measured=far)


def _scaled_tables(cluster: Cluster, factor: float) -> tuple[tuple[Measured, ...], tuple[Measured, ...]]:
    """Return the measured tables for links inside a node `factor` times faster, and for links between nodes so."""
    faster = [replace(times, seconds=tuple(time / factor for time in times.seconds)) for times in cluster.measured]
    pairs = list(zip(cluster.measured, faster, strict=True))
    near = tuple(scaled if table.nodes == 1 else table for table, scaled in pairs)
    return near, tuple(scaled if table.nodes > 1 else table for table, scaled in pairs)


def _scaled_link(link: Link, factor: float) -> Link:
    """Return a link with its bandwidth multiplied, and its latency divided, by a factor."""
    return replace(link, bandwidth=link.bandwidth * factor, latency=link.latency / factor)

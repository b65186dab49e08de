"""`compare_meshes`: trace one program on every mesh that its ranks can form, and compare what a step would take.

Each mesh is traced on fake tensors in a process of its own, as many at a time as there are processors; of a pipeline
one rank of the first, a middle and the last stage. What was traced is kept by its content for as long as this process
lives, and in a folder where one is given, so that asking again about another cluster traces nothing.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from dsexplore.cost.cluster import Cluster, Link, Measured
from dsexplore.cost.prediction import Prediction, as_cluster, predict
from dsexplore.cost.range import Range
from dsexplore.cost.traced_rank import Build, trace_rank
from dsexplore.display import Displayable
from dsexplore.errors import UsageError
from dsexplore.progress import track
from dsexplore.trace.files import load as load_tables
from dsexplore.trace.files import save as save_tables
from dsexplore.trace.merge import merge_tables
from dsexplore.user_warnings import warn
from dsexplore.worlds.real.packed_program import pack_program
from dsexplore.worlds.real.run_ranks import run_ranks

_COMPARED = 3
"""How many of the fastest meshes are looked at for ties."""
_PIPELINE = "pp"
_INSIDE_NODE = "tp"
_FOREVER = 1e6


@dataclass(frozen=True)
class MeshCandidate:
    """One mesh: what was predicted for it, or why not.

    Attributes:
        sizes: of the axes, outermost first.
        prediction: None where it was not traced.
        dropped: why it is out; empty for one that can be taken.
    """

    sizes: Mapping[str, int]
    prediction: Prediction | None
    dropped: str = ""

    @property
    def mesh(self) -> str:
        """The mesh as text: ``"pp=2,dp=4,tp=8"``."""
        return _text(self.sizes)


class MeshComparison(Displayable):
    """The meshes of one program on one cluster, the fastest first; made by `compare_meshes`.

    Attributes:
        cluster: the cluster that the meshes are compared on.
        candidates: the meshes that fit, by expected time; then the meshes that were dropped.
        notes: what a reader must know.
    """

    def __init__(self, cluster: Cluster, candidates: Sequence[MeshCandidate], notes: Sequence[str] = ()) -> None:
        self.cluster = cluster
        taken = [one for one in candidates if not one.dropped]
        out = [one for one in candidates if one.dropped]
        self.candidates = (*sorted(taken, key=_expected), *sorted(out, key=lambda one: one.mesh))
        self.notes = tuple(notes)

    @property
    def ranking(self) -> list[MeshCandidate]:
        """The meshes that fit, the fastest first."""
        return [one for one in self.candidates if not one.dropped]

    @property
    def best(self) -> Prediction:
        """The prediction of the fastest that fits.

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
        """Groups of meshes among the three fastest, and those beside them, whose order is not certain.

        Two neighbours in the ranking are tied where they would change places if a constant of the cluster were 10 %
        lower or higher. Meshes in no group keep their order.
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

    def to_frame(self) -> pl.DataFrame:
        """One row per mesh: ``mesh``, ``step``, ``low``, ``high``, ``compute``, ``exposed``, ``idle`` in seconds,
        ``memory`` in bytes, ``tied`` with the next faster or slower, ``dropped``: why it is out."""
        tied = {mesh for group in self.tied for mesh in group}
        rows = [(one.mesh, *_numbers(one.prediction), one.mesh in tied, one.dropped) for one in self.candidates]
        times = dict.fromkeys(("step", "low", "high", "compute", "exposed", "idle"), pl.Float64)
        columns = {"mesh": pl.String, **times, "memory": pl.Int64, "tied": pl.Boolean, "dropped": pl.String}
        return pl.DataFrame(rows, schema=columns, orient="row")

    def __getitem__(self, mesh: str) -> Prediction:
        """The prediction of a mesh.

        Raises:
            UsageError: a mesh that was not compared or not traced.
        """
        for one in self.candidates:
            if one.mesh == mesh and one.prediction is not None:
                return one.prediction
        raise UsageError(f"{mesh!r} was not predicted: there is {', '.join(one.mesh for one in self.candidates)}")

    def __len__(self) -> int:
        return len(self.candidates)


def compare_meshes(
    build: Build,
    world_size: int,
    cluster: Cluster | str | os.PathLike[str] = "dgx-h100",
    axes: Sequence[str] = ("pp", "dp", "tp", "cp"),
    *,
    keep: Callable[[Mapping[str, int]], bool | str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    every_layer: bool = False,
) -> MeshComparison:
    """Trace a program on every mesh of so many ranks, and compare the predicted steps.

    Args:
        build: called as ``build(mesh)`` in a simulated world on fake tensors; the mesh has all ``axes``, some of size
            1. Returns a function without arguments that trains one step, which is called once. Where ``build`` cannot
            use a mesh it may raise `UsageError`, or any error: the mesh is dropped with that reason.
        world_size: ranks.
        cluster: what to predict for.
        axes: of the mesh, outermost first; the last one's ranks are neighbours. ``tp`` never leaves a node.
        keep: called with the sizes of each mesh; False or a reason drops it before it is traced.
        cache: a folder where traces are kept, by the content of ``build``.
        processes: how many traces are made at a time; as many as there are processors unless given.
        every_layer: run all layers. Else, of many consecutive layers with the same parts, shapes and settings, four are
            run, and the others repeat one of these where two of them do the same; a layer that does something else by
            its number alone, which nothing in it shows, would be missed.

    Returns:
        the meshes, the fastest first.

    Raises:
        UsageError: numbers that cannot be, or a ``build`` that cannot be sent to other processes.
    """
    machine = as_cluster(cluster)
    if not isinstance(world_size, int) or world_size < 1:
        raise UsageError(f"world_size={world_size!r} is no number of ranks: give 1 or more")
    if not axes or len(set(axes)) < len(axes):
        raise UsageError(f"axes={tuple(axes)!r}: name one axis or more, each once")
    content = pack_program(build, (), None)
    folder = Path(cache) if cache is not None else _own_cache()
    folder.mkdir(parents=True, exist_ok=True)
    candidates: list[MeshCandidate] = []
    wanted: list[_Job] = []
    for sizes in factorisations(world_size, axes):
        reason = _illegal(sizes, machine, keep)
        if reason:
            candidates.append(MeshCandidate(sizes, None, reason))
        else:
            wanted += _jobs(sizes, content, folder, every_layer)
    notes = _trace_all(build, wanted, processes or len(os.sched_getaffinity(0)))
    by_mesh: dict[str, list[_Job]] = {}
    for job in wanted:
        by_mesh.setdefault(_text(job.sizes), []).append(job)
    candidates += [_predicted(jobs, machine) for jobs in by_mesh.values()]
    return MeshComparison(machine, candidates, notes)


def factorisations(world_size: int, axes: Sequence[str]) -> Iterator[dict[str, int]]:
    """All sizes of the axes whose product is the number of ranks.

    Worked example: 4 ranks over dp and tp are 1 × 4, 2 × 2 and 4 × 1.
    """
    if len(axes) == 1:
        yield {axes[0]: world_size}
        return
    for size in range(1, world_size + 1):
        if world_size % size == 0:
            for rest in factorisations(world_size // size, axes[1:]):
                yield {axes[0]: size, **rest}


@dataclass(frozen=True)
class _Job:
    """One rank of one mesh to trace."""

    sizes: Mapping[str, int]
    rank: int
    file: Path
    every_layer: bool


def _text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _own_cache() -> Path:
    """The folder of this process's traces, which ends with it."""
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="dsexplore-meshes-")
    return Path(_folder.name)


_folder: tempfile.TemporaryDirectory[str] | None = None


def _illegal(sizes: Mapping[str, int], machine: Cluster, keep: Callable[[Mapping[str, int]], bool | str] | None) -> str:
    """Why a mesh is not traced; empty for one that is."""
    tp = sizes.get(_INSIDE_NODE, 1)
    if tp > machine.ranks_per_node:
        return f"tp={tp} leaves the node of {machine.ranks_per_node} ranks"
    kept = keep(sizes) if keep is not None else True
    if isinstance(kept, str):
        return kept
    return "" if kept else "left out by keep"


def _jobs(sizes: Mapping[str, int], content: bytes, folder: Path, every_layer: bool) -> list[_Job]:
    """The ranks to trace: one of each kind of stage."""
    stages = sizes.get(_PIPELINE, 1)
    axes = list(sizes)
    stride = 1
    for axis in axes[axes.index(_PIPELINE) + 1 :] if _PIPELINE in sizes else ():
        stride *= sizes[axis]
    jobs = []
    for stage in sorted({0, stages // 2, stages - 1}):
        name = hashlib.sha256(content + f"{_text(sizes)} {stage} {every_layer}".encode()).hexdigest()[:24]
        jobs.append(_Job(sizes, stage * stride, folder / f"{name}.parquet", every_layer))
    return jobs


def _trace_all(build: Build, jobs: Sequence[_Job], processes: int) -> list[str]:
    """Trace the jobs that have no file yet, in processes; Ctrl-C keeps the files of those that are done.

    Returns:
        Notes: one where it was interrupted.
    """
    missing = [job for job in jobs if not job.file.exists() and not job.file.with_suffix(".txt").exists()]
    missing.sort(key=lambda job: job.sizes.get(_PIPELINE, 1))
    if not missing:
        return []
    processes = max(1, min(processes, len(missing)))
    with track("tracing meshes", len(missing), "ranks") as work, tempfile.TemporaryDirectory() as claims:
        try:
            ran = run_ranks(
                _trace_several,
                processes,
                args=(build, missing, claims),
                backend=None,
                timeout=_FOREVER,
                grace=_FOREVER,
                on_line=lambda _rank, line: work.advance() if line.startswith(_DONE) else None,
            )
        except KeyboardInterrupt:
            done = sum(job.file.exists() for job in missing)
            note = f"interrupted: {done} of {len(missing)} traces were made; compare again for the rest"
            warn(note)
            return [note]
    ran.check()
    return []


_DONE = "traced "


def _trace_several(build: Build, jobs: Sequence[_Job], claims: str) -> None:
    """In a process of its own: trace jobs that no other process has taken, until none is left."""
    gc.freeze()  # what torch itself has made is looked through no more: a tenth of the time
    for number, job in enumerate(jobs):
        try:
            Path(claims, str(number)).mkdir()
        except FileExistsError:
            continue
        _trace_one(build, job)
        print(f"{_DONE}{_text(job.sizes)}", flush=True)


def _trace_one(build: Build, job: _Job) -> None:
    """Trace one rank into its file; where the program cannot use the mesh, the reason into a text beside it."""
    try:
        save_tables(trace_rank(build, job.sizes, job.rank, every_layer=job.every_layer), job.file)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        job.file.with_suffix(".txt").write_text(f"{type(error).__name__}: {first}", encoding="utf-8")


def _predicted(jobs: Sequence[_Job], machine: Cluster) -> MeshCandidate:
    sizes = jobs[0].sizes
    for job in jobs:
        reason = job.file.with_suffix(".txt")
        if reason.exists():
            return MeshCandidate(sizes, None, reason.read_text(encoding="utf-8"))
        if not job.file.exists():
            return MeshCandidate(sizes, None, "not traced, as it was interrupted")
    parts = [load_tables(job.file) for job in jobs]
    tables = merge_tables(parts) if len(parts) > 1 else parts[0]
    prediction = predict(tables, machine)
    if prediction.fits:
        return MeshCandidate(sizes, prediction)
    return MeshCandidate(sizes, prediction, next(note for note in prediction.notes if note.startswith("does not fit")))


def _expected(one: MeshCandidate) -> float:
    return one.prediction.expected_step if one.prediction is not None else float("inf")


def _numbers(prediction: Prediction | None) -> tuple[Any, ...]:
    if prediction is None:
        return (None,) * 7
    step: Range = prediction.step
    parts = (prediction.compute.expected, prediction.exposed.expected, prediction.idle.expected)
    return (step.expected, step.low, step.high, *parts, prediction.memory)


_WRONG = 0.10
"""By how much each constant of a cluster may be wrong."""


def _may_turn(first: MeshCandidate, other: MeshCandidate) -> bool:
    """Whether the slower of two meshes is the faster once one constant of the cluster, or all, are off by 10 %."""
    one, two = first.prediction, other.prediction
    assert one is not None
    assert two is not None
    gap = two.expected_step - one.expected_step
    pairs = ((one.compute, two.compute), (one.exposed, two.exposed), (one.idle, two.idle))
    reach = _WRONG * sum(abs(a.expected - b.expected) for a, b in pairs)
    if gap <= reach:
        return True
    if gap > 3 * reach + _WRONG * gap:
        return False  # far beyond what parts that move apart by a tenth can make up
    return any(
        one.what_if(cluster=cluster).expected_step >= two.what_if(cluster=cluster).expected_step
        for cluster in moved_constants(one.cluster)
    )


def moved_constants(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with one constant after the other 10 % lower, and 10 % higher; measured times go with their link."""
    for factor in (1 - _WRONG, 1 + _WRONG):
        yield replace(cluster, compute=replace(cluster.compute, achievable=cluster.compute.achievable * factor))
        yield replace(cluster, memory=replace(cluster.memory, achievable=cluster.memory.achievable * factor))
        yield replace(cluster, launch_overhead=cluster.launch_overhead * factor)
        yield replace(cluster, collective_overhead=cluster.collective_overhead * factor)
        near, far = _moved_tables(cluster, factor)
        reduction = cluster.reduction and replace(cluster.reduction, bandwidth=cluster.reduction.bandwidth * factor)
        yield replace(cluster, node=_moved(cluster.node, factor), reduction=reduction, measured=near)
        if cluster.network is not None:
            yield replace(cluster, network=_moved(cluster.network, factor), measured=far)


def _moved_tables(cluster: Cluster, factor: float) -> tuple[tuple[Measured, ...], tuple[Measured, ...]]:
    """The measured times where links of a node are faster by that factor, and where those between nodes are."""
    faster = [replace(one, seconds=tuple(time / factor for time in one.seconds)) for one in cluster.measured]
    pairs = list(zip(cluster.measured, faster, strict=True))
    near = tuple(moved if one.nodes == 1 else one for one, moved in pairs)
    return near, tuple(moved if one.nodes > 1 else one for one, moved in pairs)


def _moved(link: Link, factor: float) -> Link:
    return replace(link, bandwidth=link.bandwidth * factor, latency=link.latency / factor)

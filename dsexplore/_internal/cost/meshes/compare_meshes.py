"""`compare_meshes`: trace one program on every mesh that its ranks can form, and compare what a step would take.

Meshes are traced on fake tensors in as many processes as there are processors; of a pipeline one rank of the first, a
middle and the last stage. One process traces all ranks of a mesh, as those after the first find DTensor's sharding
decisions made. A mesh is predicted as soon as its ranks are traced, beside the processes that trace the next ones. What
was traced is kept by its content for as long as this process lives, and in a folder where one is given, so that asking
again about another cluster traces nothing.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dsexplore._internal.cost.cluster import Cluster, HardwareLike, as_cluster
from dsexplore._internal.cost.meshes.mesh_comparison import MeshCandidate, MeshComparison, text_of
from dsexplore._internal.cost.step.prediction import predict
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.files import load as load_tables
from dsexplore._internal.trace.files import save as save_tables
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.user_warnings import warn
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.real.packed_program import pack_program
from dsexplore._internal.worlds.real.run_ranks import run_ranks
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.repeats.skipped_microbatches import skip_repeats as skipped
from dsexplore._internal.worlds.simulate import simulate

Build = Callable[..., Callable[[], Any]]
"""Takes a mesh with all the axes, some of size 1, and a keyword argument for each choice, and returns a function that
trains one step."""
Choice = str | int | float | bool | None
"""One value of a choice besides the mesh."""


def trace_rank(
    build: Build,
    sizes: Mapping[str, int],
    rank: int,
    *,
    skip_repeats: bool = True,
    choice: Mapping[str, Choice] | None = None,
) -> Tables:
    """Return the tables of one step of one rank.

    Args:
        build: program, as for `compare_meshes`.
        sizes: size of each axis of the mesh, outermost first.
        rank: global rank that is traced.
        skip_repeats: whether to run only a few of the equal microbatches and layers (`worlds.repeats`); the tables have
            all of them. If the program does not repeat, all are run, and a note of the trace says why.
        choice: keyword arguments of ``build`` besides the mesh.
    """
    if choice:
        build = partial(build, **choice)
    if not skip_repeats:
        return _traced(build, sizes, rank, skip=False)
    try:
        return _traced(build, sizes, rank, skip=True)
    except CannotSkip as reason:
        tables = _traced(build, sizes, rank, skip=False)
        note = f"layers and microbatches were all run: {reason}"
        return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, note)))


def _traced(build: Build, sizes: Mapping[str, int], rank: int, *, skip: bool) -> Tables:
    """Return the tables of one step; raise `CannotSkip` if repeats should be skipped and the program has none."""
    with warnings.catch_warnings(action="ignore"), simulate(mesh=dict(sizes), rank=rank, fake=True) as mesh:
        step = build(mesh)
        with commtrace(costs=True) as trace, skipped() if skip else nullcontext() as recording:
            step()
    return trace.tables if recording is None else recording.whole(trace.tables)


_PIPELINE = "pp"
_INSIDE_NODE = "tp"
_FOREVER = 1e6


@names_arguments
def compare_meshes(
    build: Build,
    world_size: int,
    hardware: HardwareLike = "h100",
    axes: Sequence[str] = ("pp", "dp", "tp", "cp"),
    *,
    choices: Mapping[str, Sequence[Choice]] | None = None,
    keep: Callable[[Mapping[str, int]], bool | str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    skip_repeats: bool = True,
) -> MeshComparison:
    """Trace a program on every mesh of so many ranks, and compare the predicted steps.

    Args:
        build: function that is called as ``build(mesh)`` in a simulated world on fake tensors; the mesh has all
            ``axes``, some of size 1. It returns a function without arguments that trains one step, which is called
            once. If ``build`` cannot use a mesh it may raise `UsageError`, or any error: the mesh is dropped with that
            reason.
        world_size: number of ranks.
        hardware: GPU (``"h100"`` means ``"dgx-h100"``), cluster, path of a cluster's file, or a `Cluster`.
        axes: names of the mesh's axes, outermost first; the ranks of the last one are neighbors. ``tp`` never leaves a
            node. Any names can be given: ``("pp", "dp", "fsdp", "ep", "cp", "tp")``.
        choices: values of further keyword arguments of ``build``: ``{"recompute": [False, True], "microbatch": [1,
            2]}`` traces each mesh with each of the four combinations. All should train the same number of samples in
            a step, since steps are compared.
        keep: function that is called with the sizes of each mesh; False or a reason drops it before it is traced.
        cache: folder that keeps traces, by the content of ``build``; None keeps them until this process ends.
        processes: number of traces that are made at a time; None for the number of processors.
        skip_repeats: whether to run only four of many consecutive layers with the same parts, shapes and settings, and
            a few of many microbatches; the others repeat these if two of them do the same. A layer that does something
            else by its number alone, which nothing in it shows, would be missed. False runs all.

    Returns:
        The meshes, the fastest first.

    Raises:
        UsageError: A number or an axis is not valid, or ``build`` cannot be sent to other processes.
    """
    machine = as_cluster(hardware)
    if not isinstance(world_size, int) or world_size < 1:
        raise UsageError(f"world_size={world_size!r} is not a number of ranks: give 1 or more")
    if not axes or len(set(axes)) < len(axes):
        raise UsageError(f"axes={tuple(axes)!r}: name one axis or more, each once")
    combined = _combined(choices or {})
    content = pack_program(build, args=(), namespace=None)
    folder = Path(cache) if cache is not None else _private_cache()
    folder.mkdir(parents=True, exist_ok=True)
    candidates: list[MeshCandidate] = []
    wanted: list[_MeshTraces] = []
    for sizes in factorisations(world_size, axes):
        reason = _illegal(sizes, machine, keep)
        if reason:
            candidates.append(MeshCandidate(sizes, prediction=None, dropped=reason))
        else:
            wanted += [_MeshTraces.of(sizes, choice, content, folder, skip_repeats) for choice in combined]
    predicted: dict[str, MeshCandidate] = {}

    def on_traced(mesh: _MeshTraces) -> None:
        predicted[mesh.text] = _predicted(mesh, machine)

    with _few_collections():
        notes = _trace_all(build, wanted, processes or len(os.sched_getaffinity(0)), on_traced)
        candidates += [predicted.get(mesh.text) or _predicted(mesh, machine) for mesh in wanted]
    return MeshComparison(machine, candidates, notes)


def _combined(choices: Mapping[str, Sequence[Choice]]) -> list[dict[str, Choice]]:
    """Return each combination of the values of all choices; one without any where there are no choices.

    Raises:
        UsageError: a choice without values.
    """
    for name, values in choices.items():
        if isinstance(values, str) or not values:
            raise UsageError(f"choices={{{name!r}: {values!r}}}: give a list of one value or more")
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def factorisations(world_size: int, axes: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield all assignments of axis sizes whose product is the number of ranks.

    Example: 4 ranks over dp and tp give 1 × 4, 2 × 2 and 4 × 1.
    """
    if len(axes) == 1:
        yield {axes[0]: world_size}
        return
    for size in range(1, world_size + 1):
        if world_size % size == 0:
            for rest in factorisations(world_size // size, axes[1:]):
                yield {axes[0]: size, **rest}


@dataclass(frozen=True)
class _RankTrace:
    """A traced rank and the file of its trace."""

    rank: int
    file: Path

    @property
    def reason(self) -> Path:
        """File that replaces the trace, with the reason why the program cannot use the mesh."""
        return self.file.with_suffix(".txt")


@dataclass(frozen=True)
class _MeshTraces:
    """The ranks of one mesh that are traced: one of the first, a middle and the last pipeline stage."""

    sizes: Mapping[str, int]
    choice: Mapping[str, Choice]
    ranks: Sequence[_RankTrace]
    skip_repeats: bool

    @classmethod
    def of(
        cls, sizes: Mapping[str, int], choice: Mapping[str, Choice], content: bytes, folder: Path, skip_repeats: bool
    ) -> _MeshTraces:
        """Return the ranks of a mesh that are traced, with files named by the content of program, mesh and choice."""
        stages = sizes.get(_PIPELINE, 1)
        axes = list(sizes)
        stride = math.prod(sizes[axis] for axis in axes[axes.index(_PIPELINE) + 1 :]) if _PIPELINE in sizes else 1
        ranks = []
        for stage in sorted({0, stages // 2, stages - 1}):
            text = f"{text_of({**sizes, **choice})} {stage} {skip_repeats}"
            name = hashlib.sha256(content + text.encode()).hexdigest()[:24]
            ranks.append(_RankTrace(stage * stride, folder / f"{name}.parquet"))
        return cls(sizes, choice=choice, ranks=ranks, skip_repeats=skip_repeats)

    @property
    def text(self) -> str:
        """Mesh and choices as text."""
        return text_of({**self.sizes, **self.choice})

    @property
    def is_done(self) -> bool:
        """True if all its ranks are traced, or one of them has shown that the program cannot use the mesh."""
        return any(rank.reason.exists() for rank in self.ranks) or all(rank.file.exists() for rank in self.ranks)


def _private_cache() -> Path:
    """Return the temporary folder of this process's traces, which is deleted when the process ends."""
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="dsexplore-meshes-")
    return Path(_folder.name)


_folder: tempfile.TemporaryDirectory[str] | None = None


def _illegal(sizes: Mapping[str, int], machine: Cluster, keep: Callable[[Mapping[str, int]], bool | str] | None) -> str:
    """Return the reason why a mesh is not traced; empty if it is."""
    tp = sizes.get(_INSIDE_NODE, 1)
    if tp > machine.ranks_per_domain:
        return f"tp={tp} leaves the {machine.domain_kind} of {machine.ranks_per_domain} ranks"
    answer = keep(sizes) if keep is not None else True
    if isinstance(answer, str):
        return answer
    return "" if answer else "left out by keep"


def _trace_all(
    build: Build, meshes: Sequence[_MeshTraces], processes: int, on_traced: Callable[[_MeshTraces], None]
) -> list[str]:
    """Trace the meshes that have no files yet, in processes; Ctrl-C keeps the files of traced ranks.

    Args:
        build: program, as for `compare_meshes`.
        meshes: meshes that are compared, traced or not.
        processes: number of processes that trace.
        on_traced: function that is called with each mesh once it is traced, while others are.

    Returns:
        Notes for the reader: one if it was interrupted.
    """
    # Those with most ranks first: what is traced last, when other processes have no more to do, is short.
    missing = sorted((mesh for mesh in meshes if not mesh.is_done), key=lambda mesh: -len(mesh.ranks))
    if not missing:
        return []
    processes = max(1, min(processes, len(missing)))
    with track("tracing meshes", len(missing), "meshes") as work, tempfile.TemporaryDirectory() as claims:

        def on_line(_process: int, line: str) -> None:
            if line.startswith(_DONE):
                work.advance()
                on_traced(missing[int(line.removeprefix(_DONE))])

        try:
            ran = run_ranks(
                _trace_several,
                processes,
                args=(build, missing, claims),
                backend=None,
                timeout=_FOREVER,
                grace=_FOREVER,
                on_line=on_line,
            )
        except KeyboardInterrupt:
            done = sum(mesh.is_done for mesh in missing)
            note = f"interrupted: {done} of {len(missing)} meshes were traced; compare again for the rest"
            warn(note)
            return [note]
    ran.check()
    return []


_DONE = "traced mesh "
"""How the line begins by which a process says that a mesh is traced; what the program prints goes the same way."""
_COLLECT_AFTER = 20_000
"""New objects after which the garbage collector runs. With Python's 700 it takes a tenth of the time of a trace, and a
quarter of that of a prediction."""


@contextmanager
def _few_collections() -> Iterator[None]:
    """Raise the threshold of the garbage collector inside the block."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _trace_several(build: Build, meshes: Sequence[_MeshTraces], claims: str) -> None:
    """Trace meshes that no other process has claimed, until none is left; runs in a process of its own."""
    gc.freeze()  # what torch itself has made is looked through no more: a tenth of the time
    gc.set_threshold(_COLLECT_AFTER)
    for number, mesh in enumerate(meshes):
        try:
            Path(claims, str(number)).mkdir()
        except FileExistsError:
            continue
        for rank in mesh.ranks:
            if not (mesh.is_done or rank.file.exists()):
                _trace_into_file(build, mesh, rank)
        print(f"{_DONE}{number}", flush=True)


def _trace_into_file(build: Build, mesh: _MeshTraces, rank: _RankTrace) -> None:
    """Trace one rank into its file; if the program cannot use the mesh, write the reason to a text file."""
    try:
        tables = trace_rank(build, mesh.sizes, rank.rank, skip_repeats=mesh.skip_repeats, choice=mesh.choice)
        save_tables(tables, rank.file)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        rank.reason.write_text(f"{type(error).__name__}: {first}", encoding="utf-8")


def _predicted(mesh: _MeshTraces, machine: Cluster) -> MeshCandidate:
    """Return the prediction of a traced mesh, or the reason why it is dropped."""
    for rank in mesh.ranks:
        if rank.reason.exists():
            reason = rank.reason.read_text(encoding="utf-8")
        elif not rank.file.exists():
            reason = "not traced, as it was interrupted"
        else:
            continue
        return MeshCandidate(mesh.sizes, prediction=None, dropped=reason, choice=mesh.choice)
    parts = [load_tables(rank.file) for rank in mesh.ranks]
    tables = merge_tables(parts) if len(parts) > 1 else parts[0]
    prediction = predict(tables, machine)
    if prediction.fits:
        prediction.step  # noqa: B018 # simulates the step here, while other meshes are traced
    dropped = "" if prediction.fits else prediction.memory.verdict()
    return MeshCandidate(mesh.sizes, prediction, dropped=dropped, choice=mesh.choice)

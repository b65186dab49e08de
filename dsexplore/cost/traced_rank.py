"""The trace of one rank's step on a simulated mesh, on fake tensors, with what it computes and holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from dsexplore.trace.tables import Tables
from dsexplore.worlds.commtrace import commtrace
from dsexplore.worlds.repeats.layer_runs import CannotSkip
from dsexplore.worlds.repeats.skipped_microbatches import skip_repeats as skipped
from dsexplore.worlds.simulate import simulate

Build = Callable[[DeviceMesh], Callable[[], Any]]
"""Takes a mesh with all the axes, some of size 1, and returns a function that trains one step."""


def trace_rank(build: Build, sizes: Mapping[str, int], rank: int, *, skip_repeats: bool = True) -> Tables:
    """Trace one step of one rank.

    Args:
        build: the program, as for `compare_meshes`.
        sizes: of the mesh's axes, outermost first.
        rank: which one is played.
        skip_repeats: of a pipeline's microbatches and of repeated layers run a few, as `dsexplore.worlds.repeats` does;
            the trace has all of them. Where that cannot be, all are run, and a note of the trace says why.
    """
    if not skip_repeats:
        return _traced(build, sizes, rank, skip=False)
    try:
        return _traced(build, sizes, rank, skip=True)
    except CannotSkip as reason:
        tables = _traced(build, sizes, rank, skip=False)
        note = f"layers and microbatches were all run: {reason}"
        return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, note)))


def _traced(build: Build, sizes: Mapping[str, int], rank: int, *, skip: bool) -> Tables:
    with warnings.catch_warnings(action="ignore"), simulate(mesh=dict(sizes), rank=rank, fake=True) as mesh:
        step = build(mesh)
        with commtrace(costs=True) as trace, skipped() if skip else nullcontext() as recording:
            step()
    return trace.tables if recording is None else recording.whole(trace.tables)

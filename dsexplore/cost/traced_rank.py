"""The trace of one rank's step on a simulated mesh, on fake tensors, with what it computes and holds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from dsexplore.capture.recorder_in_use import in_use
from dsexplore.cost.fewer_layers import LeftOutLayers, UnlikeLayers, fewer_layers
from dsexplore.cost.fewer_microbatches import LeftOut, fewer_microbatches
from dsexplore.cost.microbatches import with_microbatches, with_warm_up
from dsexplore.cost.repeated_layers import with_layers
from dsexplore.trace.tables import Tables
from dsexplore.worlds.commtrace import commtrace
from dsexplore.worlds.simulate import simulate

Build = Callable[[DeviceMesh], Callable[[], Any]]
"""Takes a mesh with all the axes, some of size 1, and returns a function that trains one step."""


def trace_rank(
    build: Build, sizes: Mapping[str, int], rank: int, *, every_microbatch: bool = False, every_layer: bool = False
) -> Tables:
    """Trace one step of one rank.

    Of a 1F1B pipeline only some microbatches are run, of many alike layers only some; the trace has all of them, see
    `dsexplore.cost.microbatches` and `with_layers`. Where these turn out not to be alike, all are run.

    Args:
        build: the program, as for `compare_meshes`.
        sizes: of the mesh's axes, outermost first.
        rank: which one is played.
        every_microbatch: run all microbatches of a pipeline.
        every_layer: run all layers.
    """
    if not every_layer:
        tables = _with_few_layers(build, sizes, rank, every_microbatch)
        if tables is not None:
            return tables
    tables, microbatches, _ = _traced(build, sizes, rank, fewer=not every_microbatch)
    whole = _with_all_microbatches(tables, microbatches)
    return whole if whole is not None else _traced(build, sizes, rank, fewer=False)[0]


def _with_few_layers(build: Build, sizes: Mapping[str, int], rank: int, every_microbatch: bool) -> Tables | None:
    """The trace with all layers, of which few were run; None where they are not alike."""
    try:
        tables, microbatches, layers = _traced(build, sizes, rank, fewer=not every_microbatch, layers_too=True)
    except UnlikeLayers:
        return None
    whole = tables if layers.is_empty else with_layers(tables, layers)
    return _with_all_microbatches(whole, microbatches) if whole is not None else None


def _with_all_microbatches(tables: Tables, left_out: LeftOut) -> Tables | None:
    """The trace with all microbatches; None where they are not alike."""
    if not left_out.microbatches:
        return tables
    paired = with_microbatches(tables, left_out.microbatches - left_out.of_warm_up)
    whole = with_warm_up(paired, left_out.of_warm_up) if paired is not None else None
    if whole is None:
        return None
    schedule = {
        **json.loads(tables.info.schedule),
        "microbatches": left_out.microbatches,
    }  # whose order is the whole one
    return replace(whole, info=replace(whole.info, schedule=json.dumps(schedule)))


def _traced(
    build: Build, sizes: Mapping[str, int], rank: int, *, fewer: bool, layers_too: bool = False
) -> tuple[Tables, LeftOut, LeftOutLayers]:
    microbatches, layers = LeftOut(), LeftOutLayers()
    with warnings.catch_warnings(action="ignore"), simulate(mesh=dict(sizes), rank=rank, fake=True) as mesh:
        step = build(mesh)
        with ExitStack() as opened:
            trace = opened.enter_context(commtrace(costs=True))
            if fewer:
                microbatches = opened.enter_context(fewer_microbatches())
            kernels = in_use().recordings[-1].kernels
            if layers_too and kernels is not None:
                layers = opened.enter_context(fewer_layers(kernels))
            step()
    return trace.tables, microbatches, layers

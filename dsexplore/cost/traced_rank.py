"""The trace of one rank's step on a simulated mesh, on fake tensors, with what it computes and holds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from dsexplore.cost.microbatches import with_microbatches
from dsexplore.trace.tables import Tables
from dsexplore.worlds.simulate import simulate
from dsexplore.worlds.simulated.fewer_microbatches import LeftOut, fewer_microbatches
from dsexplore.worlds.tracing import commtrace

Build = Callable[[DeviceMesh], Callable[[], Any]]
"""Takes a mesh with all the axes, some of size 1, and returns a function that trains one step."""


def trace_rank(build: Build, sizes: Mapping[str, int], rank: int, *, every_microbatch: bool = False) -> Tables:
    """Trace one step of one rank.

    Of a 1F1B pipeline only some microbatches are run; the trace has all of them, see `with_microbatches`.

    Args:
        build: the program, as for `compare_meshes`.
        sizes: of the mesh's axes, outermost first.
        rank: which one is played.
        every_microbatch: run all microbatches of a pipeline.
    """
    tables, left_out = _traced(build, sizes, rank, fewer=not every_microbatch)
    if not left_out.microbatches:
        return tables
    whole = with_microbatches(tables, left_out.microbatches)
    if whole is None:
        return _traced(build, sizes, rank, fewer=False)[0]
    schedule = {
        **json.loads(tables.info.schedule),
        "microbatches": left_out.microbatches,
    }  # whose order is the whole one
    return replace(whole, info=replace(whole.info, schedule=json.dumps(schedule)))


def _traced(build: Build, sizes: Mapping[str, int], rank: int, *, fewer: bool) -> tuple[Tables, LeftOut]:
    left_out = LeftOut()
    with warnings.catch_warnings(action="ignore"), simulate(mesh=dict(sizes), rank=rank, fake=True) as mesh:
        step = build(mesh)
        with ExitStack() as opened:
            trace = opened.enter_context(commtrace(costs=True))
            if fewer:
                left_out = opened.enter_context(fewer_microbatches())
            step()
    return trace.tables, left_out

"""Cells on an engine of an ipyparallel cluster: the engine joins the process group as a rank, and traces each cell."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as td
from torch.distributed.device_mesh import init_device_mesh

from dsexplore._internal.worlds.real.cell_process import failure_of, run_cell
from dsexplore._internal.worlds.real.messages import Cell
from dsexplore._internal.worlds.world_settings import resolve

_namespace: dict[str, Any] = {"__name__": "__main__"}
"""Names of this engine's cells, for the lifetime of the engine."""


@dataclass(frozen=True)
class EngineCell:
    """A notebook's cell for an engine, with the settings that the engine needs before its first cell."""

    cell: Cell
    backend: str
    """Backend of the process group, if the engine has no group yet."""
    mesh: str
    """Axes of the mesh that cells find as ``mesh``; empty for none."""


def run_packed(data: bytes) -> bytes:
    """Run a pickled `EngineCell` on this engine, and return its pickled `CellReport`."""
    engine_cell: EngineCell = pickle.loads(data)
    try:
        _join(engine_cell)
    except BaseException as error:
        return pickle.dumps(failure_of(error, ""))
    report = run_cell(engine_cell.cell, _namespace)
    sys.stdout.flush()
    sys.stderr.flush()
    return pickle.dumps(report)


def _join(engine_cell: EngineCell) -> None:
    """Open the process group from the launcher's environment variables, and create the mesh, unless they exist."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend, mesh = engine_cell.backend, engine_cell.mesh
    if not td.is_initialized():
        if backend == "nccl":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        td.init_process_group(backend)
    _namespace.update(rank=rank, world_size=size)
    if mesh and _namespace.get("__mesh_axes__") != mesh:
        _, spec = resolve(world_size=size, mesh=mesh, rank=rank)
        device = "cuda" if backend == "nccl" else "cpu"
        _namespace["mesh"] = init_device_mesh(device, spec.shape, mesh_dim_names=spec.axes)
        _namespace["__mesh_axes__"] = mesh

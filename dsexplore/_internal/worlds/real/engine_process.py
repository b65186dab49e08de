"""An engine of an ipyparallel cluster as a rank: it joins the process group, and runs cells, traced."""

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
"""The names of this engine's cells; they live as long as the engine."""


@dataclass(frozen=True)
class EngineCell:
    """A notebook's cell as it is sent to an engine, with what a first cell needs to set the engine up."""

    cell: Cell
    backend: str
    """The backend of the process group, if the engine has none yet."""
    mesh: str
    """Axes of the mesh that cells find as ``mesh``; empty for none."""


def run_packed(data: bytes) -> bytes:
    """Run a pickled `EngineCell` here, and return its pickled `CellReport`."""
    given: EngineCell = pickle.loads(data)
    try:
        _join(given)
    except BaseException as error:
        return pickle.dumps(failure_of(error, ""))
    report = run_cell(given.cell, _namespace)
    sys.stdout.flush()
    sys.stderr.flush()
    return pickle.dumps(report)


def _join(given: EngineCell) -> None:
    """Open the process group by the launcher's environment variables, where the engine has none; make the mesh."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not td.is_initialized():
        if given.backend == "nccl":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        td.init_process_group(given.backend)
    _namespace.update(rank=rank, world_size=size)
    if given.mesh and _namespace.get("__mesh_axes__") != given.mesh:
        _, spec = resolve(size, given.mesh, rank)
        device = "cuda" if given.backend == "nccl" else "cpu"
        _namespace["mesh"] = init_device_mesh(device, spec.shape, mesh_dim_names=spec.axes)
        _namespace["__mesh_axes__"] = given.mesh

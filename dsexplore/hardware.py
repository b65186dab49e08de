"""What ``hardware=`` means: a GPU or a cluster of them by name, or ``"cpu"``, CPUs with gloo.

A simulated world needs the GPU of what is named, a prediction its cluster; each name gives both.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dsexplore.data_files import DataFiles

DEFAULT = "h100"
"""The hardware of simulated worlds and of predictions unless another is named."""
CPU = "cpu"
"""CPUs with gloo, without GPUs."""

CLUSTER_OF = {
    "a100": "dgx-a100",
    "b200": "b200",
    "h100": "dgx-h100",
    "h200": "hgx-h200",
    "l40s": "8xl40s",
    "mi300x": "mi300x",
    CPU: "gloo-local",
}
"""The cluster that a GPU means where a cluster is asked for."""
CLUSTERS = DataFiles(Path(__file__).parent / "cost" / "clusters", "cluster", "dgx-h100")
"""The files of clusters, whose ``gpu`` says what is meant where a GPU is asked for: their own, or the nearest known."""

GPU_OF_GENERATION = {
    "ada": "l40s",
    "ampere": "a100",
    "blackwell": "b200",
    "cdna3": "mi300x",
    "cpu": CPU,
    "hopper": "h100",
    "rtx-blackwell": "l40s",
    "volta": "a100",
}
"""The GPU that a user's file of a cluster means which names none, by its ``generation``."""


def gpu_named(hardware: str) -> str:
    """Return the name of the GPU that a name of hardware means, ``"cpu"`` for none; an unknown name is itself.

    Example:
        >>> gpu_named("dgx-h100"), gpu_named("mi300x"), gpu_named("gloo-local")
        ('h100', 'mi300x', 'cpu')
    """
    name = hardware.lower()
    return gpu_of_file(str(CLUSTERS.path(name))) if name in CLUSTERS.names() else name


def gpu_of_file(path: str) -> str:
    """Return the GPU of a file: the path itself, or of a cluster's file the GPU that it or its base names.

    Raises:
        UsageError: the file, or its base, cannot be read.
    """
    data = CLUSTERS.read(Path(path))
    named = data if "base" not in data else {**_base(str(data["base"])), **data}
    gpu = named.get("gpu", GPU_OF_GENERATION.get(str(named.get("generation"))))
    return path if gpu is None else str(gpu)


@cache
def _base(name: str) -> dict[str, Any]:
    """Return the content of a cluster that another is based on, with that of its own base."""
    data = CLUSTERS.read(CLUSTERS.path(name))
    return {**_base(str(data["base"])), **data} if "base" in data else data

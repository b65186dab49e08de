"""Names of hardware, the values of ``hardware=``: a GPU, a cluster, or ``"cpu"`` for CPUs with gloo.

A simulated world needs a GPU, and a prediction a cluster; each name stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsexplore._internal.data_files import DataFiles
from dsexplore._internal.errors import UsageError

DEFAULT = "h100"
"""Default hardware of simulated worlds and predictions."""
CPU = "cpu"
"""Name of CPUs with gloo, without GPUs."""

CLUSTER_OF = {
    "a100": "dgx-a100",
    "b200": "b200",
    "h100": "dgx-h100",
    "h200": "hgx-h200",
    "l40s": "8xl40s",
    "mi300x": "mi300x",
    CPU: "gloo-local",
}
"""For the name of a GPU, the cluster that it stands for."""
CLUSTERS = DataFiles(Path(__file__).parent / "cost" / "clusters", "cluster", "dgx-h100")
"""Files of clusters; the key ``gpu`` is the GPU that the name of a cluster stands for."""

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
"""For the key ``generation`` of a user's cluster file, the GPU that it stands for without the key ``gpu``."""


def gpu_named(hardware: str) -> str:
    """Return the GPU that a name of hardware stands for, ``"cpu"`` for none; an unknown name is returned unchanged.

    Example:
        >>> gpu_named("dgx-h100"), gpu_named("mi300x"), gpu_named("gloo-local")
        ('h100', 'mi300x', 'cpu')
    """
    name = hardware.lower()
    return gpu_of_file(str(CLUSTERS.path(name))) if name in CLUSTERS.names() else name


def gpu_of_file(path: str) -> str:
    """Return the GPU that a cluster file, or its base, names; for the file of a GPU, the path itself.

    Raises:
        UsageError: the file, or its base, cannot be read.
    """
    values: dict[str, Any] = {}
    for _, data in reversed(list(with_bases(Path(path)))):
        values |= data
    gpu = values.get("gpu", GPU_OF_GENERATION.get(str(values.get("generation"))))
    return path if gpu is None else str(gpu)


def with_bases(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the path and the content of a cluster file, then those of its base, and so on.

    Raises:
        UsageError: a file cannot be read, or is its own base.
    """
    seen = [path]
    data = CLUSTERS.read(path)
    yield path, data
    while "base" in data:
        name = data["base"]
        where = f"the cluster file {path} has base = {name!r}"
        if not isinstance(name, str):
            raise UsageError(f"{where}: write a text")
        try:
            path = CLUSTERS.path(name)
            data = CLUSTERS.read(path)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        if path in seen:
            raise UsageError(f"{where}: it is the base of itself")
        seen.append(path)
        yield path, data

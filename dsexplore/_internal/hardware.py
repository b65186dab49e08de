"""What ``hardware=`` means: a GPU or a cluster of them by name, or ``"cpu"``, CPUs with gloo.

A simulated world needs the GPU of what is named, a prediction its cluster; each name gives both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsexplore._internal.data_files import DataFiles
from dsexplore._internal.errors import UsageError

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
"""The files of clusters; ``gpu`` of a file is the GPU that its name means where a GPU is asked for."""

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
    named: dict[str, Any] = {}
    for _, data in reversed(list(with_bases(Path(path)))):
        named |= data
    gpu = named.get("gpu", GPU_OF_GENERATION.get(str(named.get("generation"))))
    return path if gpu is None else str(gpu)


def with_bases(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield path and content of a cluster's file, then of its base, then of that one's.

    Raises:
        UsageError: one cannot be read, or is the base of itself.
    """
    read = [path]
    yield path, (data := CLUSTERS.read(path))
    while "base" in data:
        name = data["base"]
        try:
            base = CLUSTERS.path(name) if isinstance(name, str) else None
            data = {} if base is None else CLUSTERS.read(base)
        except UsageError as error:
            raise UsageError(f"the cluster file {read[-1]} has base = {name!r}: {error}") from None
        if base is None or base in read:
            what = "write a text" if base is None else "it is the base of itself"
            raise UsageError(f"the cluster file {read[-1]} has base = {name!r}: {what}")
        read.append(base)
        yield base, data

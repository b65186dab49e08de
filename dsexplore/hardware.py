"""What ``hardware=`` means: a GPU or a cluster of them by name, or ``"cpu"``, CPUs with gloo.

A simulated world needs the GPU of what is named, a prediction its cluster; each name gives both.
"""

from __future__ import annotations

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
GPU_OF = {
    "8xl40s": "l40s",
    "8xrtx-pro-6000": "b200",
    "a100-pcie": "a100",
    "aws-p4de": "a100",
    "aws-p5": "h100",
    "aws-p5en": "h200",
    "aws-p6-b200": "b200",
    "azure-nd-a100-v4": "a100",
    "azure-nd-h100-v5": "h100",
    "azure-nd-h200-v5": "h200",
    "coreweave-h100": "h100",
    "dgx-a100": "a100",
    "dgx-h100": "h100",
    "dgx1-v100": "a100",
    "gb200-nvl72": "b200",
    "gcp-a3-high": "h100",
    "gcp-a3-mega": "h100",
    "gcp-a3-ultra": "h200",
    "gcp-a4": "b200",
    "gloo-local": CPU,
    "h100-pcie": "h100",
    "hgx-h200": "h200",
    "ibm-vela": "a100",
    "oci-a100": "a100",
    "oci-h100": "h100",
    "rtx4090": "l40s",
}
"""The GPU that a cluster means where a GPU is asked for: its own, or the nearest with known properties."""

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
"""The GPU that a user's file of a cluster means, by its ``generation``."""


def gpu_named(hardware: str) -> str:
    """Return the name of the GPU that a name of hardware means, ``"cpu"`` for none; an unknown name is itself.

    Example:
        >>> gpu_named("dgx-h100"), gpu_named("mi300x"), gpu_named("gloo-local")
        ('h100', 'mi300x', 'cpu')
    """
    return GPU_OF.get(hardware.lower(), hardware.lower())

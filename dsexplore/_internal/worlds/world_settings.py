"""The settings of a world: its size and mesh; for a simulated one also rank, hardware and kind of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from dsexplore._internal import hardware as known_hardware
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, MeshLike, parse_mesh
from dsexplore._internal.near_names import did_you_mean
from dsexplore._internal.units import format_count
from dsexplore._internal.worlds.cuda.gpu import known_gpus
from dsexplore._internal.worlds.simulated.launcher_environment import check_ranks_per_node

Target = Literal["cuda", "cpu"]
"""Traffic that a simulated world shows: that of GPUs with NCCL, or of CPUs with gloo."""


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """The simulated world that a user asks for; the fields are the arguments of `simulate`, unchecked until `resolved`.

    Example:
        >>> str(WorldSettings(mesh="dp=2,tp=4").resolved())
        '8 ranks (dp=2,tp=4)'
    """

    world_size: int | None = None
    mesh: MeshLike | None = None
    rank: int = 0
    fake: bool = False
    ranks_per_node: int | None = None
    hardware: str | None = None
    """The machine; None for an H100, for which the CPU stands in once the program uses ``cuda``."""
    values: Mapping[str, float] | None = None

    def __str__(self) -> str:
        ranks = format_count(self.world_size or 0, "rank")
        return f"{ranks} ({self.spec})" if self.spec.axes else ranks

    @property
    def spec(self) -> Mesh:
        """Mesh that the user named; without axes if none was given."""
        return parse_mesh(self.mesh)

    @property
    def size(self) -> int:
        """Number of ranks; only for resolved settings."""
        assert self.world_size is not None
        return self.world_size

    @property
    def node_size(self) -> int:
        """Ranks of a full node; only for resolved settings."""
        assert self.ranks_per_node is not None
        return self.ranks_per_node

    @property
    def gpu(self) -> str:
        """GPU of the hardware: a name, or the path of a file; ``"cpu"`` for none."""
        name = known_hardware.DEFAULT if self.hardware is None else self.hardware
        return known_hardware.gpu_of_file(name) if name.endswith(".toml") else known_hardware.gpu_named(name)

    @property
    def target(self) -> Target:
        """Traffic that the world shows."""
        return "cpu" if self.gpu == known_hardware.CPU else "cuda"

    @property
    def has_cuda(self) -> bool:
        """True if the CPU stands in for GPUs."""
        return self.hardware is not None and self.target == "cuda"

    @property
    def awaits_cuda(self) -> bool:
        """True if the CPU stands in for GPUs once the program uses ``cuda``."""
        return self.target == "cuda" and not self.has_cuda and not torch.cuda.is_available()

    @property
    def backend(self) -> str:
        """Backend of that traffic: ``"nccl"`` or ``"gloo"``."""
        return "nccl" if self.target == "cuda" else "gloo"

    def resolved(self) -> WorldSettings:
        """Return the settings with world size and ranks per node filled in.

        Raises:
            UsageError: the settings contradict each other.
        """
        size, _ = resolve(world_size=self.world_size, mesh=self.mesh, rank=self.rank)
        check_hardware(self.hardware)
        return replace(self, world_size=size, ranks_per_node=check_ranks_per_node(self.ranks_per_node, size))


def check_hardware(hardware: object) -> None:
    """Check that hardware is None, a known GPU or cluster, ``"cpu"``, or the path of a ``.toml`` file.

    Raises:
        UsageError: it is anything else.
    """
    if hardware is None:
        return
    names = [*known_gpus(), known_hardware.CPU]
    if isinstance(hardware, str) and (hardware.endswith(".toml") or known_hardware.gpu_named(hardware) in names):
        return
    suggestion = did_you_mean(hardware, [*names, *known_hardware.CLUSTERS.names()])
    raise UsageError(
        f"no hardware named {hardware!r} is known{suggestion}: name one of {', '.join(names)}, a cluster such as "
        "'dgx-h100', or the path of a .toml file of yours"
    )


def resolve(*, world_size: int | None, mesh: MeshLike | None, rank: int) -> tuple[int, Mesh]:
    """Return the number of ranks and the mesh of a world, of which users give one or both.

    Raises:
        UsageError: neither was given, they disagree, or the rank is not in the world.
    """
    spec = parse_mesh(mesh)
    if world_size is None:
        if not spec.axes:
            raise UsageError("a simulated world needs a size: give world_size=8, mesh='dp=2,tp=4', or both")
        world_size = spec.size
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise UsageError(f"world size {world_size!r} is not a number of ranks: give 1 or more")
    if spec.axes and spec.size != world_size:
        product = "×".join(map(str, spec.shape))
        raise UsageError(
            f"mesh {spec} has {product} = {spec.size} ranks, but the world size is {world_size}: "
            f"make the product of the axes {world_size}, or give world size {spec.size}"
        )
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank!r} is not in a world of {world_size} ranks: give one from 0 to {world_size - 1}")
    return world_size, spec

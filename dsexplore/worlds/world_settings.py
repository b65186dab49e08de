"""The settings of a world: its size and mesh and, of a simulated one, rank, hardware and kind of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from dsexplore.errors import UsageError
from dsexplore.mesh_text import MeshSpec, parse_mesh
from dsexplore.units import format_count
from dsexplore.worlds.simulated.launcher_environment import check_ranks_per_node

Target = Literal["cuda", "cpu"]
"""The hardware and backend whose traffic a simulated world shows: GPUs with NCCL, or CPUs with gloo."""
TARGETS: tuple[Target, ...] = get_args(Target)
BACKENDS: dict[str, str] = {"cuda": "nccl", "cpu": "gloo"}
"""The backend of each target."""


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """The simulated world that a user asks for; the fields are the arguments of `simulate`, unchecked until `resolved`.

    Example:
        >>> str(WorldSettings(mesh="dp=2,tp=4").resolved())
        '8 ranks (dp=2,tp=4)'
    """

    world_size: int | None = None
    mesh: str | Mapping[str, int] | None = None
    rank: int = 0
    fake: bool = False
    ranks_per_node: int | None = None
    device: str = "cpu"
    gpu: str = "h100"
    target: str | None = None
    """The target; None for ``"cuda"``."""
    values: Mapping[str, float] | None = None

    def __str__(self) -> str:
        ranks = format_count(self.world_size or 0, "rank")
        return f"{ranks} ({self.spec})" if self.spec.axes else ranks

    @property
    def spec(self) -> MeshSpec:
        """The mesh; without axes if none was given."""
        return parse_mesh(self.mesh)

    @property
    def size(self) -> int:
        """The number of ranks, of resolved settings."""
        assert self.world_size is not None
        return self.world_size

    @property
    def node_size(self) -> int:
        """The ranks of a full node, of resolved settings."""
        assert self.ranks_per_node is not None
        return self.ranks_per_node

    @property
    def hardware(self) -> Target:
        """The target."""
        return check_target(self.target)

    @property
    def backend(self) -> str:
        """The backend of the target."""
        return BACKENDS[self.hardware]

    def resolved(self) -> WorldSettings:
        """Return the settings with what was left out.

        Raises:
            UsageError: they do not fit together.
        """
        size, _ = resolve(self.world_size, self.mesh, self.rank)
        if self.device not in ("cpu", "cuda"):
            raise UsageError(
                f"device {self.device!r}: simulated ranks have 'cpu', or 'cuda', for which the CPU stands in"
            )
        return replace(
            self,
            world_size=size,
            ranks_per_node=check_ranks_per_node(self.ranks_per_node, size),
            target=check_target(self.target),
        )


def check_target(target: Any) -> Target:
    """Return the target that was given, ``"cuda"`` for None.

    Raises:
        UsageError: it is none of `TARGETS`.
    """
    if target is None:
        return "cuda"
    if target not in TARGETS:
        raise UsageError(
            f"target {target!r} is not known: give 'cuda' for the traffic of GPUs with NCCL, or 'cpu' for that of gloo"
        )
    return target  # type: ignore[no-any-return] # checked above


def resolve(world_size: int | None, mesh: str | Mapping[str, int] | None, rank: int) -> tuple[int, MeshSpec]:
    """Return the number of ranks and the mesh of a world, from what the user gave of the two.

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

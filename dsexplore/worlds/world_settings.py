"""The size and mesh of a world, from what its user gave of the two; and all that a simulated world is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsexplore.errors import UsageError
from dsexplore.mesh_text import MeshSpec, parse_mesh


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """The simulated world that a user asks for, unchecked; the fields are the arguments of `simulate`."""

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


def resolve(world_size: int | None, mesh: str | Mapping[str, int] | None, rank: int) -> tuple[int, MeshSpec]:
    """The number of ranks and the mesh of a world, from what the user gave of the two.

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

"""The axes along which the ranks of a world are laid out, from the process groups that one rank is in.

A group such as [3, 11, 19, 27] has one rank in eight: it is an axis of 4 ranks with stride 8. A group of several axes
is taken apart into them. The strides and ends of all groups are borders, which cut the world into axes; the coordinate
of a rank on an axis is ``rank // stride % size``.

Worked example: groups of strides and sizes (1, 8), (8, 128) and (1024, 16) in a world of 16,384 have the borders 1, 8,
1024 and 16,384: three axes, of 8, 128 and 16 ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsexplore._internal.mesh import Mesh

Progression = tuple[int, int]
"""A stride, and how many ranks stand at that distance from each other."""


@dataclass(frozen=True)
class ObservedGroup:
    """A process group that a played rank is in."""

    name: str
    """The group's axis; empty where it has none."""
    progressions: tuple[Progression, ...]
    """Smallest stride first."""
    has_messages: bool = False
    """True if the rank sends to one other rank in it, or receives from one."""


@dataclass(frozen=True)
class Axis:
    """One axis of a world."""

    name: str
    stride: int
    size: int
    is_pipeline: bool = False
    """True if ranks send to single other ranks along it, as pipeline stages do."""

    def coordinate(self, rank: int) -> int:
        """Return the coordinate of a rank on the axis."""
        return rank // self.stride % self.size


def progressions(ranks: Sequence[int]) -> tuple[Progression, ...] | None:
    """Return the strides and sizes that make up a group; None if it is irregular or has one rank.

    Example: [0, 1, 8, 9] is two consecutive ranks, twice, 8 apart: ((1, 2), (8, 2)).
    """
    remaining = sorted(ranks)
    result: list[Progression] = []
    while len(remaining) > 1:
        stride = remaining[1] - remaining[0]
        size = next((i for i in range(1, len(remaining)) if remaining[i] != remaining[0] + i * stride), len(remaining))
        if len(remaining) % size:
            return None
        firsts = remaining[::size]
        if any(remaining[i * size + j] != first + j * stride for i, first in enumerate(firsts) for j in range(size)):
            return None
        result.append((stride, size))
        remaining = firsts
    return tuple(result) or None


def axes_of(groups: Iterable[ObservedGroup], spec: Mesh, world_size: int) -> list[Axis]:
    """Return the axes of a world, outermost first, without axes of one rank.

    Args:
        groups: those of one rank.
        spec: the mesh that the user named, if any.
        world_size: number of ranks.
    """
    groups = [*groups, *_groups_of_mesh(spec)]
    borders = {1, world_size}
    for group in groups:
        for stride, size in group.progressions:
            wanted = {stride, stride * size}
            if all(_fits(ranks, borders, world_size) for ranks in wanted):
                borders |= wanted
    ordered = sorted(borders)
    names = {group.progressions: group.name for group in reversed(groups) if group.name}
    messages = {
        border
        for group in groups
        if group.has_messages
        for stride, size in group.progressions
        for border in ordered
        if stride <= border < stride * size
    }
    axes = [
        Axis(names.get(((low, high // low),), f"ranks {low} apart"), low, high // low, low in messages)
        for low, high in pairwise(ordered)
        if high > low
    ]
    return axes[::-1]


def _groups_of_mesh(spec: Mesh) -> list[ObservedGroup]:
    groups, stride = [], 1
    for name, size in zip(reversed(spec.axes), reversed(spec.shape), strict=True):
        groups.append(ObservedGroup(name, ((stride, size),)))
        stride *= size
    return groups


def _fits(border: int, borders: Iterable[int], world_size: int) -> bool:
    """Return True if a border divides all larger ones and is divided by all smaller ones."""
    return border <= world_size and all(border % other == 0 or other % border == 0 for other in borders)

"""Infer the axes along which the ranks of a world are laid out from the process groups that one rank is in.

The group [3, 11, 19, 27] has every eighth rank: it lies along an axis of 4 ranks with stride 8. A group may also span
several axes. Each axis has a stride, and ends at ``stride * size``. These numbers of all groups are the borders between
axes; the coordinate of a rank on an axis is ``rank // stride % size``.

Worked example: groups of strides and sizes (1, 8), (8, 128) and (1024, 16) in a world of 16,384 have the borders 1, 8,
1024 and 16,384: three axes, of 8, 128 and 16 ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch.distributed as dist

from dsexplore._internal.mesh import Mesh
from dsexplore._internal.torch_internals.process_groups import registered_groups
from dsexplore._internal.torch_internals.processes import NOT_PRELOADED
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.user_code import is_user_file

_PRELOADED = ("torch.", "sympy.", "mpmath.", "networkx.", "dsexplore._internal.worlds.")
"""Beginnings of names of modules that are imported once for all ranks."""

Progression = tuple[int, int]
"""A stride and a size: so many ranks, each that distance from the next."""


@dataclass(frozen=True)
class ObservedGroup:
    """A process group that the observed rank is in."""

    name: str
    """Name of the group's axis; empty if it has none."""
    progressions: tuple[Progression, ...]
    """Smallest stride first."""
    has_messages: bool = False
    """True if the rank sends to one other rank in it, or receives from one."""


@dataclass(frozen=True)
class ObservedWorld:
    """Observations of one rank about its world, as plain data.

    Attributes:
        groups: the regular groups of two or more ranks that the rank is in.
        files: paths of the program's source files, the script first.
        modules: names of modules that torch and this package imported for this program.
    """

    groups: tuple[ObservedGroup, ...] = ()
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


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

    Worked example: in [0, 1, 8, 9], two ranks follow each other, and such pairs are 8 apart: ((1, 2), (8, 2)).
    """
    remaining = sorted(ranks)
    result: list[Progression] = []
    while len(remaining) > 1:
        first, stride = remaining[0], remaining[1] - remaining[0]
        size = 1
        while size < len(remaining) and remaining[size] == first + size * stride:
            size += 1
        firsts = remaining[::size]
        if remaining != [start + index * stride for start in firsts for index in range(size)]:
            return None
        result.append((stride, size))
        remaining = firsts
    return tuple(result) or None


def axes_of(groups: Iterable[ObservedGroup], spec: Mesh, world_size: int) -> list[Axis]:
    """Return the axes of a world, outermost first, without axes of one rank.

    Args:
        groups: the groups of one rank.
        spec: the mesh that the user named; without axes if none was.
        world_size: number of ranks.
    """
    groups = [*groups, *_groups_of_mesh(spec)]
    borders = {1, world_size}
    for group in groups:
        for stride, size in group.progressions:
            ends = {stride, stride * size}
            if all(_fits(end, borders, world_size) for end in ends):
                borders |= ends
    names = {group.progressions: group.name for group in reversed(groups) if group.name}
    pipelines = [progression for group in groups if group.has_messages for progression in group.progressions]
    axes = []
    for stride, end in pairwise(sorted(borders)):
        size = end // stride
        is_pipeline = any(low <= stride < low * length for low, length in pipelines)
        name = names.get(((stride, size),), f"ranks {stride} apart")
        axes.append(Axis(name=name, stride=stride, size=size, is_pipeline=is_pipeline))
    return axes[::-1]


def _groups_of_mesh(spec: Mesh) -> list[ObservedGroup]:
    """Return a group for each axis of a mesh, innermost first."""
    groups, stride = [], 1
    for name, size in zip(reversed(spec.axes), reversed(spec.shape), strict=True):
        groups.append(ObservedGroup(name, ((stride, size),)))
        stride *= size
    return groups


def _fits(border: int, borders: Iterable[int], world_size: int) -> bool:
    """Return True if a border divides all larger ones and is divided by all smaller ones."""
    return border <= world_size and all(border % other == 0 or other % border == 0 for other in borders)


def observe_world(trace: Trace, main: object) -> ObservedWorld:
    """Describe the world that is open, after a program has run in it.

    Args:
        trace: the trace of the program.
        main: the program's ``__main__`` module.
    """
    script = getattr(main, "__file__", None)
    files = [str(script)] if script else []
    files += [file for file in _user_files() if file not in files]
    modules = sorted(name for name in sys.modules if name.startswith(_PRELOADED) and not name.startswith(NOT_PRELOADED))
    return ObservedWorld(groups=tuple(_groups(trace)), files=tuple(files), modules=tuple(modules))


def _groups(trace: Trace) -> Iterator[ObservedGroup]:
    """Yield the regular groups of two or more ranks that this rank is in."""
    tables = trace.tables
    axes = dict(tables.groups.select("group", "axis").iter_rows())
    messages = set(trace.where(op=["send", "recv"]).events["group"])
    for group, ranks in list(registered_groups().items()):
        progression = progressions(list(ranks)) if dist.get_rank() in ranks else None
        if progression is not None:
            name = axes.get(group.group_name, "")
            if not name and group.group_desc.startswith("mesh_"):
                name = group.group_desc.removeprefix("mesh_").replace("default", "")
            yield ObservedGroup(name, progression, group.group_name in messages)


def _user_files() -> Iterator[str]:
    """Yield the source files of imported modules that belong to the program."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file):
            yield file

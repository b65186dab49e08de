"""Local shapes of sharded parameters on all ranks, computed from those of one rank.

The local shape of a sharded parameter follows from its global shape, its placements and the coordinates of the rank. So
uneven and empty shards are found without running the ranks that hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.sharding.chunks import Cut, part_size
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.scripts.rank_axes import Progression

_SHARD = re.compile(r"_?S\((\d+)(?:, (\d+))?\)")
"""``S(0)`` for Shard(0), ``_S(0, 2)`` for a strided shard."""
_SEPARATOR = re.compile(r", (?![^(]*\))")
"""The comma between two placements."""

CutAlong = tuple[Progression, Cut]
"""A cut of a dim, after the stride and size of the axis that it is sharded along."""


@dataclass(frozen=True)
class ShardedShape:
    """The sharding of parameters of one global shape.

    Attributes:
        dims: for each dim, its global length and its cuts, in the order of the mesh axes.
    """

    dims: tuple[tuple[int, tuple[CutAlong, ...]], ...]

    def local(self, ranks: Any) -> list[Any]:
        """Return the local length of each dim on a rank; an array of ranks gives arrays of lengths."""
        lengths = []
        for length, cuts in self.dims:
            for (stride, size), cut in cuts:
                length = part_size(length, cut, ranks // stride % size)
            lengths.append(length)
        return lengths


def sharded_shapes(
    tables: Tables, rank: int, axes: Mapping[str, Progression]
) -> tuple[frozenset[ShardedShape], set[str]]:
    """Return the distinct shardings of a rank's parameters, and the names of parameters with such a sharding.

    Args:
        tables: the trace of the rank.
        rank: the rank.
        axes: stride and size of each axis, by its name in the meshes of parameters.
    """
    shapes: set[ShardedShape] = set()
    explained: set[str] = set()
    read = cache(lambda shape, placements, mesh: _shape(shape, placements, mesh, axes))
    columns = ("name", "global_shape", "local_shape", "placements", "mesh")
    for name, full, local, placements, mesh in tables.parameters.select(columns).iter_rows():
        shape = read(tuple(full), placements, mesh) if placements else None
        if shape is not None and [int(length) for length in shape.local(rank)] == list(local):
            shapes.add(shape)
            explained.add(name)
    return frozenset(shapes), explained


def _shape(shape: tuple[int, ...], placements: str, mesh: str, axes: Mapping[str, Progression]) -> ShardedShape | None:
    """Parse the sharding of a parameter; None for an unknown axis, or a placement other than Shard and Replicate."""
    try:
        names = parse_mesh(mesh).axes
    except UsageError:
        return None
    cuts: list[list[CutAlong]] = [[] for _ in shape]
    for name, text in zip(names, _SEPARATOR.split(placements), strict=False):
        match = _SHARD.fullmatch(text)
        if match is None:
            if text != "R":
                return None
            continue
        if name not in axes or int(match[1]) >= len(shape):
            return None
        cuts[int(match[1])].append((axes[name], Cut(axes[name][1], int(match[2] or 1))))
    return ShardedShape(tuple(zip(shape, map(tuple, cuts), strict=True)))


def ranks_by_shapes(shapes: Iterable[ShardedShape], ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a number per rank, equal for ranks whose local shapes are all equal."""
    numbers = np.zeros(len(ranks), dtype=np.int64)
    for shape in shapes:
        for lengths in shape.local(ranks):
            if isinstance(lengths, np.ndarray) and len(set(lengths.tolist())) > 1:
                numbers = np.unique(np.stack([numbers, lengths]), axis=1, return_inverse=True)[1].reshape(-1)
    return numbers

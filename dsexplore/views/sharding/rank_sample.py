"""`RankSample`: the ranks that are drawn one by one: all, or of very many some that differ in what they hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dsexplore.sharding.layout import Sharding
from dsexplore.sharding.mesh import Mesh, Numbers
from dsexplore.sharding.rank_groups import blocks_of
from dsexplore.sharding.tensor import Placed
from dsexplore.views.sharding.shard_blocks import Place

MOST, WHOLE = 64, 96
"""Ranks in a sample, and ranks of a mesh that is not thinned out."""


class RankSample:
    """Some ranks of a mesh: the product of some coordinates of each axis.

    Attributes:
        mesh: the ranks.
        chosen: per mesh axis, the coordinates, ascending.
        numbers: the ranks, in mesh order.
    """

    def __init__(self, mesh: Mesh, tensors: Iterable[Placed], most: int = MOST) -> None:
        self.mesh = mesh
        self.chosen = _chosen(mesh, tensors, most)
        grid = np.meshgrid(*self.chosen, indexing="ij") if self.chosen else []
        self._grid = [np.asarray(axis, dtype=np.int64).ravel() for axis in grid]
        self.numbers = (
            np.array(
                [mesh.rank(at) for at in zip(*(axis.tolist() for axis in self._grid), strict=True)], dtype=np.int64
            )
            if self._grid
            else np.zeros(1, dtype=np.int64)
        )
        self._own: dict[tuple[object, ...], list[Numbers]] = {}

    def __len__(self) -> int:
        """The number of ranks in the sample."""
        return len(self.numbers)

    @property
    def is_whole(self) -> bool:
        """Whether every rank is in it."""
        return len(self) == self.mesh.size

    def coordinates(self, index: int) -> tuple[int, ...]:
        """The mesh coordinates of the rank at that place in `numbers`."""
        return tuple(int(axis[index]) for axis in self._grid)

    def holding(self, tensor: Placed, places: Sequence[tuple[int, Place]]) -> list[int]:
        """The places in `numbers` of the ranks with these coordinates on the tensor's own axes."""
        own = self._coordinates_of(tensor)
        held = np.ones(len(self), dtype=bool)
        for number, (low, high) in places:
            held &= (own[number] >= low) & (own[number] < high)
        return [int(index) for index in np.flatnonzero(held)]

    def empty(self, tensor: Placed) -> list[int]:
        """The places in `numbers` of the ranks that hold nothing of a tensor."""
        numel = np.ones(len(self), dtype=np.int64)
        for dim in range(len(tensor.shape)):
            numel = numel * tensor.dim_size(dim, self._grid)
        return [int(index) for index in np.flatnonzero(numel == 0)]

    def _coordinates_of(self, tensor: Placed) -> list[Numbers]:
        if tensor.axes not in self._own:
            zeros = np.zeros(len(self), dtype=np.int64)
            self._own[tensor.axes] = [axis(self._grid) + zeros for axis in tensor.axes]
        return self._own[tensor.axes]


def sample_of(shown: Sharding, most: int = MOST) -> RankSample:
    """The ranks of a sharding that are drawn one by one: at most ``most``, unless all are few."""
    return RankSample(shown.mesh, shown.tensors, most)


def _chosen(mesh: Mesh, tensors: Iterable[Placed], most: int) -> list[Numbers]:
    """The coordinates per axis: the longest axes are thinned out until the product is at most ``most``."""
    if mesh.size <= WHOLE:
        return [np.arange(size) for size in mesh.shape]
    lengths = list(mesh.shape)
    while math.prod(lengths) > most:
        longest = max(range(len(lengths)), key=lambda axis: lengths[axis])
        others = math.prod(lengths) // lengths[longest]
        shorter = sorted(lengths)[-2] if len(lengths) > 1 else 1
        lengths[longest] = max(min(most // others, lengths[longest] - 1), min(shorter, lengths[longest] - 1), 1)
    starts = blocks_of(mesh, tensors).starts
    return [_thinned(size, length, at.tolist()) for size, length, at in zip(mesh.shape, lengths, starts, strict=True)]


def _thinned(size: int, length: int, starts: Sequence[int]) -> Numbers:
    """A few coordinates of an axis: the first and the last, those where sizes change, and others evenly between."""
    if length >= size:
        return np.arange(size)
    around = [at for start in starts for at in (start, start - 1) if at >= 0]
    wanted = list(dict.fromkeys([0, size - 1, *around, 1, 2, 3]))[:length]
    between = [at for at in np.linspace(0, size - 1, 2 * length).astype(int).tolist() if at not in wanted]
    missing = min(length - len(wanted), len(between))
    wanted += [between[number * len(between) // missing] for number in range(missing)]
    return np.array(sorted(set(wanted)), dtype=np.int64)

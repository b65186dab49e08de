"""Groups of ranks that hold equal amounts, found without enumerating the ranks.

A mesh is split into blocks of coordinates on which each tensor has one local shape. Sizes change only at a few
coordinates of an axis (`chunks.borders`), so blocks are few however many ranks there are, and everything is computed
once per block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dsexplore._internal.mesh import Mesh, Numbers
from dsexplore._internal.sharding.chunks import nested_borders
from dsexplore._internal.sharding.joint_mesh import Reading
from dsexplore._internal.sharding.tensor import PlacedTensor

_MOST_LISTED = 4096
"""Number of ranks up to which they are written as ranges; beyond, coordinates are written."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A mesh split into blocks of coordinates; a block is a product of one interval per axis."""

    mesh: Mesh
    starts: tuple[Numbers, ...]
    """Per axis, the first coordinate of each interval."""
    lengths: tuple[Numbers, ...]
    """Per axis, the number of coordinates of each interval."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of intervals per axis."""
        return tuple(len(starts) for starts in self.starts)

    @property
    def counts(self) -> Numbers:
        """Number of ranks in each block; an array with one dim per axis."""
        counts = np.ones((1,) * len(self.shape), dtype=np.int64)
        for lengths in self._across(self.lengths):
            counts = counts * lengths
        return counts

    @property
    def coordinates(self) -> tuple[Numbers, ...]:
        """Per axis, the first coordinates of the blocks; arrays that broadcast to `shape`."""
        return self._across(self.starts)

    def _across(self, per_axis: Sequence[Numbers]) -> tuple[Numbers, ...]:
        last = len(per_axis) - 1
        return tuple(values.reshape((-1,) + (1,) * (last - axis)) for axis, values in enumerate(per_axis))

    def local_numel(self, tensor: PlacedTensor) -> Numbers:
        """Return the number of elements of a tensor that a rank of each block holds; an array of `shape`."""
        numel = np.ones((1,) * len(self.shape), dtype=np.int64)
        for dim in range(len(tensor.shape)):
            numel = numel * tensor.dim_size(dim, self.coordinates)
        return np.broadcast_to(numel, self.shape)

    def local_shapes(self, tensor: PlacedTensor) -> Numbers:
        """Return the local shape of a tensor on the ranks of each block; the last dim runs over the tensor's dims."""
        sizes = [
            np.broadcast_to(tensor.dim_size(dim, self.coordinates), self.shape) for dim in range(len(tensor.shape))
        ]
        return np.stack(sizes, axis=-1) if sizes else np.zeros((*self.shape, 0), dtype=np.int64)


Corner = tuple[tuple[int, ...], tuple[int, ...]]
"""A block: per axis, its first coordinate and its length."""


@dataclass(frozen=True, eq=False)
class RankGroup:
    """Ranks with equal values, such as numbers of elements or bytes."""

    value: tuple[int, ...]
    """The values that the ranks share."""
    count: int
    first: tuple[int, ...]
    """Coordinates of the group's first rank in mesh order."""
    ranks: str
    """``"0–6, 8"``; for very many ranks their coordinates, ``"dp 0–2046"``."""
    blocks: tuple[Corner, ...]

    def numbers(self, mesh: Mesh) -> list[int]:
        """Return all ranks of the group, ascending."""
        return sorted(int(rank) for corner in self.blocks for rank in mesh.block(*corner))


def blocks_of(mesh: Mesh, tensors: Iterable[PlacedTensor]) -> Blocks:
    """Return the fewest blocks of a mesh such that within a block, every tensor has one local shape."""
    borders: list[set[int]] = [{0} for _ in mesh.axes]
    for placements in {(tensor.shape, tensor.placements, tensor.axes): tensor for tensor in tensors}.values():
        for dim in placements.cut_dims():
            cuts = placements.cuts(dim)
            levels = nested_borders(placements.shape[dim], [cut for cut, _ in cuts])
            for (_, axis), here in zip(cuts, levels, strict=True):
                _mark(borders, axis, here, mesh)
    starts = tuple(np.array(sorted(here), dtype=np.int64) for here in borders)
    ends = (np.append(here[1:], size) for here, size in zip(starts, mesh.shape, strict=True))
    return Blocks(mesh, starts, tuple(end - here for here, end in zip(starts, ends, strict=True)))


def _mark(borders: list[set[int]], axis: Reading, here: set[int], mesh: Mesh) -> None:
    for number, divisor, modulus, weight in axis.terms:
        size = mesh.shape[number]
        if here and divisor != 1:
            borders[number].update(range(size))
        for border in here:
            digit = border // weight % modulus
            around = (digit, digit + 1) if len(axis.terms) > 1 else (digit,)
            borders[number].update(at for at in around if at < size)


def group_blocks(blocks: Blocks, values: Numbers) -> list[RankGroup]:
    """Return the groups of ranks with equal values, the largest values first.

    Args:
        blocks: the mesh, split into blocks.
        values: one row of numbers per block; an array with the shape of the blocks and one more dim.
    """
    rows = values.reshape(math.prod(blocks.shape), values.shape[-1])
    if not rows.shape[1]:
        distinct, first, inverse = rows[:1], np.zeros(1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    else:
        distinct, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    sizes = blocks.counts.ravel()
    result = []
    for number in range(len(distinct) - 1, -1, -1):
        members = np.flatnonzero(inverse.ravel() == number)
        corners = tuple(_corner(blocks, int(block)) for block in members)
        count = int(sizes[members].sum())
        start, _ = _corner(blocks, int(first[number]))
        result.append(
            RankGroup(tuple(map(int, distinct[number])), count, start, _ranks_text(blocks, corners, count), corners)
        )
    return result


def _corner(blocks: Blocks, block: int) -> Corner:
    place = np.unravel_index(block, blocks.shape) if blocks.shape else ()
    starts = tuple(int(values[at]) for values, at in zip(blocks.starts, place, strict=True))
    return starts, tuple(int(values[at]) for values, at in zip(blocks.lengths, place, strict=True))


def _ranks_text(blocks: Blocks, corners: Sequence[Corner], count: int) -> str:
    if count == blocks.mesh.size and count > 1:
        return "all"
    if count <= _MOST_LISTED:
        return numbers_text(np.concatenate([blocks.mesh.block(*corner) for corner in corners]))
    return "; ".join(_block_text(blocks.mesh, *corner) for corner in corners[:3]) + ("; …" if len(corners) > 3 else "")


def _block_text(mesh: Mesh, starts: Sequence[int], lengths: Sequence[int]) -> str:
    parts = [
        f"{axis} {start}" if length == 1 else f"{axis} {start}–{start + length - 1}"
        for axis, size, start, length in zip(mesh.axes, mesh.shape, starts, lengths, strict=True)
        if length < size
    ]
    return ", ".join(parts)


def numbers_text(numbers: Numbers, most: int = 4) -> str:
    """Return numbers as text: ``[0, 1, 2, 6]`` → ``"0–2, 6"``; of many runs the first `most`."""
    ordered = np.unique(numbers)
    stretches = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    texts = [f"{part[0]}–{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in stretches[:most]]
    return ", ".join(texts) + (", …" if len(stretches) > most else "")

"""Group ranks that hold equal amounts, without enumerating the ranks.

A mesh is split into blocks of coordinates in which each tensor has one local shape. Sizes change only at a few
coordinates of an axis (`chunks.borders`), so there are few blocks for any number of ranks, and everything is computed
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
from dsexplore._internal.units import format_ranges

_MOST_LISTED = 4096
"""Number of ranks up to which a group is written as ranges of ranks; a larger one is written as coordinates."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A mesh split into blocks of coordinates; a block is a product of one interval per axis."""

    mesh: Mesh
    starts: tuple[Numbers, ...]
    """First coordinate of each interval, for each axis."""
    lengths: tuple[Numbers, ...]
    """Number of coordinates of each interval, for each axis."""

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
        """First coordinates of the blocks, for each axis; arrays that broadcast to `shape`."""
        return self._across(self.starts)

    def _across(self, per_axis: Sequence[Numbers]) -> tuple[Numbers, ...]:
        """Return the values of each axis as an array that broadcasts to `shape`."""
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
"""A block: its first coordinate on each axis, and its length on each axis."""


@dataclass(frozen=True, eq=False)
class RankGroup:
    """Ranks with equal values, such as numbers of elements or bytes."""

    value: tuple[int, ...]
    """Values that the ranks share."""
    count: int
    """Number of ranks."""
    first: tuple[int, ...]
    """Coordinates of the group's first rank in mesh order."""
    ranks: str
    """Ranks as text, ``"0–6, 8"``; for very many ranks their coordinates, ``"dp 0–2046"``."""
    blocks: tuple[Corner, ...]
    """Blocks that make up the group."""

    def numbers(self, mesh: Mesh) -> list[int]:
        """Return all ranks of the group, ascending."""
        return sorted(int(rank) for corner in self.blocks for rank in mesh.block(*corner))


def blocks_of(mesh: Mesh, tensors: Iterable[PlacedTensor]) -> Blocks:
    """Return the fewest blocks of a mesh in each of which every tensor has one local shape."""
    borders: list[set[int]] = [{0} for _ in mesh.axes]
    distinct = {(tensor.shape, tensor.placements, tensor.axes): tensor for tensor in tensors}
    for tensor in distinct.values():
        for dim in tensor.cut_dims():
            cuts = tensor.cuts(dim)
            borders_of_cuts = nested_borders(tensor.shape[dim], [cut for cut, _ in cuts])
            for (_, reading), borders_of_axis in zip(cuts, borders_of_cuts, strict=True):
                _add_borders(borders, reading, borders_of_axis, mesh)
    starts = tuple(np.array(sorted(of_axis), dtype=np.int64) for of_axis in borders)
    lengths = tuple(np.diff(np.append(start, size)) for start, size in zip(starts, mesh.shape, strict=True))
    return Blocks(mesh, starts, lengths)


def _add_borders(borders: list[set[int]], reading: Reading, borders_of_axis: set[int], mesh: Mesh) -> None:
    """Add the borders on one axis of a tensor's mesh to those on the axes of the shown mesh."""
    for term in reading.terms:
        size = mesh.shape[term.axis]
        if borders_of_axis and term.divisor != 1:
            borders[term.axis].update(range(size))
        for border in borders_of_axis:
            digit = border // term.weight % term.modulus
            around = (digit, digit + 1) if len(reading.terms) > 1 else (digit,)
            borders[term.axis].update(at for at in around if at < size)


def group_blocks(blocks: Blocks, values: Numbers) -> list[RankGroup]:
    """Return the groups of ranks with equal values, the largest values first.

    Args:
        blocks: blocks of the mesh.
        values: row of numbers for each block; an array with the shape of the blocks and one more dim.
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
            RankGroup(
                value=tuple(map(int, distinct[number])),
                count=count,
                first=start,
                ranks=_ranks_text(blocks, corners, count),
                blocks=corners,
            )
        )
    return result


def _corner(blocks: Blocks, block: int) -> Corner:
    """Return first coordinates and lengths of the block with a number."""
    place = np.unravel_index(block, blocks.shape) if blocks.shape else ()
    starts = tuple(int(values[at]) for values, at in zip(blocks.starts, place, strict=True))
    return starts, tuple(int(values[at]) for values, at in zip(blocks.lengths, place, strict=True))


def _ranks_text(blocks: Blocks, corners: Sequence[Corner], count: int) -> str:
    """Return the ranks of some blocks as text: ``all``, ``0–6, 8``, or coordinates."""
    if count == blocks.mesh.size and count > 1:
        return "all"
    if count <= _MOST_LISTED:
        return format_ranges(np.concatenate([blocks.mesh.block(*corner) for corner in corners]).tolist(), most=4)
    return "; ".join(_block_text(blocks.mesh, *corner) for corner in corners[:3]) + ("; …" if len(corners) > 3 else "")


def _block_text(mesh: Mesh, starts: Sequence[int], lengths: Sequence[int]) -> str:
    """Return the coordinates of a block as text: ``dp 0–2046, tp 3``."""
    parts = [
        f"{axis} {start}" if length == 1 else f"{axis} {start}–{start + length - 1}"
        for axis, size, start, length in zip(mesh.axes, mesh.shape, starts, lengths, strict=True)
        if length < size
    ]
    return ", ".join(parts)

"""Find the elements of a whole tensor that each rank's part may have: layouts that fit the shapes and the mesh.

A DTensor has placements. A plain tensor has none, so each layout that fits is tried, and the one whose values agree
best is used. Along a mesh axis, ranks hold the same, or the axis shards a dim in one of these ways:

* contiguous chunks;
* pairs of a head and a tail chunk, as context parallelism balances a causal mask;
* in dim 0, every n-th row, as a ``DistributedSampler`` divides a batch.

The calls of a module for several microbatches shard a dim as ranks do.

Worked example: the reference's output is 8 × 16, and the outputs of four ranks of ``dp=2,tp=2`` are 4 × 16. Then dim 0
is sharded over dp (rows 0 to 3 on ranks 0 and 1) or over tp (rows 0 to 3 on ranks 0 and 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations, product

import torch
from torch import Tensor

MOST_LAYOUTS = 64
"""Largest number of layouts that are tried for one tensor."""


@dataclass(frozen=True)
class Holder:
    """One call of a module on one rank."""

    rank: int
    call: int
    coordinates: Mapping[str, int] = field(compare=False)
    """{axis: coordinate of the rank on the mesh}, and under ``call`` the number among the calls of microbatches."""


Indices = tuple[Tensor, ...]
"""Indices of the whole that a part holds, for each dim."""
Layout = dict[Holder, Indices]


def possible_layouts(
    shapes: Mapping[Holder, Sequence[int]], whole: Sequence[int], axes: Sequence[str]
) -> Iterator[Layout]:
    """Yield the layouts that fit the shapes, at most `MOST_LAYOUTS`.

    Args:
        shapes: {holder: shape of its part}.
        whole: shape of the whole tensor.
        axes: axes that may shard a dim, outermost first.
    """
    if any(len(shape) != len(whole) for shape in shapes.values()):
        return
    sharded = [dim for dim in range(len(whole)) if any(shape[dim] != whole[dim] for shape in shapes.values())]
    yield from islice(_layouts(shapes, whole, sharded, axes), MOST_LAYOUTS)


def _layouts(
    shapes: Mapping[Holder, Sequence[int]], whole: Sequence[int], sharded: Sequence[int], axes: Sequence[str]
) -> Iterator[Layout]:
    """Yield all layouts in which the dims `sharded` are."""
    for axes_of_dim in _assignments(sharded, axes):
        ways = [list(_indices(shapes, whole[dim], dim, chosen)) for dim, chosen in axes_of_dim.items()]
        for way in product(*ways):
            by_dim = dict(zip(axes_of_dim, way, strict=True))
            layout: Layout = {}
            for holder in shapes:
                layout[holder] = tuple(
                    by_dim[dim][holder] if dim in by_dim else torch.arange(size) for dim, size in enumerate(whole)
                )
            yield layout


def _assignments(dims: Sequence[int], axes: Sequence[str]) -> Iterator[dict[int, tuple[str, ...]]]:
    """Yield {dim: the axes that shard it, outermost first} for all ways to give each dim at least one axis."""
    if not dims:
        yield {}
        return
    for count in range(1, len(axes) - len(dims) + 2):
        for chosen in permutations(axes, count):
            remaining = [axis for axis in axes if axis not in chosen]
            for others in _assignments(dims[1:], remaining):
                yield {dims[0]: chosen, **others}


def _indices(
    shapes: Mapping[Holder, Sequence[int]], size: int, dim: int, axes: tuple[str, ...]
) -> Iterator[dict[Holder, Tensor]]:
    """Yield {holder: its indices of a dim} for each way in which the axes may shard it; nothing if sizes do not fit."""
    sizes: dict[tuple[int, ...], int] = {}
    for holder, shape in shapes.items():
        place = tuple(holder.coordinates[axis] for axis in axes)
        if sizes.setdefault(place, shape[dim]) != shape[dim]:
            return
    if sum(sizes.values()) != size:
        return
    places = sorted(sizes)

    def by_holder(indices: Iterable[Tensor]) -> dict[Holder, Tensor]:
        of_place = dict(zip(places, indices, strict=True))
        return {holder: of_place[tuple(holder.coordinates[axis] for axis in axes)] for holder in shapes}

    yield by_holder(torch.arange(size).split([sizes[place] for place in places]))
    if len(axes) == 1 and len(places) > 1 and len(set(sizes.values())) == 1:
        count = len(places)
        if size % (2 * count) == 0:
            yield by_holder(head_and_tail(size, count))
        if dim == 0:
            yield by_holder(torch.arange(start, size, count) for start in range(count))


def head_and_tail(size: int, parts: int) -> list[Tensor]:
    """Return the indices of each of several parts: part i has chunk i of 2 × parts, and chunk i from the end."""
    chunks = torch.arange(size).chunk(2 * parts)
    return [torch.cat((chunks[part], chunks[2 * parts - 1 - part])) for part in range(parts)]


def block(whole: Tensor, indices: Indices) -> Tensor:
    """Return the elements of a tensor at the indices of each dim."""
    selected = whole
    for dim, index in enumerate(indices):
        if len(index) != whole.shape[dim] or not bool((index == torch.arange(len(index))).all()):
            selected = selected.index_select(dim, index)
    return selected


def composed(outer: Indices, inner: Indices) -> Indices:
    """Return the indices of `inner`, a part of the part `outer`, in the whole."""
    return tuple(first[second] for first, second in zip(outer, inner, strict=True))


def same_indices(first: Indices, second: Indices) -> bool:
    """Return True if two parts hold the same elements."""
    return all(torch.equal(indices, other) for indices, other in zip(first, second, strict=True))


def varying_axes(holders: Iterable[Holder]) -> list[str]:
    """Return the axes along which holders differ, outermost first."""
    every = list(holders)
    return [axis for axis in every[0].coordinates if len({holder.coordinates[axis] for holder in every}) > 1]


def rms(tensor: Tensor) -> float:
    """Return the root of the mean square of a tensor's elements; 0 for an empty tensor."""
    return float(torch.linalg.vector_norm(tensor)) / math.sqrt(tensor.numel()) if tensor.numel() else 0.0

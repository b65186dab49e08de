"""Which elements of a whole tensor each rank's part may be: layouts that fit the shapes and the mesh.

A DTensor says what its ranks hold. A plain tensor does not, so each layout that fits is tried, and the one whose
numbers agree best is taken. The ranks of a mesh axis hold the same, or the axis cuts a dim:

* in contiguous chunks;
* in pairs of a head and a tail chunk, as context parallelism balances a causal mask;
* in dim 0, in turn, as a ``DistributedSampler`` deals a batch.

Calls of a module in turn, for microbatches, cut a dim as ranks do.

Worked example: a reference's output of 8 × 16 and outputs of 4 × 16 on four ranks of ``dp=2,tp=2``: dim 0 is cut by dp
(rows 0 to 3 on ranks 0 and 1) or by tp (on ranks 0 and 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import torch
from torch import Tensor

MOST_LAYOUTS = 64


@dataclass(frozen=True)
class Holder:
    """One call of a module on one rank."""

    rank: int
    call: int
    coordinates: Mapping[str, int] = field(compare=False)
    """Of the rank on the mesh, and ``call`` among calls in turn."""


Indices = tuple[Tensor, ...]
"""For each dim of the whole, which of its indices a part holds."""
Layout = dict[Holder, Indices]


def possible_layouts(
    shapes: Mapping[Holder, Sequence[int]], whole: Sequence[int], axes: Sequence[str]
) -> Iterator[Layout]:
    """Yield the layouts that fit.

    Args:
        shapes: of the parts.
        whole: shape of the whole tensor.
        axes: those that may cut a dim, outermost first.
    """
    if any(len(shape) != len(whole) for shape in shapes.values()):
        return
    cut = [dim for dim in range(len(whole)) if any(shape[dim] != whole[dim] for shape in shapes.values())]
    count = 0
    for chosen in _choices(cut, axes):
        parts = [list(_indices(shapes, whole[dim], dim, by)) for dim, by in chosen.items()]
        for per_dim in _product(parts):
            by_dim = dict(zip(chosen, per_dim, strict=True))
            yield {
                holder: tuple(
                    by_dim[dim][holder] if dim in by_dim else torch.arange(size) for dim, size in enumerate(whole)
                )
                for holder in shapes
            }
            count += 1
            if count == MOST_LAYOUTS:
                return


def _choices(dims: Sequence[int], axes: Sequence[str]) -> Iterator[dict[int, tuple[str, ...]]]:
    """Yield which axes cut each dim, outermost first; each dim is cut by one at least."""
    if not dims:
        yield {}
        return
    for count in range(1, len(axes) - len(dims) + 2):
        for chosen in permutations(axes, count):
            rest = [axis for axis in axes if axis not in chosen]
            for others in _choices(dims[1:], rest):
                yield {dims[0]: chosen, **others}


def _product(parts: Sequence[Sequence[dict[Holder, Tensor]]]) -> Iterator[tuple[dict[Holder, Tensor], ...]]:
    if not parts:
        yield ()
        return
    for first in parts[0]:
        for rest in _product(parts[1:]):
            yield (first, *rest)


def _indices(
    shapes: Mapping[Holder, Sequence[int]], size: int, dim: int, axes: tuple[str, ...]
) -> Iterator[dict[Holder, Tensor]]:
    """Yield the indices of a dim that each holder has, if these axes cut it; nothing where its sizes do not fit."""
    sizes: dict[tuple[int, ...], int] = {}
    for holder, shape in shapes.items():
        place = tuple(holder.coordinates[axis] for axis in axes)
        if sizes.setdefault(place, shape[dim]) != shape[dim]:
            return
    if sum(sizes.values()) != size:
        return
    starts, start = {}, 0
    for place in sorted(sizes):
        starts[place] = start
        start += sizes[place]

    def placed(indices: Mapping[tuple[int, ...], Tensor]) -> dict[Holder, Tensor]:
        return {holder: indices[tuple(holder.coordinates[axis] for axis in axes)] for holder in shapes}

    yield placed({place: torch.arange(starts[place], starts[place] + sizes[place]) for place in sizes})
    if len(axes) == 1 and len(sizes) > 1 and len(set(sizes.values())) == 1:
        parts = len(sizes)
        if size % (2 * parts) == 0:
            yield placed(dict(zip(sorted(sizes), head_and_tail(size, parts), strict=True)))
        if dim == 0:
            yield placed({place: torch.arange(at, size, parts) for at, place in enumerate(sorted(sizes))})


def head_and_tail(size: int, parts: int) -> list[Tensor]:
    """Return the indices that each of several parts holds: chunk i of 2 × parts, and chunk i from the end."""
    chunks = torch.arange(size).chunk(2 * parts)
    return [torch.cat((chunks[part], chunks[2 * parts - 1 - part])) for part in range(parts)]


def block(whole: Tensor, indices: Indices) -> Tensor:
    """Return the elements at those indices of each dim."""
    selected = whole
    for dim, index in enumerate(indices):
        if len(index) != whole.shape[dim] or not bool((index == torch.arange(len(index))).all()):
            selected = selected.index_select(dim, index)
    return selected


def composed(outer: Indices, inner: Indices) -> Indices:
    """Return the indices in the whole of a part of a part."""
    return tuple(first[second] for first, second in zip(outer, inner, strict=True))


def same_indices(first: Indices, second: Indices) -> bool:
    """Return True if two parts hold the same elements."""
    return all(torch.equal(indices, other) for indices, other in zip(first, second, strict=True))


def varying_axes(holders: Iterable[Holder]) -> list[str]:
    """Return the axes along which holders differ, outermost first."""
    every = list(holders)
    return [axis for axis in every[0].coordinates if len({holder.coordinates[axis] for holder in every}) > 1]


def rms(tensor: Tensor) -> float:
    """Return the root of the mean square of a tensor's elements; 0 for none."""
    return float(torch.linalg.vector_norm(tensor)) / math.sqrt(tensor.numel()) if tensor.numel() else 0.0

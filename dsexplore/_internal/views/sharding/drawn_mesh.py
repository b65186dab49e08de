"""`DrawnMesh`: colors of the axes and the ranks that can be highlighted, shared by all pictures of a sharding."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import numpy as np

from dsexplore._internal.mesh import Mesh, Numbers
from dsexplore._internal.sharding.layout import Sharding
from dsexplore._internal.sharding.rank_groups import RankGroup, blocks_of
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.views.page.theme import AXES, axis_number
from dsexplore._internal.views.sharding.shard_blocks import Place, ShardBlock

MOST_SAMPLED, WHOLE = 64, 96
"""Maximal number of ranks in a sample, and size of a mesh up to which all ranks are sampled."""


class RankSample:
    """Some ranks of a mesh: those at all combinations of some coordinates of each axis.

    Attributes:
        mesh: Mesh of all ranks.
        chosen: Coordinates per mesh axis, ascending.
        numbers: Sampled ranks, in mesh order.
    """

    def __init__(self, mesh: Mesh, tensors: Iterable[PlacedTensor], most: int = MOST_SAMPLED) -> None:
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
        self._cached_coordinates: dict[tuple[object, ...], list[Numbers]] = {}

    def __len__(self) -> int:
        """Return the number of ranks in the sample."""
        return len(self.numbers)

    @property
    def is_whole(self) -> bool:
        """True if the sample contains every rank."""
        return len(self) == self.mesh.size

    def coordinates(self, index: int) -> tuple[int, ...]:
        """Return the mesh coordinates of the rank at an index of `numbers`."""
        return tuple(int(axis[index]) for axis in self._grid)

    def holding(self, tensor: PlacedTensor, places: Sequence[tuple[int, Place]]) -> list[int]:
        """Return the indices into `numbers` of the ranks with these coordinates on the tensor's axes."""
        coordinates = self._coordinates_of(tensor)
        mask = np.ones(len(self), dtype=bool)
        for number, (low, high) in places:
            mask &= (coordinates[number] >= low) & (coordinates[number] < high)
        return [int(index) for index in np.flatnonzero(mask)]

    def empty(self, tensor: PlacedTensor) -> list[int]:
        """Return the indices into `numbers` of the ranks that hold nothing of a tensor."""
        numel = np.ones(len(self), dtype=np.int64)
        for dim in range(len(tensor.shape)):
            numel = numel * tensor.dim_size(dim, self._grid)
        return [int(index) for index in np.flatnonzero(numel == 0)]

    def _coordinates_of(self, tensor: PlacedTensor) -> list[Numbers]:
        """Return, per axis of the tensor, the coordinates of the sampled ranks."""
        if tensor.axes not in self._cached_coordinates:
            zeros = np.zeros(len(self), dtype=np.int64)
            self._cached_coordinates[tensor.axes] = [axis(self._grid) + zeros for axis in tensor.axes]
        return self._cached_coordinates[tensor.axes]


def sample_of(shown: Sharding, most: int = MOST_SAMPLED) -> RankSample:
    """Return the ranks of a sharding that can be highlighted: at most ``most``, or all of a small mesh."""
    return RankSample(shown.mesh, shown.tensors, most)


def _chosen(mesh: Mesh, tensors: Iterable[PlacedTensor], most: int) -> list[Numbers]:
    """Choose coordinates per axis: fewer of the longest axes until there are at most ``most`` combinations."""
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
    """Choose ``length`` coordinates of an axis: first, last, those where sizes change, and others evenly between."""
    if length >= size:
        return np.arange(size)
    around = [at for start in starts for at in (start, start - 1) if at >= 0]
    wanted = list(dict.fromkeys([0, size - 1, *around, 1, 2, 3]))[:length]
    between = [at for at in np.linspace(0, size - 1, 2 * length).astype(int).tolist() if at not in wanted]
    missing = min(length - len(wanted), len(between))
    wanted += [between[number * len(between) // missing] for number in range(missing)]
    return np.array(sorted(set(wanted)), dtype=np.int64)


STYLE = "".join(f".dsx .x{i}{{--x:{color}}}\n" for i, (color, _) in enumerate(AXES))


def axis_class(axis: str) -> str:
    """Return the CSS class of an element that has the axis's color as ``--x``."""
    return f"x{axis_number(axis)}"


MINE = "mine"
"""CSS class of the blocks of the chosen rank."""


class DrawnMesh:
    """Colors and ranks of a sharding's pictures.

    Attributes:
        shown: The tensors and their mesh.
        sample: Ranks that can be highlighted: each has class ``h<index in the sample>`` in all pictures.
    """

    def __init__(self, shown: Sharding) -> None:
        self.shown = shown
        self.mesh = shown.mesh
        self.sample: RankSample = sample_of(shown)
        self._chosen: tuple[int, ...] | None = None

    def choosing(self, at: tuple[int, ...] | None) -> DrawnMesh:
        """Return a copy in which the rank at these mesh coordinates is chosen (None: none), see `MINE`."""
        copied = copy.copy(self)
        copied._chosen = at
        return copied

    def classes_of(self, tensor: PlacedTensor, block: ShardBlock) -> str:
        """Return the CSS classes of a block, for the sampled ranks that hold it (``ha`` for all) and for `MINE`."""
        held = self.sample.holding(tensor, block.places)
        classes = "ha" if len(held) == len(self.sample) else rank_classes(held)
        return f"{classes} {MINE}" if self._holds(tensor, block) else classes

    def _holds(self, tensor: PlacedTensor, block: ShardBlock) -> bool:
        """Return True if the chosen rank holds a block, or one of the shards folded into it."""
        if self._chosen is None:
            return False
        coordinates = [int(axis([np.array(place) for place in self._chosen])) for axis in tensor.axes]
        return all(low <= coordinates[number] < high for number, (low, high) in block.places)

    def empty_ranks(self, tensor: PlacedTensor) -> RankGroup | None:
        """Return the ranks that hold nothing of a tensor, or None if each rank holds some of it."""
        if not tensor.numel:
            return None
        return next((group for group in self.shown.shapes(tensor) if not math.prod(group.value)), None)


def rank_classes(sampled: list[int]) -> str:
    """Return the CSS classes of the ranks at these indices of the sample."""
    return " ".join(f"h{index}" for index in sampled)

"""`Titles`: ranks, coordinates, ranges and bytes of each block of a shard picture, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsexplore.sharding.chunks import Range, ranges_text
from dsexplore.sharding.rank_groups import numbers_text
from dsexplore.sharding.tensor import Placed
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.sharding.drawn_mesh import DrawnMesh
from dsexplore.views.sharding.shard_blocks import Block, Place

_MOST_COUNTED = 4096
"""Ranks whose numbers are written; of more, their coordinates are."""


def place_text(axis: str, place: Place) -> str:
    """The coordinates on an axis as text: ``"dp 3"``, or ``"dp 0–7"`` for several."""
    low, high = place
    return f"{axis} {low}" if high - low == 1 else f"{axis} {low}–{high - 1}"


class Titles:
    """The label of each block of a picture, and the lines shown when the pointer is over it."""

    def __init__(self, tensor: Placed, drawn_mesh: DrawnMesh) -> None:
        self.tensor, self.drawn_mesh = tensor, drawn_mesh
        self.mesh = mesh = drawn_mesh.mesh
        self._cut = any(placement.cuts for placement in tensor.placements)
        few = mesh.size <= _MOST_COUNTED
        self._numbers = mesh.block((0,) * len(mesh.shape), mesh.shape) if few else None
        self._own = self._own_coordinates() if few else []

    def _own_coordinates(self) -> list[Any]:
        grid = list(np.indices(self.mesh.shape).reshape(len(self.mesh.shape), -1))
        return [axis(grid) + np.zeros(self.mesh.size, dtype=np.int64) for axis in self.tensor.axes]

    def _ranks(self, places: Iterable[tuple[int, Place]]) -> Any:
        assert self._numbers is not None
        held = np.ones(len(self._numbers), dtype=bool)
        for number, (low, high) in places:
            held &= (self._own[number] >= low) & (self._own[number] < high)
        return self._numbers[held]

    def shade(self, block: Block, place: int) -> str:
        """The class of every second block; all pieces of a strided shard that a coordinate holds look alike."""
        if not self._cut:
            return ""
        strided = [at for at in block.places if self.tensor.placements[at[0]].kind == "strided"]
        return " odd" if (strided[0][1][0] if strided else place) % 2 else ""

    def label(self, block: Block, room: float) -> str:
        """``"0, 4"``: ranks; with very many of them, the coordinates. Empty where there is no room for it.

        A folded block says how many shards it stands for.
        """
        if self._numbers is not None:
            ranks = self._ranks(block.places)
            texts = [numbers_text(ranks, most) for most in (8, 4, 2)] + [f"{len(ranks):,} ranks"]
            texts = texts[:1] if len(ranks) == 1 else texts
        else:
            texts = [self._coordinates(block, named_only=True) or f"{self.mesh.size:,} ranks"]
        if block.folded > 1:
            shards, part = f"{block.folded:,} shards", self._coordinates(block, named_only=True)
            texts = [f"{shards}: {texts[0]}", shards, part]
        return html.escape(next((text for text in texts if len(text) <= room), ""))

    def _coordinates(self, block: Block, named_only: bool = False) -> str:
        at = dict(block.places)
        texts = []
        for number, axis in enumerate(self.tensor.axes):
            low, high = at.get(number, (0, axis.size))
            if named_only and high - low == axis.size:
                continue
            texts.append(place_text(axis.name, (low, high)))
        return ", ".join(texts)

    def title(self, block: Block) -> str:
        """The lines as the value of a ``title`` attribute."""
        return "&#10;".join(self.lines(block))

    def lines(self, block: Block) -> list[str]:
        """Ranks, mesh coordinates, index ranges and bytes, escaped."""
        at = dict(block.places)
        first = [at.get(number, (0, axis.size))[0] for number, axis in enumerate(self.tensor.axes)]
        sizes, ranges = self._held(first)
        lines = []
        if self._numbers is not None:
            ranks = self._ranks(block.places)
            lines.append(f"rank{'s' if len(ranks) != 1 else ''} {numbers_text(ranks, 8)}")
        if coordinates := self._coordinates(block):
            lines.append(coordinates)
        if block.folded > 1:
            lines.append(f"{block.folded:,} shards, folded; the first of them:")
        lines += [f"dim {dim}: {ranges_text(part)}" for dim, part in enumerate(ranges)]
        nbytes = math.prod(sizes) * self.tensor.dtype.itemsize
        lines.append(format_bytes(nbytes) if block.folded > 1 else f"{format_bytes(nbytes)} on each rank")
        return [html.escape(line, 400) for line in lines]

    def _held(self, own: Sequence[int]) -> tuple[list[int], list[list[Range]]]:
        """Lengths and ranges per dim of what the rank with these coordinates on the tensor's own axes holds."""
        at = [0] * len(self.mesh.shape)
        for coordinate, axis in zip(own, self.tensor.axes, strict=True):
            for number, divisor, modulus, weight in axis.terms:
                at[number] += coordinate // weight % modulus * divisor
        ranges = list(self.tensor.ranges(at))
        return [sum(stop - start for start, stop in part) for part in ranges], ranges

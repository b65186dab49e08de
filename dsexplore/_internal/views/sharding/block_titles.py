"""Texts of a shard picture: labels and tooltips of its blocks, and brackets that name the axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsexplore._internal.sharding.chunks import Range, ranges_text
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes, format_ranges
from dsexplore._internal.views.page import html
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh, axis_class
from dsexplore._internal.views.sharding.shard_blocks import AxisCuts, Place, Run, ShardBlock, boundaries

_MOST_COUNTED = 4096
"""Size of a mesh up to which texts contain ranks; for larger ones they contain coordinates."""


def place_text(axis: str, place: Place) -> str:
    """Return the coordinates on an axis as text: ``"dp 3"``, or ``"dp 0–7"`` for several."""
    low, high = place
    return f"{axis} {low}" if high - low == 1 else f"{axis} {low}–{high - 1}"


class Titles:
    """Labels and tooltips of the blocks of a tensor's picture.

    Args:
        tensor: the tensor.
        drawn_mesh: mesh of the sharding.
    """

    def __init__(self, tensor: PlacedTensor, drawn_mesh: DrawnMesh) -> None:
        self.tensor, self.drawn_mesh = tensor, drawn_mesh
        self.mesh = mesh = drawn_mesh.mesh
        self._cut = any(placement.cuts for placement in tensor.placements)
        few = mesh.size <= _MOST_COUNTED
        self._numbers = mesh.block((0,) * len(mesh.shape), mesh.shape) if few else None
        self._coordinates_of_axes = self._find_coordinates() if few else []

    def _find_coordinates(self) -> list[Any]:
        """Return, per axis of the tensor, the coordinate of each rank, in mesh order."""
        grid = list(np.indices(self.mesh.shape).reshape(len(self.mesh.shape), -1))
        return [axis(grid) + np.zeros(self.mesh.size, dtype=np.int64) for axis in self.tensor.axes]

    def _ranks(self, places: Iterable[tuple[int, Place]]) -> Any:
        """Return the ranks at these coordinates; ``places``: (index of the axis, coordinates on it)."""
        assert self._numbers is not None
        held = np.ones(len(self._numbers), dtype=bool)
        for number, (low, high) in places:
            held &= (self._coordinates_of_axes[number] >= low) & (self._coordinates_of_axes[number] < high)
        return self._numbers[held]

    def shade(self, block: ShardBlock, place: int) -> str:
        """Return the CSS class of every second block; the pieces of a strided shard get the same."""
        if not self._cut:
            return ""
        strided = [at for at in block.places if self.tensor.placements[at[0]].kind == "strided"]
        return " odd" if (strided[0][1][0] if strided else place) % 2 else ""

    def label(self, block: ShardBlock, room: float) -> str:
        """Return the ranks of a block, ``"0, 4"``, or their coordinates in a large mesh; empty if neither fits.

        The label of a folded block contains its number of shards. ``room`` is the number of letters that fit.
        """
        if self._numbers is not None:
            ranks = self._ranks(block.places)
            texts = [format_ranges(ranks.tolist(), most) for most in (8, 4, 2)] + [f"{len(ranks):,} ranks"]
            texts = texts[:1] if len(ranks) == 1 else texts
        else:
            texts = [self._coordinates(block, named_only=True) or f"{self.mesh.size:,} ranks"]
        if block.folded > 1:
            shards, part = f"{block.folded:,} shards", self._coordinates(block, named_only=True)
            texts = [f"{shards}: {texts[0]}", shards, part]
        return html.escape(next((text for text in texts if len(text) <= room), ""))

    def _coordinates(self, block: ShardBlock, named_only: bool = False) -> str:
        """Return the coordinates of a block; ``named_only``: without the axes on which it has all coordinates."""
        at = dict(block.places)
        texts = []
        for number, axis in enumerate(self.tensor.axes):
            low, high = at.get(number, (0, axis.size))
            if named_only and high - low == axis.size:
                continue
            texts.append(place_text(axis.name, (low, high)))
        return ", ".join(texts)

    def title(self, block: ShardBlock) -> str:
        """Return the tooltip of a block as the value of a ``title`` attribute."""
        return "&#10;".join(self.lines(block))

    def lines(self, block: ShardBlock) -> list[str]:
        """Return ranks, mesh coordinates, index ranges and bytes of a block, escaped."""
        at = dict(block.places)
        first = [at.get(number, (0, axis.size))[0] for number, axis in enumerate(self.tensor.axes)]
        sizes, ranges = self._held(first)
        lines = []
        if self._numbers is not None:
            ranks = self._ranks(block.places)
            lines.append(f"rank{'s' if len(ranks) != 1 else ''} {format_ranges(ranks.tolist(), 8)}")
        if coordinates := self._coordinates(block):
            lines.append(coordinates)
        if block.folded > 1:
            lines.append(f"{block.folded:,} shards; the first of them:")
        lines += [f"dim {dim}: {ranges_text(ranges_of_dim)}" for dim, ranges_of_dim in enumerate(ranges)]
        nbytes = math.prod(sizes) * self.tensor.dtype.itemsize
        lines.append(format_bytes(nbytes) if block.folded > 1 else f"{format_bytes(nbytes)} on each rank")
        return [html.escape(line, longest=400) for line in lines]

    def _held(self, coordinates: Sequence[int]) -> tuple[list[int], list[list[Range]]]:
        """Return (lengths, ranges of indices) per dim of the shard at these coordinates on the tensor's axes."""
        at = [0] * len(self.mesh.shape)
        for coordinate, axis in zip(coordinates, self.tensor.axes, strict=True):
            for number, divisor, modulus, weight in axis.terms:
                at[number] += coordinate // weight % modulus * divisor
        ranges = list(self.tensor.ranges(at))
        return [sum(stop - start for start, stop in ranges_of_dim) for ranges_of_dim in ranges], ranges


THICK = 19
"""Pixels that the brackets of one axis take."""
_LETTER = 5.6
"""Width of a letter in pixels."""
_MOST_BRACKETS = 64
"""Maximal number of brackets of an axis; if there are more, one bracket stands for all."""
_LEAST_LENGTH = 5
"""Minimal length in pixels of a bracket that is drawn individually."""

STYLE = """
.dsx .pic .k{border:2px solid var(--x);font:10px/13px var(--dsx-font);text-align:center;white-space:nowrap;
overflow:hidden;color:var(--dsx-fg)}
.dsx .pic .k.above{height:16px;border-bottom:0}
.dsx .pic .k.beside{width:16px;border-right:0;writing-mode:vertical-rl;line-height:12px}
.dsx .pic .k.all{border-style:dashed}
.dsx .pic .k.above.all{border-bottom:0}
.dsx .pic .k.beside.all{border-right:0}
.dsx .pic .cut{background:var(--x);z-index:1;pointer-events:none;left:0;right:0;height:2px;margin-top:-1px}
.dsx .pic .cut.up{left:auto;right:auto;top:0;bottom:0;height:auto;width:2px;margin:0 0 0 -1px}
.dsx .pic .cut.outer{height:4px;margin-top:-2px}
.dsx .pic .cut.up.outer{height:auto;width:4px;margin:0 0 0 -2px}
"""


@dataclass(frozen=True)
class Side:
    """One side of a picture, along the dim that runs down or the one that runs across."""

    tensor: PlacedTensor
    first: int
    """Index at the beginning of the side."""
    size: int
    """Number of indices shown."""
    pixels: float
    """Length of the side."""
    down: bool
    """Whether it runs down."""
    left: float
    """Left edge of the outermost bracket, in pixels of the picture."""
    top: float
    """Upper edge of the outermost bracket, in pixels of the picture."""

    @property
    def scale(self) -> float:
        """Length of one index in pixels."""
        return self.pixels / self.size


def brackets(cuts: Sequence[AxisCuts], side: Side) -> str:
    """Return the brackets of a dim; those of the outermost axis are furthest from the picture, see `axis_cuts`."""
    return "".join(_brackets_of_axis(axis, side, THICK * place) for place, axis in enumerate(cuts))


def _brackets_of_axis(cuts: AxisCuts, side: Side, inwards: float) -> str:
    """Return the brackets of one axis, ``inwards`` pixels from the outermost bracket towards the picture."""
    axis = side.tensor.axes[cuts.number]
    lengths = [(run.stop - run.start) * side.scale for run in cuts.runs]
    kind = f"k {'beside' if side.down else 'above'} {axis_class(axis.name)}"
    if len(cuts.runs) > _MOST_BRACKETS or min(lengths) < _LEAST_LENGTH or any(run.place is None for run in cuts.runs):
        text = _fitting((f"{axis.name} in {axis.size:,}", f"{axis.name} ÷{axis.size:,}", axis.name), side.pixels)
        return _bracket(kind=f"{kind} all", text=text, start=0, length=side.pixels, side=side, inwards=inwards)
    texts = _labels(axis.name, cuts.runs, lengths)
    return "".join(
        _bracket(
            kind=_look(kind, run),
            text=text,
            start=(run.start - side.first) * side.scale,
            length=length,
            side=side,
            inwards=inwards,
        )
        for run, text, length in zip(cuts.runs, texts, lengths, strict=True)
    )


def _look(kind: str, run: Run) -> str:
    """Return the CSS classes of a bracket, which is dashed if it covers several coordinates."""
    return f"{kind} all" if run.place is not None and run.place[1] - run.place[0] > 1 else kind


def _labels(axis: str, runs: Sequence[Run], lengths: Sequence[float]) -> list[str]:
    """Return the text of each bracket: ``tp 0``, ``0`` or ``""``, as fits; the longest one has the name if it fits."""
    texts = []
    for run, length in zip(runs, lengths, strict=True):
        named = place_text(axis, run.place or (0, 1))
        texts.append(_fitting((named, named.removeprefix(f"{axis} ")), length))
    if not any(text.startswith(axis) for text in texts):
        longest = max(range(len(lengths)), key=lambda i: lengths[i])
        texts[longest] = _fitting((axis, texts[longest]), lengths[longest])
    return texts


def _fitting(texts: Sequence[str], pixels: float) -> str:
    """Return the first of these texts that fits into so many pixels, or ``""``."""
    return next((text for text in texts if len(text) * _LETTER + 6 <= pixels), "")


def _bracket(kind: str, text: str, start: float, length: float, side: Side, inwards: float) -> str:
    left, top = (side.left + inwards, side.top + start) if side.down else (side.left + start, side.top + inwards)
    size = f"{'height' if side.down else 'width'}:{max(length - 1, 2):.1f}px"
    return (
        f'<span class="{kind}" style="left:{left:.1f}px;top:{top:.1f}px;{size}">{html.escape(text, longest=40)}</span> '
    )


def cut_lines(cuts: Sequence[AxisCuts], side: Side) -> str:
    """Return a line at each cut, in the color of the outermost axis that cuts there; thick for the first axis."""
    lines = []
    for index, place in boundaries(cuts).items():
        look = ("" if side.down else " up") + (" outer" if len(cuts) > 1 and place == 0 else "")
        kind = axis_class(side.tensor.axes[cuts[place].number].name)
        share = 100 * (index - side.first) / side.size
        lines.append(f'<i class="cut {kind}{look}" style="{"top" if side.down else "left"}:{share:.4g}%"></i>')
    return "".join(lines)

"""One tensor as a picture: its shards in true proportion, each kind of placement with its letter, hatch and colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsexplore.sharding.chunks import Range, ranges_text
from dsexplore.sharding.mesh import Mesh
from dsexplore.sharding.placement import Placement
from dsexplore.sharding.rank_groups import numbers_text
from dsexplore.sharding.tensor import Placed
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.page.theme import BLUE, GREEN, PURPLE, VERMILION
from dsexplore.views.sharding.shard_blocks import Block, Panel, Picture, Place, picture

WIDTH, HEIGHT, THINNEST = 520, 240, 36
"""Pixels that a picture may take, and the least that a side gets."""
_MARGIN = 58
_MOST_COUNTED = 4096
"""Ranks whose numbers are written; of more, their coordinates are."""

STYLE = f"""
.dsx .sw{{display:inline-block;width:26px;height:13px;border:1px solid var(--dsx-fg);
vertical-align:-2px;margin-right:5px}}
.dsx .shard{{background:color-mix(in srgb,{BLUE} 38%,var(--dsx-bg))}}
.dsx .shard.odd{{background:color-mix(in srgb,{BLUE} 20%,var(--dsx-bg))}}
.dsx .strided{{background:repeating-linear-gradient(90deg,{PURPLE} 0 2px,transparent 2px 6px),
color-mix(in srgb,{PURPLE} 34%,var(--dsx-bg))}}
.dsx .strided.odd{{background:repeating-linear-gradient(90deg,{PURPLE} 0 1px,transparent 1px 6px),
color-mix(in srgb,{PURPLE} 12%,var(--dsx-bg))}}
.dsx .replicate{{background:radial-gradient(circle,{GREEN} 1.4px,transparent 1.9px) 0 0/7px 7px,
color-mix(in srgb,{GREEN} 12%,var(--dsx-bg))}}
.dsx .partial{{background:repeating-linear-gradient(45deg,{VERMILION} 0 2px,transparent 2px 7px),
color-mix(in srgb,{VERMILION} 14%,var(--dsx-bg))}}
.dsx .plain{{background:var(--dsx-shade)}}
.dsx .pic{{position:relative;margin:2px 0 6px}}
.dsx .pic *{{position:absolute}}
.dsx .pic .who{{position:static}}
.dsx .pic .b{{border:1px solid var(--dsx-fg);display:flex;align-items:center;justify-content:center;overflow:hidden;
font-size:11px;line-height:13px}}
.dsx .pic .b>span{{position:relative;z-index:3;background:var(--dsx-bg);padding:0 3px;border-radius:3px;
white-space:nowrap}}
.dsx .pic .b>.v{{writing-mode:vertical-rl;padding:3px 0}}
.dsx .pic .fold{{border-style:dashed}}
.dsx .pic .who:hover .b{{outline:2px solid var(--dsx-focus);z-index:2}}
.dsx .pic .card{{border:1px solid var(--dsx-fg)}}
.dsx .pic .front{{background:var(--dsx-bg)}}
.dsx .pic .over{{inset:0;z-index:1;pointer-events:none;background-color:transparent}}
.dsx .pic .over.replicate{{background:radial-gradient(circle,{GREEN} 1.2px,transparent 1.6px) 0 0/9px 9px}}
.dsx .pic .over.partial{{background:repeating-linear-gradient(45deg,{VERMILION} 0 1.5px,transparent 1.5px 9px)}}
.dsx .pic .t{{font:10px/12px var(--dsx-mono);color:var(--dsx-dim);white-space:nowrap}}
.dsx .pics{{display:flex;flex-wrap:wrap;gap:4px 18px}}
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a picture in pixels, and the shape of what it shows."""

    width: float
    height: float
    rows: int
    columns: int

    @property
    def stretched(self) -> float:
        """How much thicker the thin side is drawn than it should be."""
        ratio = (self.width / self.columns) / (self.height / self.rows)
        return max(ratio, 1 / ratio)


def frame_of(rows: int, columns: int, down: int = 1, across: int = 1) -> Frame:
    """True proportion within the room that there is; a side too thin for its labels is stretched.

    Args:
        rows: indices that run down.
        columns: indices that run across.
        down: stretches that the rows are drawn in.
        across: stretches that the columns are drawn in.
    """
    scale = min(WIDTH / columns, HEIGHT / rows)
    width = 2 * THINNEST if across == 1 else min(across, 16) * THINNEST
    height = max(THINNEST, min(down, 16) * 15)
    return Frame(max(columns * scale, width), max(rows * scale, height), rows, columns)


def picture_html(tensor: Placed, mesh: Mesh, most_blocks: int = 96) -> str:
    """The picture of one tensor; a sentence where there is nothing to draw."""
    if not tensor.numel:
        return '<p class="dim">No elements: every rank holds an empty tensor.</p>'
    drawn = picture(tensor, most_blocks)
    frame = picture_frame(tensor, drawn)
    titles = Titles(tensor, mesh)
    panels = "".join(_panel(tensor, drawn, panel, frame, titles) for panel in drawn.panels)
    return f'<div class="scroll"><div class="pics">{panels}</div></div>{_remarks(tensor, drawn, frame)}'


def picture_frame(tensor: Placed, drawn: Picture) -> Frame:
    """The frame of a picture: a matrix, a strip for one dim, a square for none."""
    rows = tensor.shape[drawn.rows] if drawn.rows is not None else 1
    columns = tensor.shape[drawn.columns] if drawn.columns is not None else 1
    if drawn.rows is None:
        return Frame(WIDTH if tensor.shape else 44, 36, rows, columns)
    down, across = (len({each(block) for block in drawn.panels[0].blocks}) for each in (_rows, _columns))
    return frame_of(rows, columns, down, across)


def _rows(block: Block) -> tuple[Range, ...]:
    return block.rows


def _columns(block: Block) -> tuple[Range, ...]:
    return block.columns


def _remarks(tensor: Placed, drawn: Picture, frame: Frame) -> str:
    said = []
    if drawn.rows is not None:
        said.append(f"Dim {drawn.rows} runs down, dim {drawn.columns} across.")
    if drawn.rows is not None and frame.stretched > 1.05:
        thin = drawn.columns if frame.width / frame.columns > frame.height / frame.rows else drawn.rows
        said.append(f"Dim {thin} is drawn {_times(frame.stretched)} times too thick, to be seen.")
    hidden = [
        dim for dim in range(len(tensor.shape)) if dim not in (drawn.rows, drawn.columns) and not tensor.cuts(dim)
    ]
    if hidden:
        said.append(f"Not drawn, because whole on every rank: {_dims_text(tensor, hidden)}.")
    if any(block.folded > 1 for panel in drawn.panels for block in panel.blocks):
        said.append("Dashed: shards that are alike and lie side by side, folded.")
    if drawn.hidden_panels:
        said.append(f"{drawn.hidden_panels:,} more panels like these are not drawn.")
    return f'<p class="dim">{" ".join(said)}</p>' if said else ""


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"


def _dims_text(tensor: Placed, dims: Sequence[int]) -> str:
    return ", ".join(f"dim {dim} ({tensor.shape[dim]:,})" for dim in dims)


def _panel(tensor: Placed, drawn: Picture, panel: Panel, frame: Frame, titles: Titles) -> str:
    wholes = [(p, axis) for p, axis in zip(tensor.placements, tensor.axes, strict=True) if not p.cuts and axis.size > 1]
    cards = [p.kind for p, axis in wholes for _ in range(min(axis.size, 3) - 1)]
    top = 30 if panel.fixed else 16
    left = _MARGIN if drawn.rows is not None else 4
    behind_px = 5 * len(cards)
    room = f"width:{left + frame.width + behind_px + 46:.0f}px;height:{top + frame.height + behind_px + 14:.0f}px"
    size = f"width:{frame.width:.1f}px;height:{frame.height:.1f}px"
    behind = "".join(
        f'<div class="front" style="left:{left + 5 * at}px;top:{top + 5 * at}px;{size}">'
        f'<div class="card {kind}" style="inset:0"></div></div>'
        for at, kind in reversed(list(enumerate(cards, 1)))
    )
    over = "".join(f'<div class="over {kind}"></div>' for kind in dict.fromkeys(p.kind for p, _ in wholes))
    head = ", ".join(f"dim {dim}: {ranges_text([part])}" for dim, part in panel.fixed)
    words = f"dim {drawn.rows} down, dim {drawn.columns} across" if drawn.rows is not None else "dim 0 across"
    return (
        f'<div class="pic" role="img" aria-label="shards of {html.escape(tensor.name)}: {words}" style="{room}">'
        + (f'<span class="t" style="left:{left}px;top:0">{head}</span>' if head else "")
        + _ticks(drawn, panel, frame, left, top)
        + f'{behind}<div class="front" style="left:{left}px;top:{top}px;{size}">'
        + f"{_blocks(panel, frame, titles)}{over}</div></div>"
    )


def _ticks(drawn: Picture, panel: Panel, frame: Frame, left: int, top: int) -> str:
    texts = []
    if drawn.columns is not None:
        for at, x in _spaced(panel, _columns, frame.columns, frame.width, 6.2):
            texts.append(f'<span class="t" style="left:{left + x:.0f}px;top:{top - 13}px">{at:,}</span>')
    if drawn.rows is not None:
        for at, y in _spaced(panel, _rows, frame.rows, frame.height, 0):
            place = f"right:calc(100% - {left - 4}px);top:{top + y - 6:.0f}px"
            texts.append(f'<span class="t" style="{place}">{at:,}</span>')
    return "".join(texts)


def _spaced(
    panel: Panel, side: Callable[[Block], tuple[Range, ...]], size: int, pixels: float, digit: float
) -> list[tuple[int, float]]:
    """Where stretches begin, and the end: as many as have room for their number."""
    starts = sorted({start for block in panel.blocks for start, _ in side(block)})
    need = 11 + digit * len(f"{size:,}")
    kept = [(size, pixels)]
    last = -need
    for start in starts:
        at = pixels * start / size
        if at - last >= need and pixels - at >= need:
            kept.append((start, at))
            last = at
    return kept


def places(panel: Panel) -> tuple[dict[int, int], dict[int, int]]:
    """For the index at which each stretch begins, how many begin before it: down and across."""
    down = sorted({start for block in panel.blocks for start, _ in block.rows})
    across = sorted({start for block in panel.blocks for start, _ in block.columns})
    return {start: i for i, start in enumerate(down)}, {start: i for i, start in enumerate(across)}


def _blocks(panel: Panel, frame: Frame, titles: Titles) -> str:
    down, across = places(panel)
    found = []
    for block in panel.blocks:
        boxes = []
        for row, column in ((row, column) for row in block.rows for column in block.columns):
            odd = titles.shade(block, down[row[0]] + across[column[0]])
            boxes.append(_box(block, row, column, frame, f"{titles.kind}{odd}", titles))
        found.append(f'<div class="who" title="{titles.title(block)}">{"".join(boxes)}</div>')
    return "".join(found)


def _box(block: Block, row: Range, column: Range, frame: Frame, look: str, titles: Titles) -> str:
    width = frame.width * (column[1] - column[0]) / frame.columns
    height = frame.height * (row[1] - row[0]) / frame.rows
    upright = height > 2 * width
    room, across = (height, width) if upright else (width, height)
    label = titles.label(block, (room - 9) / 6.2) if across >= 14 else ""
    shown = f"<span{' class=v' if upright else ''}>{label}</span>" if label else ""
    fold = " fold" if block.folded > 1 else ""
    return (
        f'<div class="b {look}{fold}" style="left:{_percent(column[0], frame.columns)};'
        f"top:{_percent(row[0], frame.rows)};width:{_percent(column[1] - column[0], frame.columns)};"
        f'height:{_percent(row[1] - row[0], frame.rows)}">{shown}</div>'
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%"


class Titles:
    """What is written on a block, and what hovering over it tells."""

    def __init__(self, tensor: Placed, mesh: Mesh) -> None:
        self.tensor, self.mesh = tensor, mesh
        kinds = [p.kind for p in tensor.placements if p.cuts]
        self.kind = "strided" if "strided" in kinds else "shard" if kinds else "plain"
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
        """Neighbours differ; of a strided shard all pieces that a coordinate holds look alike."""
        if self.kind == "plain":
            return ""
        strided = [at for at in block.places if self.tensor.placements[at[0]].kind == "strided"]
        return " odd" if (strided[0][1][0] if strided else place) % 2 else ""

    def label(self, block: Block, room: float) -> str:
        """``"0, 4"``: ranks; with very many of them, the coordinates. Empty where there is no room for it."""
        if self._numbers is not None:
            ranks = self._ranks(block.places)
            texts = [numbers_text(ranks, most) for most in (8, 4, 2)] + [f"{len(ranks):,} ranks"]
            texts = texts[:1] if len(ranks) == 1 else texts
        else:
            texts = [self._coordinates(block, named_only=True) or f"{self.mesh.size:,} ranks"]
        return html.escape(next((text for text in texts if len(text) <= room), ""))

    def _coordinates(self, block: Block, named_only: bool = False) -> str:
        at = dict(block.places)
        texts = []
        for number, axis in enumerate(self.tensor.axes):
            low, high = at.get(number, (0, axis.size))
            if named_only and high - low == axis.size:
                continue
            texts.append(f"{axis.name} {low}" if high - low == 1 else f"{axis.name} {low}-{high - 1}")
        return ", ".join(texts)

    def title(self, block: Block) -> str:
        """What hovering over a block tells, as an attribute's value."""
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
        """What the rank with these coordinates on the tensor's own axes holds."""
        at = [0] * len(self.mesh.shape)
        for coordinate, axis in zip(own, self.tensor.axes, strict=True):
            for number, divisor, modulus, weight in axis.terms:
                at[number] += coordinate // weight % modulus * divisor
        ranges = list(self.tensor.ranges(at))
        return [sum(stop - start for start, stop in part) for part in ranges], ranges


def swatch(placement: Placement | None) -> str:
    """Hatch, colour and letter of a placement."""
    kind = placement.kind if placement is not None else "plain"
    text = str(placement) if placement is not None else "plain"
    return f'<span class="sw {kind}"></span><code>{html.escape(text)}</code>'

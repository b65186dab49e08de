"""One panel of a shard picture: blocks, cuts, brackets, ticks, and cards behind it for copies and partial values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsexplore.placement_text import Placement
from dsexplore.sharding.chunks import Range, ranges_text
from dsexplore.sharding.joint_mesh import Reading
from dsexplore.sharding.tensor import Placed
from dsexplore.views.page import html
from dsexplore.views.sharding.axis_cuts import AxisCuts, axis_cuts
from dsexplore.views.sharding.block_titles import Titles, place_text
from dsexplore.views.sharding.brackets import THICK, Side, brackets, cut_lines
from dsexplore.views.sharding.drawn_mesh import lit_classes
from dsexplore.views.sharding.picture_frame import Frame, columns_of, orders, rows_of
from dsexplore.views.sharding.shard_blocks import Block, Panel, Picture
from dsexplore.views.sharding.zoom import Zoom

_DIGIT, _NOTHING = 6.2, 330
"""Pixels of a digit of a tick, and of the box of the ranks that hold nothing at most."""


@dataclass(frozen=True)
class PanelDrawing:
    """The geometry and text of one panel."""

    tensor: Placed
    drawn: Picture
    panel: Panel
    frame: Frame
    titles: Titles
    first_row: int = 0
    """The index at its upper end; above 0 in a zoom."""
    first_column: int = 0
    heading: str = ""

    def html(self, window: Zoom | None = None, with_empty: bool = False) -> str:
        """The panel.

        Args:
            window: what of it a zoom shows, to be marked.
            with_empty: whether the ranks that hold nothing stand below it.
        """
        left, top, frame = self._left, self._top, self.frame
        wholes = self._wholes()
        cards = [(p, axis) for p, axis in wholes for _ in range(min(axis.size, 3) - 1)]
        behind_px = 5 * len(cards)
        empty = self._empty(left, top + frame.height + behind_px + 6) if with_empty else ""
        width = max(
            left + frame.width + behind_px + 46, left + _DIGIT * len(self._head()), left + _NOTHING * bool(empty)
        )
        room = f"width:{width:.0f}px;height:{top + frame.height + behind_px + 10 + (22 if empty else 0):.0f}px"
        size = f"width:{frame.width:.1f}px;height:{frame.height:.1f}px"
        behind = "".join(
            f'<div class="front" style="left:{left + 5 * at:.0f}px;top:{top + 5 * at:.0f}px;{size}">'
            f'<div class="card {self._kind(placement, axis)}" style="inset:0"></div></div>'
            for at, (placement, axis) in reversed(list(enumerate(cards, 1)))
        )
        over = "".join(f'<div class="over {self._kind(placement, axis)}"></div>' for placement, axis in wholes)
        lens = self._lens(window) + self._own_shards() if window is not None else ""
        inside = self._blocks() + self._cut_lines() + over + lens
        return (
            f'<div class="pic" role="img" aria-label="{html.escape(self._spoken(), 0)}" style="{room}">'
            + (f'<span class="t" style="left:{left:.0f}px;top:0">{html.escape(self._head(), 0)}</span>')
            + self._brackets(left, top)
            + self._ticks(left, top)
            + f'{behind}<div class="front" style="left:{left:.0f}px;top:{top:.0f}px;{size}">{inside}</div>{empty}</div>'
        )

    # What stands where

    @property
    def _down(self) -> list[AxisCuts]:
        return axis_cuts(self.tensor, self.drawn.rows, self.drawn.down)

    @property
    def _across(self) -> list[AxisCuts]:
        return axis_cuts(self.tensor, self.drawn.columns, self.drawn.across)

    @property
    def _left(self) -> float:
        """Pixels left of the blocks: brackets, and the ticks' numbers."""
        if self.drawn.rows is None:
            return 4
        return THICK * len(self._down) + 10 + _DIGIT * len(f"{self.first_row + self.frame.rows:,}")

    @property
    def _top(self) -> float:
        return (14 if self._head() else 2) + THICK * len(self._across) + 15

    def _head(self) -> str:
        """The heading of a panel that is not all: of a zoom, and the indices of dims that are not drawn."""
        axes = self.tensor.axes
        held = ", ".join(place_text(axes[number].name, place) for number, place in self.panel.places)
        fixed = ", ".join(f"dim {dim}: {ranges_text([part])}" for dim, part in self.panel.fixed)
        return "; ".join(part for part in (self.heading, f"{fixed} ({held})" if fixed else "") if part)

    def _wholes(self) -> list[tuple[Placement, Reading]]:
        """The axes on which each rank has all of it, a copy or a partial value."""
        pairs = zip(self.tensor.placements, self.tensor.axes, strict=True)
        return [(placement, axis) for placement, axis in pairs if not placement.cuts and axis.size > 1]

    def _kind(self, placement: Placement, axis: Reading) -> str:
        return f"{placement.kind} {self.titles.drawn_mesh.marks.kind(axis.name)}"

    def _spoken(self) -> str:
        """The picture in a sentence, for who cannot see it."""
        parts = []
        for dim, way, cuts in ((self.drawn.rows, "down", self._down), (self.drawn.columns, "across", self._across)):
            if dim is not None:
                axes = " and ".join(
                    f"{self.tensor.axes[c.number].name} in {self.tensor.axes[c.number].size:,}" for c in cuts
                )
                parts.append(f"dim {dim} {way}" + (f", cut by {axes}" if axes else ", whole"))
        wholes = [f"{'copies' if p.kind == 'replicate' else 'partial values'} on {a.name}" for p, a in self._wholes()]
        said = "; ".join([*parts, *wholes])
        return f"shards of {html.plain(self.tensor.name)}: {said}" + (f" ({self._head()})" if self._head() else "")

    # Its parts

    def _blocks(self) -> str:
        down, across = orders(self.panel)
        found = []
        for block in self.panel.blocks:
            boxes = "".join(
                self._box(block, row, column, (down[row[0]] + across[column[0]]) % 2)
                for row in block.rows
                for column in block.columns
            )
            lit = self.titles.drawn_mesh.lit_by(self.tensor, block)
            found.append(f'<div class="who {lit}" title="{self.titles.title(block)}">{boxes}</div>')
        return "".join(found)

    def _box(self, block: Block, row: Range, column: Range, place: int) -> str:
        frame = self.frame
        width = frame.width * (column[1] - column[0]) / frame.columns
        height = frame.height * (row[1] - row[0]) / frame.rows
        upright = height > 2 * width
        room, across = (height, width) if upright else (width, height)
        label = self.titles.label(block, (room - 9) / _DIGIT) if across >= 14 else ""
        shown = f"<span{' class=v' if upright else ''}>{label}</span>" if label else ""
        look = self.titles.shade(block, place) + (" fold" if block.folded > 1 else "")
        cuts = f"--across:{_cut(width, block.folded_across)};--down:{_cut(height, block.folded_down)};"
        return (
            f'<div class="b{look}" style="{cuts if block.folded > 1 else ""}'
            f"left:{_percent(column[0] - self.first_column, frame.columns)};"
            f"top:{_percent(row[0] - self.first_row, frame.rows)};"
            f"width:{_percent(column[1] - column[0], frame.columns)};"
            f'height:{_percent(row[1] - row[0], frame.rows)}">{shown}</div>'
        )

    def _sides(self, left: float, top: float) -> list[tuple[list[AxisCuts], Side]]:
        frame, marks = self.frame, self.titles.drawn_mesh.marks
        rows = Side(self.tensor, marks, self.first_row, frame.rows, frame.height, True, THICK * 0.0, top)
        above = top - 15 - THICK * len(self._across)
        columns = Side(self.tensor, marks, self.first_column, frame.columns, frame.width, False, left, above)
        return [(self._down, rows), (self._across, columns)]

    def _brackets(self, left: float, top: float) -> str:
        return "".join(brackets(cuts, side) for cuts, side in self._sides(left, top))

    def _cut_lines(self) -> str:
        return "".join(cut_lines(cuts, side) for cuts, side in self._sides(0, 0))

    def _lens(self, window: Zoom) -> str:
        """A frame around what a zoom shows."""
        frame = self.frame
        width = f"max(7px,{_percent(window.columns[1] - window.columns[0], frame.columns)})"
        height = f"max(7px,{_percent(window.rows[1] - window.rows[0], frame.rows)})"
        place = f"left:{_percent(window.columns[0], frame.columns)};top:{_percent(window.rows[0], frame.rows)}"
        return f'<i class="lens" style="{place};width:{width};height:{height}"></i>'

    def _own_shards(self) -> str:
        """The shard of each sampled rank where shards are folded, seen while that rank is lit."""
        sample, drawn, frame = self.titles.drawn_mesh.sample, self.drawn, self.frame
        found: dict[tuple[Range, Range], list[int]] = {}
        for index in range(len(sample)):
            at = sample.coordinates(index)
            rows, columns = (
                self.tensor.dim_ranges(dim, at) if dim is not None else [(0, 1)] for dim in (drawn.rows, drawn.columns)
            )
            if rows and columns and not self.panel.fixed:
                found.setdefault((rows[0], columns[0]), []).append(index)
        return "".join(
            f'<i class="own {lit_classes(ranks)}" style="left:{_percent(column[0], frame.columns)};'
            f"top:{_percent(row[0], frame.rows)};width:{_percent(column[1] - column[0], frame.columns)};"
            f'height:{_percent(row[1] - row[0], frame.rows)}"></i>'
            for (row, column), ranks in found.items()
        )

    def _empty(self, left: float, top: float) -> str:
        """The ranks that hold nothing, as a box without area."""
        group = self.titles.drawn_mesh.without(self.tensor)
        if group is None:
            return ""
        lit = lit_classes(self.titles.drawn_mesh.sample.empty(self.tensor))
        text = f"∅ {group.count:,} rank{'s hold' if group.count != 1 else ' holds'} nothing: {group.ranks}"
        return f'<div class="none {lit}" style="left:{left:.0f}px;top:{top:.0f}px">{html.escape(text, 50)}</div>'

    def _ticks(self, left: float, top: float) -> str:
        texts = []
        if self.drawn.columns is not None:
            for at, x in self._spaced(columns_of, self.first_column, self.frame.columns, self.frame.width, _DIGIT):
                texts.append(f'<span class="t" style="left:{left + x:.0f}px;top:{top - 13:.0f}px">{at:,}</span>')
        if self.drawn.rows is not None:
            for at, y in self._spaced(rows_of, self.first_row, self.frame.rows, self.frame.height, 0):
                place = f"right:calc(100% - {left - 4:.0f}px);top:{top + y - 6:.0f}px"
                texts.append(f'<span class="t" style="{place}">{at:,}</span>')
        return "".join(texts)

    def _spaced(
        self, side: Callable[[Block], tuple[Range, ...]], first: int, size: int, pixels: float, digit: float
    ) -> list[tuple[int, float]]:
        """Ticks (index, pixels): the beginnings of stretches and the end, as many as leave room for their numbers."""
        starts = sorted({start for block in self.panel.blocks for start, _ in side(block)})
        need = 11 + digit * len(f"{first + size:,}")
        kept = [(first + size, pixels)]
        last = -need
        for start in starts:
            at = pixels * (start - first) / size
            if at - last >= need and pixels - at >= need:
                kept.append((start, at))
                last = at
        return kept


def zoomed(drawing: PanelDrawing, window: Zoom, frame: Frame, times: str) -> PanelDrawing:
    """The drawing of what a zoom shows, ``times`` larger."""
    return replace(
        drawing,
        drawn=window.picture,
        panel=window.picture.panels[0],
        frame=frame,
        first_row=window.rows[0],
        first_column=window.columns[0],
        heading=f"{window.whose}, {times} times larger",
    )


def _cut(pixels: float, shards: int) -> str:
    """The pixels between two cuts of a folded block; at least 4, where its shards are too thin to be drawn."""
    return f"{max(pixels / shards, 4):.1f}px" if shards > 1 else "9999px"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%"

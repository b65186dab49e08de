"""One tensor as a picture: shards in true proportion, brackets that name each axis, one color per axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dsexplore._internal.placement_text import Placement, readable
from dsexplore._internal.sharding.chunks import Range, ranges_text
from dsexplore._internal.sharding.joint_mesh import Reading
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.views.page import html
from dsexplore._internal.views.sharding import block_titles, drawn_mesh
from dsexplore._internal.views.sharding.block_titles import THICK, Side, Titles, brackets, cut_lines, place_text
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh, axis_class, rank_classes
from dsexplore._internal.views.sharding.shard_blocks import AxisCuts, Panel, Picture, ShardBlock, axis_cuts, picture
from dsexplore._internal.views.sharding.zoom import (
    Frame,
    Zoom,
    columns_of,
    frame_of,
    orders,
    picture_frame,
    rows_of,
    zoom,
)

_DIGIT, _NOTHING = 6.2, 330
"""Pixels of a tick's digit, and maximal width of the box of ranks that hold nothing."""
_MOST_SHEETS = 4
"""Maximal number of copies of a tensor that are drawn, one behind the other."""


@dataclass(frozen=True)
class PanelDrawing:
    """Geometry and text of one panel."""

    tensor: PlacedTensor
    drawn: Picture
    panel: Panel
    frame: Frame
    titles: Titles
    first_row: int = 0
    """Index at the upper edge; above 0 in a zoom."""
    first_column: int = 0
    heading: str = ""

    def html(self, window: Zoom | None = None, with_empty: bool = False) -> str:
        """Return the panel as HTML.

        Args:
            window: zoom whose part of the panel is framed.
            with_empty: whether to show the ranks that hold nothing below the panel.
        """
        left, top, frame = self._left, self._top, self.frame
        wholes = self._wholes()
        cards = [(p, axis) for p, axis in wholes for _ in range(min(axis.size, _MOST_SHEETS) - 1)]
        behind_px = 5 * len(cards)
        empty = self._empty(left, top + frame.height + behind_px + 6) if with_empty else ""
        width = left + max(frame.width + behind_px + 46, _DIGIT * len(self._head()), _NOTHING if empty else 0)
        room = f"width:{width:.0f}px;height:{top + frame.height + behind_px + 10 + (22 if empty else 0):.0f}px"
        size = f"width:{frame.width:.1f}px;height:{frame.height:.1f}px"
        behind = "".join(
            f'<div class="front" style="left:{left + 5 * at:.0f}px;top:{top + 5 * at:.0f}px;{size}">'
            f'<div class="card {self._kind(placement, axis)}" style="inset:0"></div></div>'
            for at, (placement, axis) in reversed(list(enumerate(cards, 1)))
        )
        over = "".join(f'<div class="over {self._kind(placement, axis)}"></div>' for placement, axis in wholes)
        lens = self._lens(window) + self._rank_shards() if window is not None else ""
        inside = self._blocks() + self._cut_lines() + over + lens
        return (
            f'<div class="pic" role="img" aria-label="{html.escape(self._spoken(), longest=0)}" style="{room}">'
            + (f'<span class="t" style="left:{left:.0f}px;top:0">{html.escape(self._head(), longest=0)}</span> ')
            + self._brackets(left, top)
            + self._ticks(left, top)
            + f'{behind}<div class="front" style="left:{left:.0f}px;top:{top:.0f}px;{size}">{inside}</div>{empty}</div>'
        )

    # Positions and texts

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
        """Return the heading of a partial panel: the zoom's, and the indices of dims that are not drawn."""
        axes = self.tensor.axes
        held = ", ".join(place_text(axes[number].name, place) for number, place in self.panel.places)
        fixed = ", ".join(f"dim {dim}: {ranges_text([part])}" for dim, part in self.panel.fixed)
        return "; ".join(part for part in (self.heading, f"{fixed} ({held})" if fixed else "") if part)

    def _wholes(self) -> list[tuple[Placement, Reading]]:
        """Return (placement, axis) for axes on which each rank has the whole tensor, a copy or a partial value."""
        pairs = zip(self.tensor.placements, self.tensor.axes, strict=True)
        return [(placement, axis) for placement, axis in pairs if not placement.cuts and axis.size > 1]

    def _kind(self, placement: Placement, axis: Reading) -> str:
        return f"{placement.kind} {axis_class(axis.name)}"

    def _spoken(self) -> str:
        """Return a sentence that describes the picture, for screen readers."""
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

    # Parts as HTML

    def _blocks(self) -> str:
        """Return the boxes of all blocks, each with its tooltip."""
        down, across = orders(self.panel)
        drawn_blocks = []
        for block in self.panel.blocks:
            boxes = "".join(
                self._box(block, row, column, (down[row[0]] + across[column[0]]) % 2)
                for row in block.rows
                for column in block.columns
            )
            lit = self.titles.drawn_mesh.classes_of(self.tensor, block)
            drawn_blocks.append(f'<div class="who {lit}" title="{self.titles.title(block)}">{boxes}</div>')
        return "".join(drawn_blocks)

    def _box(self, block: ShardBlock, row: Range, column: Range, place: int) -> str:
        """Return one rectangle of a block; ``place`` alternates the shades of neighbors."""
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
        frame = self.frame
        rows = Side(
            self.tensor, self.first_row, size=frame.rows, pixels=frame.height, down=True, left=THICK * 0.0, top=top
        )
        above = top - 15 - THICK * len(self._across)
        columns = Side(
            self.tensor, self.first_column, size=frame.columns, pixels=frame.width, down=False, left=left, top=above
        )
        return [(self._down, rows), (self._across, columns)]

    def _brackets(self, left: float, top: float) -> str:
        return "".join(brackets(cuts, side) for cuts, side in self._sides(left, top))

    def _cut_lines(self) -> str:
        return "".join(cut_lines(cuts, side) for cuts, side in self._sides(0, 0))

    def _lens(self, window: Zoom) -> str:
        """Return a frame around the part that a zoom shows."""
        frame = self.frame
        width = f"max(7px,{_percent(window.columns[1] - window.columns[0], frame.columns)})"
        height = f"max(7px,{_percent(window.rows[1] - window.rows[0], frame.rows)})"
        place = f"left:{_percent(window.columns[0], frame.columns)};top:{_percent(window.rows[0], frame.rows)}"
        return f'<i class="lens" style="{place};width:{width};height:{height}"></i>'

    def _rank_shards(self) -> str:
        """Return the shard of each sampled rank where shards are folded; visible while the rank is highlighted."""
        sample, drawn, frame = self.titles.drawn_mesh.sample, self.drawn, self.frame
        ranks_of: dict[tuple[Range, Range], list[int]] = {}
        for index in range(len(sample)):
            at = sample.coordinates(index)
            rows, columns = (
                self.tensor.dim_ranges(dim, at) if dim is not None else [(0, 1)] for dim in (drawn.rows, drawn.columns)
            )
            if rows and columns and not self.panel.fixed:
                ranks_of.setdefault((rows[0], columns[0]), []).append(index)
        return "".join(
            f'<i class="own {rank_classes(ranks)}" style="left:{_percent(column[0], frame.columns)};'
            f"top:{_percent(row[0], frame.rows)};width:{_percent(column[1] - column[0], frame.columns)};"
            f'height:{_percent(row[1] - row[0], frame.rows)}"></i>'
            for (row, column), ranks in ranks_of.items()
        )

    def _empty(self, left: float, top: float) -> str:
        """Return a box without area for the ranks that hold nothing."""
        group = self.titles.drawn_mesh.empty_ranks(self.tensor)
        if group is None:
            return ""
        lit = rank_classes(self.titles.drawn_mesh.sample.empty(self.tensor))
        text = f"∅ {group.count:,} rank{'s hold' if group.count != 1 else ' holds'} nothing: {group.ranks}"
        return (
            f'<div class="none {lit}" style="left:{left:.0f}px;top:{top:.0f}px">{html.escape(text, longest=50)}</div>'
        )

    def _ticks(self, left: float, top: float) -> str:
        """Return the indices at the upper and the left edge."""
        texts = []
        if self.drawn.columns is not None:
            for at, x in self._spaced(
                columns_of, self.first_column, size=self.frame.columns, pixels=self.frame.width, digit=_DIGIT
            ):
                texts.append(f'<span class="t" style="left:{left + x:.0f}px;top:{top - 13:.0f}px">{at:,}</span> ')
        if self.drawn.rows is not None:
            for at, y in self._spaced(rows_of, self.first_row, size=self.frame.rows, pixels=self.frame.height, digit=0):
                place = f"right:calc(100% - {left - 4:.0f}px);top:{top + y - 6:.0f}px"
                texts.append(f'<span class="t" style="{place}">{at:,}</span> ')
        return "".join(texts)

    def _spaced(
        self, side: Callable[[ShardBlock], tuple[Range, ...]], first: int, size: int, pixels: float, digit: float
    ) -> list[tuple[int, float]]:
        """Return ticks (index, pixels): starts of stretches and the end, as many as leave space for numbers."""
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
    """Return the drawing of a zoom; ``times`` is its magnification as text."""
    return replace(
        drawing,
        drawn=window.picture,
        panel=window.picture.panels[0],
        frame=frame,
        first_row=window.rows[0],
        first_column=window.columns[0],
        heading=f"{window.shards}, {times} times larger",
    )


def _cut(pixels: float, shards: int) -> str:
    """Return the pixels between two cuts of a folded block; at least 4, even if its shards are thinner."""
    return f"{max(pixels / shards, 4):.1f}px" if shards > 1 else "9999px"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%"


STYLE = (
    drawn_mesh.STYLE
    + block_titles.STYLE
    + """
.dsx .sw{display:inline-block;width:26px;height:13px;border:1px solid var(--dsx-fg);
vertical-align:-2px;margin-right:5px}
.dsx .shard{background:color-mix(in srgb,var(--x) 75%,var(--dsx-bg))}
.dsx .strided{background:color-mix(in srgb,var(--x) 45%,var(--dsx-bg));border-style:double}
.dsx .replicate{background:color-mix(in srgb,var(--x) 18%,var(--dsx-bg))}
.dsx .partial{background:color-mix(in srgb,var(--x) 18%,var(--dsx-bg));border-style:dashed}
.dsx .plain{background:var(--dsx-shade)}
.dsx .pic{position:relative;margin:2px 0 6px}
.dsx .pic *{position:absolute}
.dsx .pic .who{position:static}
.dsx .pic .b{border:1px solid var(--dsx-line);display:flex;align-items:center;justify-content:center;overflow:hidden;
font-size:var(--dsx-tiny);line-height:13px;background:var(--lit,color-mix(in srgb,var(--dsx-fg) 16%,var(--dsx-bg)));
outline:var(--ring,none);outline-offset:-2px}
.dsx .pic .b.odd{background:var(--lit,color-mix(in srgb,var(--dsx-fg) 7%,var(--dsx-bg)))}
.dsx .pic .b>span{position:relative;z-index:3;background:var(--dsx-bg);color:var(--dsx-fg);padding:0 3px;
border-radius:3px;white-space:nowrap}
.dsx .pic .b>.v{writing-mode:vertical-rl;padding:3px 0}
.dsx .pic .b.fold{border-style:dashed;background:var(--part,color-mix(in srgb,var(--dsx-fg) 16%,var(--dsx-bg)))}
.dsx .pic .b.fold.odd{background:var(--part,color-mix(in srgb,var(--dsx-fg) 7%,var(--dsx-bg)))}
.dsx .pic .own{visibility:var(--seen,hidden);background:#f0e442;border:1px solid #000;min-width:4px;min-height:4px;
z-index:2;pointer-events:none}
.dsx .pic .fold::after{content:"";position:absolute;inset:0;
background:repeating-linear-gradient(90deg,transparent 0 calc(var(--across) - 1px),var(--dsx-fg) 0 var(--across)),
repeating-linear-gradient(0deg,transparent 0 calc(var(--down) - 1px),var(--dsx-fg) 0 var(--down));opacity:.4}
.dsx .pic .who:hover .b{outline:2px solid var(--dsx-focus);z-index:2}
.dsx .pic .card{border:1px solid var(--dsx-fg)}
.dsx .pic .front{background:var(--dsx-bg);box-shadow:0 0 0 1px var(--dsx-fg)}
.dsx .pic .over{inset:0;z-index:1;pointer-events:none;background-color:transparent}
.dsx .pic .lens{border:2px solid var(--dsx-fg);z-index:2;pointer-events:none;border-radius:2px}
.dsx .pic .none{border:1px dashed var(--dsx-fg);font-size:11px;line-height:14px;padding:0 4px;white-space:nowrap;
background:var(--lit,none);outline:var(--ring,none)}
.dsx .pic .t{font:10px/12px var(--dsx-mono);color:var(--dsx-dim);white-space:nowrap}
.dsx .pics{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:flex-start}
@media (forced-colors:active){
.dsx .pic,.dsx .sw,.dsx .ranks,.dsx .axis{forced-color-adjust:none;color:CanvasText;
--dsx-fg:CanvasText;--dsx-bg:Canvas;--dsx-dim:CanvasText;--dsx-line:CanvasText}}
.dsx .pic .over:is(.replicate,.partial){background:color-mix(in srgb,var(--x) 14%,transparent)}
"""
)


def picture_html(
    tensor: PlacedTensor,
    drawn_mesh: DrawnMesh,
    most_blocks: int = 96,
    with_zoom: bool = True,
    around: tuple[int, tuple[int, ...]] | None = None,
) -> str:
    """Return the picture of one tensor, or a sentence if there is nothing to draw.

    Args:
        tensor: the tensor to draw.
        drawn_mesh: colors and ranks of the sharding.
        most_blocks: maximal number of blocks; if there are more, shards of equal size are folded into one block.
        with_zoom: whether to magnify some shards of a folded picture next to it.
        around: (rank, its mesh coordinates) to highlight and magnify, with the shards around; None for the first
            shards.
    """
    if not tensor.numel:
        return '<p class="dim">No elements: every rank holds an empty tensor.</p>'
    drawn = picture(tensor, most_blocks)
    frame = picture_frame(tensor, drawn)
    rank, at = around or (-1, None)
    titles = Titles(tensor, drawn_mesh.choosing(at))
    which = "the first shards" if at is None else f"shards around rank {rank:,}'s"
    window = zoom(tensor, drawn, at, which) if with_zoom else None
    drawings = [PanelDrawing(tensor, drawn, panel=panel, frame=frame, titles=titles) for panel in drawn.panels]
    panels = [drawing.html(window, with_empty=drawing is drawings[-1]) for drawing in drawings]
    if window is not None:
        panels.append(zoomed(drawings[0], window, *_magnified(window, frame)).html())
    pictures = f'<div class="pics">{"".join(panels)}</div>'
    return f'<div class="scroll" tabindex="0">{pictures}</div>{_remarks(tensor, drawn, frame)}'


def _magnified(window: Zoom, whole: Frame) -> tuple[Frame, str]:
    """Return the frame of a zoom, and how many times larger it is than the whole picture."""
    rows, columns = (high - low for low, high in (window.rows, window.columns))
    if window.picture.rows is None:
        frame = Frame(whole.width, 36, 1, columns)
    else:
        frame = frame_of(rows, columns, len(window.picture.down), len(window.picture.across))
    by_rows = frame.height / rows * whole.rows / whole.height
    return frame, _times(max(by_rows, frame.width / columns * whole.columns / whole.width))


def _remarks(tensor: PlacedTensor, drawn: Picture, frame: Frame) -> str:
    """Return the sentences below a picture on its dims, proportions and folded shards."""
    remarks = []
    if drawn.rows is not None:
        remarks.append(f"Dim {drawn.rows} runs down, dim {drawn.columns} across.")
    if drawn.rows is not None and frame.stretched > 1.05:
        thin = drawn.columns if frame.width / frame.columns > frame.height / frame.rows else drawn.rows
        remarks.append(f"Dim {thin} is drawn {_times(frame.stretched)} times too thick to be visible.")
    hidden = [
        dim for dim in range(len(tensor.shape)) if dim not in (drawn.rows, drawn.columns) and not tensor.cuts(dim)
    ]
    if hidden:
        remarks.append(f"Not drawn, because whole on every rank: {_dims_text(tensor, hidden)}.")
    if any(block.folded > 1 for panel in drawn.panels for block in panel.blocks):
        remarks.append(
            "Dashed: several equal shards side by side; the lines are the cuts between them. Striped if highlighted: "
            "one of them belongs to the rank."
        )
    if drawn.hidden_panels:
        remarks.append(f"{drawn.hidden_panels:,} more panels like these are not drawn.")
    return f'<p class="dim">{" ".join(remarks)}</p>' if remarks else ""


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"


def _dims_text(tensor: PlacedTensor, dims: Sequence[int]) -> str:
    return ", ".join(f"dim {dim} ({tensor.shape[dim]:,})" for dim in dims)


def swatch(placement: Placement | None, color: str = "") -> str:
    """Return swatch and text of a placement; ``color``: CSS class of its axis, see `axis_class`."""
    kind = placement.kind if placement is not None else "plain"
    text = str(placement) if placement is not None else "plain"
    tooltip = f' title="{html.escape(text)}"' if kind == "strided" else ""
    classes = " ".join(filter(None, ("sw", kind, color)))
    return f'<span class="{classes}"></span><code{tooltip}>{html.escape(readable(text))}</code>'

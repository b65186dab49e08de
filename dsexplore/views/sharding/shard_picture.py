"""One tensor as a picture: its shards in true proportion, each kind of placement with its letter, hatch and colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsexplore.sharding.chunks import Range, ranges_text
from dsexplore.sharding.mesh import Mesh
from dsexplore.sharding.placement import Placement
from dsexplore.sharding.tensor import Placed
from dsexplore.views.page import html
from dsexplore.views.page.theme import BLUE, GREEN, PURPLE, VERMILION
from dsexplore.views.sharding.block_titles import Titles
from dsexplore.views.sharding.picture_frame import Frame, columns_of, orders, picture_frame, rows_of
from dsexplore.views.sharding.shard_blocks import Block, Panel, Picture, picture

_MARGIN = 58

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
.dsx .pic .fold::after{{content:"";position:absolute;inset:0;
background:repeating-linear-gradient(90deg,transparent 0 calc(var(--x) - 1px),var(--dsx-fg) 0 var(--x)),
repeating-linear-gradient(0deg,transparent 0 calc(var(--y) - 1px),var(--dsx-fg) 0 var(--y));opacity:.4}}
.dsx .pic .who:hover .b{{outline:2px solid var(--dsx-focus);z-index:2}}
.dsx .pic .card{{border:1px solid var(--dsx-fg)}}
.dsx .pic .front{{background:var(--dsx-bg)}}
.dsx .pic .over{{inset:0;z-index:1;pointer-events:none;background-color:transparent}}
.dsx .pic .over.replicate{{background:radial-gradient(circle,{GREEN} 1.2px,transparent 1.6px) 0 0/9px 9px}}
.dsx .pic .over.partial{{background:repeating-linear-gradient(45deg,{VERMILION} 0 1.5px,transparent 1.5px 9px)}}
.dsx .pic .t{{font:10px/12px var(--dsx-mono);color:var(--dsx-dim);white-space:nowrap}}
.dsx .pics{{display:flex;flex-wrap:wrap;gap:4px 18px}}
"""


def picture_html(tensor: Placed, mesh: Mesh, most_blocks: int = 96) -> str:
    """The picture of one tensor; a sentence where there is nothing to draw."""
    if not tensor.numel:
        return '<p class="dim">No elements: every rank holds an empty tensor.</p>'
    drawn = picture(tensor, most_blocks)
    frame = picture_frame(tensor, drawn)
    titles = Titles(tensor, mesh)
    panels = "".join(_panel(tensor, drawn, panel, frame, titles) for panel in drawn.panels)
    return f'<div class="scroll"><div class="pics">{panels}</div></div>{_remarks(tensor, drawn, frame)}'


def _remarks(tensor: Placed, drawn: Picture, frame: Frame) -> str:
    remarks = []
    if drawn.rows is not None:
        remarks.append(f"Dim {drawn.rows} runs down, dim {drawn.columns} across.")
    if drawn.rows is not None and frame.stretched > 1.05:
        thin = drawn.columns if frame.width / frame.columns > frame.height / frame.rows else drawn.rows
        remarks.append(f"Dim {thin} is drawn {_times(frame.stretched)} times too thick, to be seen.")
    hidden = [
        dim for dim in range(len(tensor.shape)) if dim not in (drawn.rows, drawn.columns) and not tensor.cuts(dim)
    ]
    if hidden:
        remarks.append(f"Not drawn, because whole on every rank: {_dims_text(tensor, hidden)}.")
    if any(block.folded > 1 for panel in drawn.panels for block in panel.blocks):
        remarks.append("Dashed: shards that are alike and lie side by side, folded; the lines are their cuts.")
    if drawn.hidden_panels:
        remarks.append(f"{drawn.hidden_panels:,} more panels like these are not drawn.")
    return f'<p class="dim">{" ".join(remarks)}</p>' if remarks else ""


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
        for at, x in _spaced(panel, columns_of, frame.columns, frame.width, 6.2):
            texts.append(f'<span class="t" style="left:{left + x:.0f}px;top:{top - 13}px">{at:,}</span>')
    if drawn.rows is not None:
        for at, y in _spaced(panel, rows_of, frame.rows, frame.height, 0):
            place = f"right:calc(100% - {left - 4}px);top:{top + y - 6:.0f}px"
            texts.append(f'<span class="t" style="{place}">{at:,}</span>')
    return "".join(texts)


def _spaced(
    panel: Panel, side: Callable[[Block], tuple[Range, ...]], size: int, pixels: float, digit: float
) -> list[tuple[int, float]]:
    """(index, pixels) where stretches begin, and the end: as many as have room for their number."""
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


def _blocks(panel: Panel, frame: Frame, titles: Titles) -> str:
    down, across = orders(panel)
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
    cuts = f"--x:{_cut(width, block.folded_across)};--y:{_cut(height, block.folded_down)};" if fold else ""
    return (
        f'<div class="b {look}{fold}" style="{cuts}left:{_percent(column[0], frame.columns)};'
        f"top:{_percent(row[0], frame.rows)};width:{_percent(column[1] - column[0], frame.columns)};"
        f'height:{_percent(row[1] - row[0], frame.rows)}">{shown}</div>'
    )


def _cut(pixels: float, shards: int) -> str:
    """The pixels between two cuts of a folded block; at least 4, where its shards are too thin to be drawn."""
    return f"{max(pixels / shards, 4):.1f}px" if shards > 1 else "9999px"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%"


def swatch(placement: Placement | None) -> str:
    """Hatch, colour and letter of a placement."""
    kind = placement.kind if placement is not None else "plain"
    text = str(placement) if placement is not None else "plain"
    return f'<span class="sw {kind}"></span><code>{html.escape(text)}</code>'

"""One tensor as a picture: shards in true proportion, brackets that name the axis at each cut, one colour per axis."""

from __future__ import annotations

from collections.abc import Sequence

from dsexplore.placement_text import Placement
from dsexplore.sharding.tensor import Placed
from dsexplore.views.page import html
from dsexplore.views.sharding import axis_marks, brackets
from dsexplore.views.sharding.block_titles import Titles
from dsexplore.views.sharding.drawn_mesh import DrawnMesh
from dsexplore.views.sharding.panel_drawing import PanelDrawing, zoomed
from dsexplore.views.sharding.picture_frame import Frame, frame_of, picture_frame
from dsexplore.views.sharding.shard_blocks import Picture, picture
from dsexplore.views.sharding.zoom import Zoom, zoom

_HATCHES = {
    # kind: what lies over a swatch or a picture in the axis's colour
    "strided": "repeating-linear-gradient(90deg,var(--x) 0 2px,transparent 2px 6px)",
    "replicate": "radial-gradient(circle,var(--x) 1.4px,transparent 1.9px) var(--o,0) var(--o,0)/9px 9px",
    "partial": "repeating-linear-gradient(45deg,var(--x) 0 2px,transparent 2px 8px)",
}

STYLE = (
    axis_marks.STYLE
    + brackets.STYLE
    + """
.dsx .sw{display:inline-block;width:26px;height:13px;border:1px solid var(--dsx-fg);
vertical-align:-2px;margin-right:5px}
.dsx .shard{background:color-mix(in srgb,var(--x) 60%,var(--dsx-bg))}
"""
    + "".join(
        f".dsx .{kind}{{background:{hatch},color-mix(in srgb,var(--x) 14%,var(--dsx-bg))}}\n"
        for kind, hatch in _HATCHES.items()
    )
    + """
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
"""
    + "".join(
        f".dsx .pic .over.{kind}{{background:{_HATCHES[kind]};opacity:.7}}\n" for kind in ("replicate", "partial")
    )
)


def picture_html(
    tensor: Placed,
    drawn_mesh: DrawnMesh,
    most_blocks: int = 96,
    with_zoom: bool = True,
    around: tuple[int, tuple[int, ...]] | None = None,
) -> str:
    """The picture of one tensor; a sentence where there is nothing to draw.

    Args:
        tensor: what is drawn.
        drawn_mesh: colours and ranks of the sharding that it is of.
        most_blocks: of more shards, those that are alike are drawn as one.
        with_zoom: whether the first shards of such are drawn large beside it.
        around: a rank and its place in the mesh, whose shards are lit and drawn large, with those around them.
    """
    if not tensor.numel:
        return '<p class="dim">No elements: every rank holds an empty tensor.</p>'
    drawn = picture(tensor, most_blocks)
    frame = picture_frame(tensor, drawn)
    rank, at = around or (-1, None)
    titles = Titles(tensor, drawn_mesh.choosing(at))
    whose = "the first shards" if at is None else f"shards around rank {rank:,}'s"
    window = zoom(tensor, drawn, at, whose) if with_zoom else None
    drawings = [PanelDrawing(tensor, drawn, panel, frame, titles) for panel in drawn.panels]
    panels = [each.html(window, with_empty=each is drawings[-1]) for each in drawings]
    if window is not None:
        panels.append(zoomed(drawings[0], window, *_magnified(window, frame)).html())
    return f'<div class="scroll"><div class="pics">{"".join(panels)}</div></div>{_remarks(tensor, drawn, frame)}'


def _magnified(window: Zoom, whole: Frame) -> tuple[Frame, str]:
    """The frame of a zoom, and how many times larger it is than the picture of all."""
    rows, columns = (high - low for low, high in (window.rows, window.columns))
    if window.picture.rows is None:
        frame = Frame(whole.width, 36, 1, columns)
    else:
        frame = frame_of(rows, columns, len(window.picture.down), len(window.picture.across))
    by_rows = frame.height / rows * whole.rows / whole.height
    return frame, _times(max(by_rows, frame.width / columns * whole.columns / whole.width))


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
        remarks.append(
            "Dashed: shards that are alike and lie side by side, folded; the lines are their cuts. Hatched when lit: "
            "one of them is the rank's."
        )
    if drawn.hidden_panels:
        remarks.append(f"{drawn.hidden_panels:,} more panels like these are not drawn.")
    return f'<p class="dim">{" ".join(remarks)}</p>' if remarks else ""


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"


def _dims_text(tensor: Placed, dims: Sequence[int]) -> str:
    return ", ".join(f"dim {dim} ({tensor.shape[dim]:,})" for dim in dims)


def swatch(placement: Placement | None, colour: str = "") -> str:
    """Hatch and text of a placement; ``colour``: the class of its axis, of `AxisMarks.kind`."""
    kind = placement.kind if placement is not None else "plain"
    text = str(placement) if placement is not None else "plain"
    return f'<span class="sw {kind}{" " * bool(colour)}{colour}"></span><code>{html.escape(text)}</code>'

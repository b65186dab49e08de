"""The ranks as a grid of buttons: a rank that is pointed at or chosen lights what it holds in every picture.

CSS does it, `:has()` on what is hovered or checked, so that it works without kernel and JavaScript, from the keyboard
too: the ranks are radio buttons, which the arrow keys go through.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsexplore.sharding.tensor import Placed
from dsexplore.views.page import html
from dsexplore.views.sharding.block_titles import place_text
from dsexplore.views.sharding.drawn_mesh import DrawnMesh
from dsexplore.views.sharding.shard_blocks import picture

STYLE = """
.dsx .ranks{border:0;margin:2px 0 6px;padding:0;min-width:0}
.dsx .ranks legend{padding:0;margin-bottom:2px}
.dsx .ranks>div{display:flex;flex-wrap:wrap;gap:2px;margin-bottom:2px;align-items:center}
.dsx .ranks b{font-weight:400;font-size:var(--dsx-tiny);min-width:48px;margin-right:4px}
.dsx .ranks label{position:relative;min-width:max(24px,var(--w));padding:0 4px;
font:var(--dsx-tiny)/22px var(--dsx-font);
text-align:center;border:1px solid var(--dsx-line);cursor:pointer;background:var(--lit,none);outline:var(--ring,none);
color:var(--ink,inherit)}
.dsx .ranks .o{border-style:dashed;border-color:var(--dsx-fg)}
.dsx .ranks input{appearance:none;position:absolute;inset:0;width:100%;height:100%;margin:0;cursor:pointer}
.dsx .axis{border-bottom:3px solid var(--x);margin-right:10px;white-space:nowrap}
"""
LIT = (
    "--lit:#f0e442;--ink:#000;--ring:2px solid var(--dsx-fg);--edge:var(--dsx-fg);--seen:visible;"
    "--part:repeating-linear-gradient(135deg,#f0e442 0 4px,transparent 4px 9px),var(--dsx-bg);"
    "--some:color-mix(in srgb,#f0e442 45%,var(--dsx-bg))"
)
"""CSS variables of what a rank holds, lit."""


def rank_grid(drawn_mesh: DrawnMesh, tensors: Sequence[Placed]) -> str:
    """The grid of the sampled ranks; empty for a mesh of one rank.

    Args:
        drawn_mesh: the ranks and the colours of the axes.
        tensors: a rank that holds nothing of any of them is marked so.
    """
    sample, mesh = drawn_mesh.sample, drawn_mesh.mesh
    if mesh.size == 1:
        return ""
    nothing = set.intersection(*(set(sample.empty(tensor)) for tensor in tensors)) if tensors else set()
    across = len(sample.chosen[-1])
    rows = "".join(_row(drawn_mesh, start, across, nothing) for start in range(0, len(sample), across))
    few = f" {len(sample):,} of {mesh.size:,} ranks stand here: first, last, where shards change in size, some between."
    part = "" if sample.is_whole else few
    empty = " ∅: holds nothing." if nothing else ""
    width = 14 + 7 * (len(str(sample.numbers.max())) + 2 * bool(nothing))
    return (
        f'<form method="dialog"><fieldset class="ranks" style="--w:{width}px"><legend>Ranks by '
        f'{axis_key(drawn_mesh)}<span class="dim">Point at a rank, or choose one, to light what it holds.{part}{empty}'
        f"</span></legend>{rows}</fieldset></form>"
    )


def axis_key(drawn_mesh: DrawnMesh) -> str:
    """The names of the mesh's axes in their colours."""
    return "".join(
        f'<span class="axis {drawn_mesh.marks.kind(name)}">{html.name(name, 30)} {size:,}</span>'
        for name, size in zip(drawn_mesh.mesh.axes, drawn_mesh.mesh.shape, strict=True)
    )


def _row(drawn_mesh: DrawnMesh, start: int, across: int, nothing: set[int]) -> str:
    sample, axes = drawn_mesh.sample, drawn_mesh.mesh.axes
    outer = sample.coordinates(start)[:-1]
    named = ", ".join(place_text(axis, (at, at + 1)) for axis, at in zip(axes, outer, strict=False))
    cells, before = [], None
    for index in range(start, start + across):
        at = sample.coordinates(index)
        if before is not None and at[-1] > before + 1:
            cells.append("…")
        before = at[-1]
        where = ", ".join(place_text(axis, (own, own + 1)) for axis, own in zip(axes, at, strict=True))
        mark, text = (" o", "∅ ") if index in nothing else ("", "")
        cells.append(
            f'<label class="h{index}{mark}" title="{html.escape(where, 120)}">'
            f'<input type="radio" name="rank" class="h{index}">{text}{sample.numbers[index]}</label>'
        )
    head = f"<b>{html.escape(named, 60)}</b>" if named else ""
    return f"<div>{head}{''.join(cells)}</div>"


def lit_style(drawn_mesh: DrawnMesh, tensors: Sequence[Placed]) -> str:
    """The rules that light what a rank holds, and name the tensors of which it holds nothing."""
    sample = drawn_mesh.sample
    if drawn_mesh.mesh.size == 1:
        return ""
    lit = ",".join(f".dsx:has(.h{i}:is(:hover,:checked)) .h{i}" for i in range(len(sample)))
    every = ".dsx:has(.ranks label:hover,.ranks :checked) .ha"
    empty = sorted({index for tensor in tensors for index in sample.empty(tensor)} if len(tensors) > 1 else ())
    nothing = ",".join(f".dsx:has(.h{i}:is(:hover,:checked)) .e{i}" for i in empty)
    return f"{lit},{every}{{{LIT}}}\n" + (f'{nothing}{{--no:" ∅ nothing of it"}}\n' if nothing else "")


def thumbnail(tensor: Placed, drawn_mesh: DrawnMesh, width: int = 64, height: int = 28) -> str:
    """A tensor's shards as a small picture, true in proportion, lit as the large one is."""
    if not tensor.numel:
        return ""
    drawn = picture(tensor, 16, 1)
    rows = tensor.shape[drawn.rows] if drawn.rows is not None else 1
    columns = tensor.shape[drawn.columns] if drawn.columns is not None else 1
    scale = min(width / columns, height / rows)
    wide, high = (width, 7) if drawn.rows is None and tensor.shape else (max(scale * columns, 5), max(scale * rows, 5))
    paths = []
    for number, block in enumerate(drawn.panels[0].blocks):
        boxes = "".join(
            f"M{_short(x0 / columns * wide)} {_short(y0 / rows * high)}h{_short((x1 - x0) / columns * wide)}"
            f"v{_short((y1 - y0) / rows * high)}H{_short(x0 / columns * wide)}z"
            for y0, y1 in block.rows
            for x0, x1 in block.columns
        )
        odd = (" q" if number % 2 else "") + (" f" if block.folded > 1 else "")
        paths.append(f'<path class="{drawn_mesh.lit_by(tensor, block)}{odd}" d="{boxes}"/>')
    return f'<svg width="{wide:.0f}" height="{high:.0f}" aria-hidden="true">{"".join(paths)}</svg>'


def _short(pixels: float) -> str:
    return f"{pixels:.1f}".removesuffix(".0")

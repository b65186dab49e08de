"""The ranks as a grid of buttons that highlight a rank's shards in every picture, and tables of what ranks hold.

CSS highlights the shards, by `:has()` on the hovered or checked button, so no kernel and no JavaScript is needed. The
ranks are radio buttons, so the arrow keys work too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsexplore._internal.mesh import Mesh
from dsexplore._internal.placement_text import Placement
from dsexplore._internal.sharding.chunks import ranges_text
from dsexplore._internal.sharding.layout import Sharding, index_text
from dsexplore._internal.sharding.rank_groups import RankGroup
from dsexplore._internal.sharding.sharding_text import shape_text
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, prose, table, text
from dsexplore._internal.views.sharding.block_titles import place_text
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh, axis_class
from dsexplore._internal.views.sharding.shard_blocks import picture
from dsexplore._internal.views.sharding.shard_picture import swatch

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
"""CSS variables of highlighted blocks."""


def rank_grid(drawn_mesh: DrawnMesh, tensors: Sequence[PlacedTensor]) -> str:
    """Return the grid of the sampled ranks, or ``""`` for a mesh of one rank.

    Args:
        drawn_mesh: sampled ranks, and colors of the axes.
        tensors: tensors; a rank that holds nothing of any of them is marked.
    """
    sample, mesh = drawn_mesh.sample, drawn_mesh.mesh
    if mesh.size == 1:
        return ""
    nothing = set.intersection(*(set(sample.empty(tensor)) for tensor in tensors)) if tensors else set()
    across = len(sample.chosen[-1])
    rows = "".join(_row(drawn_mesh, start, across, nothing) for start in range(0, len(sample), across))
    part = ""
    if not sample.is_whole:
        part = (
            f" {len(sample):,} of {mesh.size:,} ranks are shown: the first, the last, those where the size of shards "
            "changes, and some between."
        )
    empty = " ∅: holds nothing." if nothing else ""
    width = 14 + 7 * (len(str(sample.numbers.max())) + 2 * bool(nothing))
    return (
        f'<form method="dialog"><fieldset class="ranks" style="--w:{width}px"><legend>Ranks by '
        f'{axis_key(drawn_mesh)} <span class="dim">Point at a rank, or choose one, to highlight its shards.'
        f"{part}{empty}</span></legend>{rows}</fieldset></form>"
    )


def axis_key(drawn_mesh: DrawnMesh) -> str:
    """Return the names of the mesh's axes in their colors."""
    return " ".join(
        f'<span class="axis {axis_class(name)}">{html.name(name, longest=30)} {size:,}</span>'
        for name, size in zip(drawn_mesh.mesh.axes, drawn_mesh.mesh.shape, strict=True)
    )


def _row(drawn_mesh: DrawnMesh, start: int, across: int, nothing: set[int]) -> str:
    """Return ``across`` ranks of the sample from index ``start`` on; ``nothing``: indices of ranks without shards."""
    sample, axes = drawn_mesh.sample, drawn_mesh.mesh.axes
    outer = sample.coordinates(start)[:-1]
    named = ", ".join(place_text(axis, (at, at + 1)) for axis, at in zip(axes, outer, strict=False))
    cells, before = [], None
    for index in range(start, start + across):
        at = sample.coordinates(index)
        if before is not None and at[-1] > before + 1:
            cells.append("…")
        before = at[-1]
        where = ", ".join(place_text(axis, (place, place + 1)) for axis, place in zip(axes, at, strict=True))
        mark, text = (" o", "∅ ") if index in nothing else ("", "")
        cells.append(
            f'<label class="h{index}{mark}" title="{html.escape(where, longest=120)}">'
            f'<input type="radio" name="rank" class="h{index}">{text}{sample.numbers[index]}</label>'
        )
    head = f"<b>{html.escape(named, longest=60)}</b>" if named else ""
    return f"<div>{head}{''.join(cells)}</div>"


def lit_style(drawn_mesh: DrawnMesh, tensors: Sequence[PlacedTensor]) -> str:
    """Return CSS that highlights the shards of a rank, and marks the tensors of which it has none."""
    sample = drawn_mesh.sample
    if drawn_mesh.mesh.size == 1:
        return ""
    lit = ",".join(f".dsx:has(.h{i}:is(:hover,:checked)) .h{i}" for i in range(len(sample)))
    every = ".dsx:has(.ranks label:hover,.ranks :checked) .ha"
    empty = sorted({index for tensor in tensors for index in sample.empty(tensor)} if len(tensors) > 1 else ())
    nothing = ",".join(f".dsx:has(.h{i}:is(:hover,:checked)) .e{i}" for i in empty)
    return f"{lit},{every}{{{LIT}}}\n" + (f'{nothing}{{--no:" ∅ no shard"}}\n' if nothing else "")


def thumbnail(tensor: PlacedTensor, drawn_mesh: DrawnMesh, width: int = 64, height: int = 28) -> str:
    """Return a small picture of a tensor's shards in true proportions, highlighted like the large picture."""
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
        paths.append(f'<path class="{drawn_mesh.classes_of(tensor, block)}{odd}" d="{boxes}"/>')
    return f'<svg width="{wide:.0f}" height="{high:.0f}" aria-hidden="true">{"".join(paths)}</svg>'


def _short(pixels: float) -> str:
    return f"{pixels:.1f}".removesuffix(".0")


MOST_GROUPS, MOST_RANKS = 12, 64
"""Maximal number of rows in the table of shapes, and of ranks in the table of ranks."""
_REDUCED = {
    "sum": "summed",
    "avg": "averaged",
    "product": "multiplied",
    "min": "reduced by min",
    "max": "reduced by max",
}


def meanings(tensor: PlacedTensor) -> list[str]:
    """Return a phrase per placement that says what it does with the tensor."""
    before: dict[int, list[str]] = {}
    sentences = []
    for placement, axis in zip(tensor.placements, tensor.axes, strict=True):
        sentences.append(_meaning(placement, axis.size, tensor, before.get(placement.dim, [])))
        if placement.kind == "shard":  # a strided shard is cut after the axes that follow it
            before.setdefault(placement.dim, []).append(axis.name)
    return sentences


def _meaning(placement: Placement, parts: int, tensor: PlacedTensor, before: list[str]) -> str:
    """Return what a placement does on an axis of ``parts`` ranks; ``before``: axes that cut its dim before."""
    if placement.kind == "replicate":
        return f"{parts:,} copies" if parts > 1 else "one copy"
    if placement.kind == "partial":
        how = _REDUCED.get(placement.reduce_op, f"reduced by {placement.reduce_op}")
        return f"{parts:,} partial values of the whole tensor, still to be {how}"
    size = tensor.shape[placement.dim]
    what = f"dim {placement.dim}" if not before else f"each piece of {', '.join(before)} along dim {placement.dim}"
    if placement.kind == "strided" and placement.pieces > 1:
        return f"cuts each of {placement.pieces:,} pieces of {what} in {parts:,}"
    return f"cuts {what} in {parts:,}" + ("" if before else f": {_sizes(size, parts)}")


def _sizes(size: int, parts: int) -> str:
    """Return the sizes of a dim's parts: ``"4 each"``, ``"3, 3, 3, 1"``; for many, ``"64 (×2,003), 32, 0 (×44)"``."""
    chunk = -(-size // parts)
    full = size // chunk if chunk else 0
    remainder = size - full * chunk
    counted = [(chunk, full), (remainder, int(remainder > 0)), (0, parts - full - (remainder > 0))]
    if not remainder and parts == full:
        return f"{chunk:,} each"
    if parts <= 8:
        return ", ".join(f"{length:,}" for length, times in counted for _ in range(times))
    return ", ".join(f"{length:,} (×{times:,})" if times > 1 else f"{length:,}" for length, times in counted if times)


def axis_table(tensor: PlacedTensor, drawn_mesh: DrawnMesh) -> str:
    """Return a table of the axes with their placements, and what these do."""
    if not tensor.placements:
        return f"<p>{swatch(None)} no placements: each of {drawn_mesh.mesh.size:,} ranks holds a whole tensor</p>"
    rows = zip(tensor.axes, tensor.placements, meanings(tensor), strict=True)
    columns = (
        text("axis", lambda row: html.name(row[0].name, longest=48)),
        Column("ranks", lambda row: f"{row[0].size:,}"),
        text("placement", lambda row: swatch(row[1], axis_class(row[0].name))),
        prose("what it does", lambda row: html.escape(row[2])),
    )
    return table(columns, rows)


def held_table(shown: Sharding, tensor: PlacedTensor) -> str:
    """Return a table of the shapes of shards, with the ranks that hold them."""

    def held(group: RankGroup) -> str:
        return f"<code>{html.escape(shape_text(group.value))}</code>" + ("" if math.prod(group.value) else " nothing")

    def example(group: RankGroup) -> str:
        indices = f"rank {shown.mesh.rank(group.first)}: {index_text(tensor.ranges(group.first))}"
        return f"<code>{html.escape(indices if math.prod(group.value) else '–')}</code>"

    columns = (
        prose("ranks", lambda group: html.escape(group.ranks)),
        Column("how many", lambda group: f"{group.count:,}"),
        text("hold", held),
        Column("bytes each", lambda group: format_bytes(math.prod(group.value) * tensor.dtype.itemsize)),
        prose("for example", example),
    )
    groups = shown.shapes(tensor)
    hidden = len(groups) - MOST_GROUPS
    more = html.note(f"and {hidden:,} more kinds: see to_frame()" if hidden > 0 else "")
    return table(columns, groups[:MOST_GROUPS], stacks=True) + more


def rank_table(shown: Sharding, tensor: PlacedTensor) -> str:
    """Return a collapsed table with a row per rank, or ``""`` if ranks are too many or only one."""
    if not 1 < shown.mesh.size <= MOST_RANKS:
        return ""
    mesh, dtype = shown.mesh, tensor.dtype
    columns = (
        Column("rank", lambda at: str(mesh.rank(at))),
        *(_coordinate_column(number, axis) for number, axis in enumerate(mesh.axes)),
        *(_range_column(tensor, dim) for dim in range(len(tensor.shape))),
        text("holds", lambda at: html.escape(shape_text(tensor.local_shape(at)))),
        Column("bytes", lambda at: format_bytes(math.prod(tensor.local_shape(at)) * dtype.itemsize)),
    )
    return html.details("Rank by rank", table(columns, sorted(_places(mesh), key=mesh.rank)))


def _coordinate_column(number: int, axis: str) -> Column:
    return Column(axis, lambda at: str(at[number]))


def _range_column(tensor: PlacedTensor, dim: int) -> Column:
    return text(f"dim {dim}", lambda at: f"<code>{html.escape(ranges_text(list(tensor.ranges(at))[dim]))}</code>")


def _places(mesh: Mesh) -> list[tuple[int, ...]]:
    """Return the coordinates of all ranks, in mesh order."""
    plain = Mesh(mesh.axes, mesh.shape)
    return [plain.coordinates(position) for position in range(mesh.size)]

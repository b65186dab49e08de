"""The tensors of a model on a mesh: memory by rank, and a line per kind of parameter that opens its picture."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dsexplore._internal.sharding.layout import Sharding, dtype_name
from dsexplore._internal.sharding.memory import PARTS, Assumptions, memory_groups
from dsexplore._internal.sharding.rank_groups import RankGroup
from dsexplore._internal.sharding.sharding_text import shape_text
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, bar, prose, table
from dsexplore._internal.views.page.theme import MEMORY
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh, axis_class
from dsexplore._internal.views.sharding.rank_grid import axis_table, held_table, rank_grid, thumbnail
from dsexplore._internal.views.sharding.shard_picture import picture_html, swatch

MOST_LINES, MOST_PICTURES, MOST_BLOCKS, MOST_GROUPS = 80, 24, 128, 8
"""Maximal numbers of lines, of lines with a picture, of blocks in all pictures, and of groups of ranks."""

STYLE = (
    "".join(f".dsx .m{part[0]}{{{mark.css}}}\n" for part, mark in MEMORY.items())
    + """
.dsx .list{min-width:748px;border-top:1px solid var(--dsx-line)}
.dsx .line{display:flex;gap:8px;align-items:baseline;padding:1px 4px}
.dsx .line:hover{background:var(--dsx-shade)}
.dsx .line.head{font-weight:600;border-bottom:1px solid var(--dsx-line)}
.dsx .list summary{list-style:none}
.dsx .list summary::-webkit-details-marker{display:none}
.dsx .line .n{flex:1 1 0;min-width:112px;overflow-wrap:anywhere;position:relative;padding-left:16px}
.dsx .list summary .n::before{content:"▸";position:absolute;left:2px;color:var(--dsx-dim)}
.dsx .list details[open]>summary .n::before{content:"▾"}
.dsx .line .n::after{content:var(--no,"");font-weight:600}
.dsx .line .v{flex:0 0 66px;align-self:center;line-height:0}
.dsx .line svg{overflow:visible}
.dsx .line path{fill:var(--lit,color-mix(in srgb,var(--dsx-fg) 34%,var(--dsx-bg)));stroke:var(--edge,var(--dsx-bg));
stroke-width:.6}
.dsx .line .q{fill:var(--lit,color-mix(in srgb,var(--dsx-fg) 18%,var(--dsx-bg)))}
.dsx .line .f{fill:var(--some,color-mix(in srgb,var(--dsx-fg) 34%,var(--dsx-bg)))}
.dsx .line .s{flex:0 0 112px}
.dsx .line .p{flex:0 0 150px}
.dsx .line .p>span{display:inline-block;white-space:nowrap;margin-right:8px}
.dsx .line .c{flex:0 0 70px;text-align:right;font-variant-numeric:tabular-nums}
.dsx .line b{display:block;font-weight:400;white-space:nowrap}
.dsx .list .open{padding:2px 4px 10px 18px}
"""
)


@dataclass(frozen=True)
class ParameterKind:
    """Parameters whose names differ only in a number: ``layers.*.weight``."""

    name: str
    """Name with ``*`` where the names of the parameters differ."""
    tensors: tuple[PlacedTensor, ...]

    @property
    def first(self) -> PlacedTensor:
        """Tensor whose picture stands for all."""
        return self.tensors[0]


def fold_names(tensors: tuple[PlacedTensor, ...]) -> list[ParameterKind]:
    """Group tensors of equal shape, dtype and placements whose names differ only in numbers, in order."""
    groups: dict[tuple[object, ...], list[PlacedTensor]] = {}
    for tensor in tensors:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", tensor.name)
        key = (
            pattern,
            tensor.shape,
            tensor.dtype,
            tensor.placements,
            tensor.axes,
            tensor.requires_grad,
            bool(tensor.also),
        )
        groups.setdefault(key, []).append(tensor)
    return [ParameterKind(_name(tuple(members), str(key[0])), tuple(members)) for key, members in groups.items()]


def _name(tensors: tuple[PlacedTensor, ...], pattern: str) -> str:
    """Return one name for grouped tensors, with ``*`` where their names differ: ``encoder.0.layers.*.weight``."""
    if len(tensors) == 1:
        return tensors[0].name
    names = zip(*(tensor.name.split(".") for tensor in tensors), strict=True)
    components = zip(pattern.split("."), names, strict=True)
    return ".".join(component if len({*of_tensors}) > 1 else of_tensors[0] for component, of_tensors in components)


def model_html(drawn_mesh: DrawnMesh) -> str:
    """Return memory by rank, the grid of ranks, and the parameters as HTML."""
    shown = drawn_mesh.shown
    if not shown.tensors:
        return '<p class="dim">No parameters.</p>'
    return _memory_html(shown) + rank_grid(drawn_mesh, shown.tensors) + _list_html(drawn_mesh)


def text_lines(shown: Sharding) -> list[str]:
    """Return a line for each of the eight largest kinds of parameters."""
    kinds = sorted(fold_names(shown.tensors), key=lambda kind: -kind.first.nbytes * len(kind.tensors))
    lines = []
    for kind in kinds[:8]:
        times = f" ×{len(kind.tensors)}" if len(kind.tensors) > 1 else ""
        placements = ", ".join(map(str, kind.first.placements)) or "plain"
        lines.append(f"  {html.plain(kind.name, longest=48)}{times}  {shape_text(kind.first.shape)}  {placements}")
    return lines + ([f"  … and {len(kinds) - 8} more kinds"] if len(kinds) > 8 else [])


def _memory_html(shown: Sharding) -> str:
    """Return a table of the bytes that each group of ranks needs."""
    assumed = Assumptions()
    groups = memory_groups(shown.mesh, shown.tensors, assumed)
    top = max(sum(groups[0].value), 1)
    key = " ".join(f'<span class="key m{part[0]}">{MEMORY[part].letter}</span> {part}' for part in PARTS)
    hidden = len(groups) - MOST_GROUPS
    more = f"{hidden:,} more groups of ranks: see memory(). " if hidden > 0 else ""
    columns = (
        prose("ranks", lambda group: html.escape(group.ranks)),
        Column("how many", lambda group: f"{group.count:,}"),
        bar("", lambda group: html.stacked_bar(_parts(group), top)),
        *(_bytes_column(number, part) for number, part in enumerate(PARTS)),
        Column("total", lambda group: format_bytes(sum(group.value))),
    )
    drawn = table(columns, groups[:MOST_GROUPS])
    return f"<h2>Memory by rank</h2>{html.note(key)}{drawn}{html.note(more + html.escape(assumed, longest=0))}"


def _bytes_column(number: int, part: str) -> Column:
    return Column(part, lambda group: format_bytes(group.value[number]))


def _parts(group: RankGroup) -> list[tuple[str, str, float, str]]:
    """Return the segments of a group's bar, see `html.stacked_bar`."""
    return [
        (f"m{part[0]}", MEMORY[part].letter, size, f' title="{part}: {format_bytes(size)}"')
        for part, size in zip(PARTS, group.value, strict=True)
    ]


def _list_html(drawn_mesh: DrawnMesh) -> str:
    """Return the list of the kinds of parameters."""
    kinds = fold_names(drawn_mesh.shown.tensors)
    blocks = max(6, MOST_BLOCKS // min(len(kinds), MOST_PICTURES))
    largest = sorted(kinds, key=lambda kind: -kind.first.nbytes * len(kind.tensors))[:MOST_PICTURES]
    pictured = {id(kind) for kind in largest}
    lines = [_line_html(drawn_mesh, kind, blocks, has_picture=id(kind) in pictured) for kind in kinds[:MOST_LINES]]
    more = len(kinds) - len(lines)
    return (
        "<h2>Tensors</h2>"
        '<div class="scroll" tabindex="0" role="region" aria-label="tensors"><div class="list">'
        '<div class="line head"><span class="n">name</span> <span class="v">shards</span> <span class="s">shape</span> '
        '<span class="p">placements</span> <span class="s">on a rank</span> <span class="c">bytes</span> '
        f'<span class="c">worst</span></div>{"".join(lines)}</div></div>'
        + (f'<p class="dim">{more:,} more kinds of tensors: summary() has all.</p>' if more else "")
    )


def _line_html(drawn_mesh: DrawnMesh, kind: ParameterKind, blocks: int, has_picture: bool) -> str:
    """Return the line of a kind of parameter; with a picture of at most ``blocks`` blocks inside it, it can open."""
    tensor, shown = kind.first, drawn_mesh.shown
    line = _cells(drawn_mesh, kind, has_picture)
    empty = "".join(f" e{index}" for index in drawn_mesh.sample.empty(tensor))
    if not has_picture:
        return f'<div class="line{empty}">{line}</div>'
    also = (
        f'<p class="dim">The same tensor as {html.name(", ".join(tensor.also), longest=300)}; counted once.</p>'
        if tensor.also
        else ""
    )
    inside = (
        axis_table(tensor, drawn_mesh)
        + picture_html(tensor, drawn_mesh, blocks, with_zoom=False)
        + held_table(shown, tensor)
    )
    return f'<details><summary class="line{empty}">{line}</summary><div class="open">{also}{inside}</div></details>'


def _cells(drawn_mesh: DrawnMesh, kind: ParameterKind, has_picture: bool) -> str:
    """Return the cells of a line: name, shards, shape, placements, and what ranks hold."""
    tensor, shown = kind.first, drawn_mesh.shown
    groups = shown.shapes(tensor)
    sizes = [math.prod(group.value) * tensor.dtype.itemsize for group in groups]
    worst = groups[sizes.index(max(sizes))]
    times = f' <span class="times">×{len(kind.tensors)}</span>' if len(kind.tensors) > 1 else ""
    frozen = "" if tensor.requires_grad else ' <span class="times">frozen</span>'
    placed = "".join(
        f"<span>{swatch(placement, axis_class(axis.name))} {html.name(axis.name, longest=24)}</span> "
        for axis, placement in zip(tensor.axes, tensor.placements, strict=True)
    )
    nothing = drawn_mesh.empty_ranks(tensor)
    empty = f"<b>∅ {format_count(nothing.count, 'rank')}</b>" if nothing is not None else ""
    uneven = f'<b class="dim">to {html.escape(shape_text(groups[-1].value))}</b>' if len(groups) > 1 else ""
    rank = f"rank {shown.mesh.rank(worst.first)}" if len(set(sizes)) > 1 else "all equal"
    least = f'<b class="dim">to {format_bytes(min(sizes))}</b>' if len(set(sizes)) > 1 else ""
    return (
        f'<span class="n">{html.parted(kind.name)}{times}{frozen}</span> '
        f'<span class="v">{thumbnail(tensor, drawn_mesh) if has_picture else ""}</span> '
        f'<span class="s"><b>{html.escape(shape_text(tensor.shape))}</b> '
        f'<b class="dim">{dtype_name(tensor.dtype)}</b></span> '
        f'<span class="p">{placed or swatch(None)}</span> '
        f'<span class="s"><b>{html.escape(shape_text(worst.value))}</b> {uneven} {empty}</span> '
        f'<span class="c"><b>{format_bytes(max(sizes))}</b> {least}</span> <span class="c">{rank}</span>'
    )

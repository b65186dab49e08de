"""Placements explained: a sentence for each, and tables of what each axis does and each rank holds."""

from __future__ import annotations

import math

from dsexplore.placement_text import Placement
from dsexplore.sharding.chunks import ranges_text
from dsexplore.sharding.layout import Sharding, index_text
from dsexplore.sharding.mesh import Mesh
from dsexplore.sharding.rank_groups import RankGroup
from dsexplore.sharding.tensor import Placed
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.sharding.drawn_mesh import DrawnMesh
from dsexplore.views.sharding.shard_picture import swatch

MOST_GROUPS, MOST_RANKS = 12, 64
_REDUCED = {
    "sum": "summed",
    "avg": "averaged",
    "product": "multiplied",
    "min": "reduced by min",
    "max": "reduced by max",
}


def meanings(tensor: Placed) -> list[str]:
    """One sentence per placement."""
    before: dict[int, list[str]] = {}
    found = []
    for placement, axis in zip(tensor.placements, tensor.axes, strict=True):
        found.append(_meaning(placement, axis.size, tensor, before.get(placement.dim, [])))
        if placement.cuts:
            before.setdefault(placement.dim, []).append(axis.name)
    return found


def _meaning(placement: Placement, parts: int, tensor: Placed, before: list[str]) -> str:
    if placement.kind == "replicate":
        return f"{parts:,} copies" if parts > 1 else "one copy"
    if placement.kind == "partial":
        how = _REDUCED.get(placement.reduce_op, f"reduced by {placement.reduce_op}")
        return f"{parts:,} partial values of all of it, still to be {how}"
    size = tensor.shape[placement.dim]
    what = f"dim {placement.dim}" if not before else f"what {', '.join(before)} left of dim {placement.dim}"
    if placement.kind == "strided" and placement.pieces > 1:
        return f"cuts {what} in {placement.pieces:,} pieces first, and each of these in {parts:,}"
    return f"cuts {what} in {parts:,}" + ("" if before else f": {_sizes(size, parts)}")


def _sizes(size: int, parts: int) -> str:
    """The sizes of the parts of a dim: ``"4 each"``, ``"3, 3, 3, 1"``; of many parts ``"64 (×2,003), 32, 0 (×44)"``."""
    chunk = -(-size // parts)
    full = size // chunk if chunk else 0
    rest = size - full * chunk
    counted = [(chunk, full), (rest, int(rest > 0)), (0, parts - full - (rest > 0))]
    if not rest and parts == full:
        return f"{chunk:,} each"
    if parts <= 8:
        return ", ".join(f"{length:,}" for length, times in counted for _ in range(times))
    return ", ".join(f"{length:,} (×{times:,})" if times > 1 else f"{length:,}" for length, times in counted if times)


def axis_table(tensor: Placed, drawn_mesh: DrawnMesh) -> str:
    """A table of swatch, placement and sentence per axis."""
    if not tensor.placements:
        return f"<p>{swatch(None)} no placements: each of {drawn_mesh.mesh.size:,} ranks has a whole one of its own</p>"
    rows = [
        (
            html.name(axis.name, 48),
            f"{axis.size:,}",
            swatch(placement, drawn_mesh.marks.kind(axis.name)),
            html.escape(meaning),
        )
        for axis, placement, meaning in zip(tensor.axes, tensor.placements, meanings(tensor), strict=True)
    ]
    return html.table(("axis", "ranks", "placement", "what it does"), rows, left=(0, 2), wrap=(3,))


def held_table(shown: Sharding, tensor: Placed) -> str:
    """Ranks folded by the shape that they hold."""
    groups = shown.shapes(tensor)
    rows = [_held_row(shown, tensor, group) for group in groups[:MOST_GROUPS]]
    more = len(groups) - len(rows)
    return html.table(("ranks", "how many", "hold", "bytes each", "for example"), rows, left=(0, 2, 4), wrap=(0, 4)) + (
        f'<p class="dim">and {more:,} more kinds: see to_frame()</p>' if more else ""
    )


def _held_row(shown: Sharding, tensor: Placed, group: RankGroup) -> tuple[str, ...]:
    numel = math.prod(group.value)
    example = f"rank {shown.mesh.rank(group.first)}: {index_text(tensor.ranges(group.first))}" if numel else "–"
    return (
        html.escape(group.ranks),
        f"{group.count:,}",
        f"<code>{html.escape(shape_text(group.value))}</code>" + ("" if numel else " nothing"),
        format_bytes(numel * tensor.dtype.itemsize),
        f"<code>{html.escape(example)}</code>",
    )


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text: ``"8192 × 1024"``; ``"()"`` without dims."""
    return " × ".join(map(str, shape)) or "()"


def rank_table(shown: Sharding, tensor: Placed) -> str:
    """Every rank by itself, where they are few; closed until it is opened."""
    if not 1 < shown.mesh.size <= MOST_RANKS:
        return ""
    rows = []
    for at in sorted(_places(shown.mesh), key=shown.mesh.rank):
        shape = tensor.local_shape(at)
        held = [f"<code>{html.escape(ranges_text(part))}</code>" for part in tensor.ranges(at)]
        size = format_bytes(math.prod(shape) * tensor.dtype.itemsize)
        rows.append((str(shown.mesh.rank(at)), *map(str, at), *held, html.escape(shape_text(shape)), size))
    axes, dims = len(shown.mesh.axes), len(tensor.shape)
    head = ["rank", *shown.mesh.axes, *(f"dim {dim}" for dim in range(dims)), "holds", "bytes"]
    table = html.table(head, rows, left=range(1 + axes, 2 + axes + dims))
    return f"<details><summary>Rank by rank</summary>{table}</details>"


def _places(mesh: Mesh) -> list[tuple[int, ...]]:
    plain = Mesh(mesh.axes, mesh.shape)
    return [plain.coordinates(position) for position in range(mesh.size)]

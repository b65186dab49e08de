"""The explorer of a `Sharding`: choose a tensor and any rank of the mesh, whose shards are magnified."""

from __future__ import annotations

from typing import Any

import ipywidgets

from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.layout import Sharding, index_text
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.sharding.drawn_mesh import MINE, DrawnMesh
from dsexplore._internal.views.sharding.rank_grid import LIT, axis_table
from dsexplore._internal.views.sharding.shard_picture import STYLE, picture_html
from dsexplore._internal.views.view import View
from dsexplore._internal.views.widgets.live import LiveBox

_MINE_STYLE = f".dsx .pic .{MINE}{{{LIT}}}"


def explorer(shown: Sharding, twin: View) -> LiveBox:
    """Return a list of tensors, a box for a rank, and the picture of the tensor with a zoom on the rank's shards.

    ``explorer.zoom(rank)`` and ``explorer.choose(tensor)`` do the same as the boxes; ``explorer.held`` is what the
    rank holds of the tensor: per dim one range of indices, or several if they are not contiguous.
    """
    drawn_mesh, names = DrawnMesh(shown), [tensor.name for tensor in shown.tensors]
    tensor = ipywidgets.Dropdown(options=names, description="tensor", layout={"width": "min(48em, 100%)"})
    rank = ipywidgets.IntText(value=int(drawn_mesh.sample.numbers[0]), description="rank")
    picture, box = ipywidgets.HTML(), LiveBox(twin)

    def chosen() -> PlacedTensor:
        return shown.tensors[names.index(tensor.value)]

    def draw(_: Any = None) -> None:
        try:
            at = shown.mesh.coordinates(rank.value)
        except UsageError as error:
            picture.value = f'<div role="status">{html.escape(error, longest=300)}</div>'
            return
        box.held = chosen().ranges(at)
        picture.value = _drawn(drawn_mesh, chosen(), rank.value, at)

    def zoom(wanted: int) -> None:
        shown.mesh.coordinates(wanted)  # raises if there is no such rank
        rank.value = wanted

    def choose(name: str) -> None:
        if name not in names:
            raise UsageError(f"choose({name!r}): no such tensor; the first are {', '.join(names[:4])}")
        tensor.value = name

    for control in (tensor, rank):
        control.observe(draw, "value")
    box.children = [*([tensor] if len(names) > 1 else []), rank, picture]
    box.zoom, box.choose, box.picture = zoom, choose, picture
    draw()
    return box


def _drawn(drawn_mesh: DrawnMesh, tensor: PlacedTensor, rank: int, at: tuple[int, ...]) -> str:
    """Return the part that the rank holds as text, the table of axes, and the picture, zoomed if it is folded."""
    axes = zip(drawn_mesh.mesh.axes, at, strict=True)
    where = ", ".join(f"{html.name(axis, longest=30)} {place}" for axis, place in axes)
    ranges = tensor.ranges(at)
    size = tensor.dtype.itemsize
    for dim in ranges:
        size *= sum(stop - start for start, stop in dim)
    held = f"holds {html.escape(index_text(ranges), longest=200)} of {html.name(tensor.name)}, {format_bytes(size)}"
    status = f'<p role="status"><b>rank {rank:,}</b> ({where}) {held if size else "holds no shard"}</p>'
    body = axis_table(tensor, drawn_mesh) + picture_html(tensor, drawn_mesh, around=(rank, at))
    return html.fragment(status + body, STYLE + _MINE_STYLE)
